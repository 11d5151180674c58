"""The operator interface of a run: a control API, modes that survive a restart, the pace of the run, and alarms.

A command's way:

    gRPC thread   | control_service: check, then CommandQueue.submit, which waits
    decision loop |   between two steps: CommandQueue.apply -> DecisionLoop.set_mode, pace, pins, alarms -> the
    command's result gRPC thread   | the state that results

`command_queue` orders the commands and applies them; `saved_modes` keeps what must survive a restart; `pace` says when
the next step may begin; `run_state` and `alarms` are subscribers of the decision event; `watchers` wakes the threads
that wait for a new step; `control_service` is the gRPC side, `control_server` its port; `operator_interface` holds all
of them for the daemon. `ctl` is the command line, `control_client` its gRPC side.

A page in this process needs no gRPC: it waits on `RunState.watchers`, reads `RunState.states`, `RunState.newest` and
`Alarms.current`, and commands by `CommandQueue.submit`.
"""
