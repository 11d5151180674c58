"""The guard: a small process that holds the TraCI connection, so that the simulation survives a controller crash.

SUMO ends the simulation for all its clients when one of them drops. So the guard
is SUMO's client and the controller is the guard's:

    SUMO <--TraCI--> guard <--TraCI, loopback--> controller (may be killed and started again)

`relay` forwards messages, `handover` is what the controller registers with the
guard, `hand_back` brings the signals onto their fallback plans when the connection to
the controller is lost, `listener` accepts the next controller, `start` finds or starts a guard.
"""
