"""The guard: a small process that holds the TraCI connection, so that the simulation survives a controller crash.

SUMO ends the simulation for all its clients if the connection to one is lost. So the
guard is SUMO's client and the controller is the guard's:

    SUMO <--TraCI--> guard <--TraCI, loopback--> controller (may be killed and started again)

`relay` forwards messages. `handover` has the plans that the controller registers with
the guard, and brings the signals onto their fallback plans by them after the connection
to the controller is lost. `listener` accepts the next controller. `start` finds or starts
a guard.
"""
