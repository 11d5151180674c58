"""The live page: the city's street, control modes and decisions in a browser, and the buttons of an operator.

A frame's way, and the thread of each part:

    decision loop | collect what is in view of t   decide t   send   publish the event of t (Feed.add)   read t+1
                  |   (Collector, only if a watcher    |                        |
                  |    waits)                         |                        v wakes
    page          |                                   |          frame: newest states, modes, queues, vehicles in view
    browser       |                                   |            -> draws -> asks for the next one

Invariants:
- The browser asks for each frame (pull), so each watcher has at most one in flight; nothing is queued for it, and steps
  that it had no time for are skipped. The sequence number shows how many.
- Without a watcher, nothing is read from SUMO for the page and no frame is made; an event costs the entry in the
  history.
- The page's parts know events, vehicles, lane shapes and `Controls`, but no connection: a record shows them too
  (`playback`).

`live` puts the parts together for a controller. `feed` keeps the newest step and a short history, `collector` reads
from SUMO what only the page needs, `frames` is the binary form of a frame, `panels` makes the texts and figures,
`exports` says where a model comes from, `street_data` has what never changes, `security` refuses requests of other
sites, `server` is the WebSocket side, `watcher` a browser at its other end, `site` the rest of HTTP, `controls` the
operator's commands. `playback` serves the page of a record.
"""
