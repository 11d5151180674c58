"""The live page: the city's street, control modes and decisions in a browser, and the buttons of an operator.

A frame's way, and the thread of each part:

    decision loop | collect what is in view of t   decide t   send   publish the event of t (RunState.add)   read t+1
                  |   (Collector, only if a watcher    |                        |
                  |    waits)                         |                        v wakes
    page          |                                   |          frame: newest states, modes, queues, vehicles in view
    browser       |                                   |            -> draws -> asks for the next one

Invariants:
- The browser asks for each frame (pull), so each watcher has at most one in flight; nothing is queued for it, and steps
  that it had no time for are skipped. The sequence number shows how many.
- Without a watcher, nothing is read from SUMO for the page, nothing is encoded and no frame is made; an event costs the
  entry in the history and the sums of the traffic.
- A TL's panel is made of the record's messages, so that a record's page (`records.playback`) is made by the same code:
  `frame_server` (the WebSocket side), `panels` (texts and figures), `street_data` (what never changes), `site` (the
  rest of HTTP, and the refusal of other sites' requests) and `frames` (the binary form).

For a running controller alone: `live` puts the parts together, `server` makes the frames, `collector` reads from SUMO
what only the page needs, `exports` says where a model comes from, `controls` parses the operator's commands.
"""
