"""The guard: a small process that holds a TraCI connection for a controller that may die.

SUMO ends the simulation for all its clients when one of them drops. So the guard
is SUMO's client and the controller is the guard's:

    SUMO <--TraCI--> guard <--TraCI, loopback--> controller (may be killed and started again)

`relay` forwards messages, `handover` is what the controller registers with the
guard, `hand_back` brings the signals onto their fallback plans when the controller
is gone, `listener` accepts the next controller, `start` finds or starts a guard.
"""
