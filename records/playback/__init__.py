"""The page of a record: the live page, with a time slider in the place of the run.

    browser | position of the slider -> asks for the frame of that second              -> draws -> asks for the next one
    server  |                           moment: states, modes, queues, vehicles (moments), panels (record_panels)
    record  |                           chunks of that time alone (timeline)
    thread  | reads the record once: alarms, commands, counts, what is missing (overview, alarm_history)

Invariants:
- The browser owns the position, so that every watcher has its own, and the server has no clock.
- A frame reads the chunks of its time, whatever the length of the record.
- The page has no commands: it answers GET alone.

`record_page` puts the parts together and makes the frames. The page itself is the live page's: see
`controller.operator.page`.
"""
