"""The operator interface of a run: a control API, a live page, modes that survive a restart, and the run's pace.

A command's way:

    gRPC or page   | control_server, page.controls: parse -> service: check, then CommandQueue.submit, which waits
    decision loop  |   between two steps: CommandQueue.apply -> DecisionLoop.set_mode, pace, pins, alarms
    gRPC or page   | the state that results, or an OperatorError with its status

`service` is the API, with the messages of protos/control.proto; `control_server` is gRPC over it, `page` HTTP.
`command_queue` orders the commands and applies them; `saved_modes` keeps what must survive a restart. `run_state` is a
subscriber of the decision events; its `watchers` wait for a new step.
`operator_interface` holds all of them for the daemon. `ctl` is the command line, `control_client` its gRPC side.
"""
