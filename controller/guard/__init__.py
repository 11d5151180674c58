"""The guard: a small process that holds a TraCI connection for a controller that may die.

SUMO ends the simulation for all its clients when one of them drops. So the
guard is SUMO's client and the controller is the guard's: `relay` passes messages
on, `will` is what the controller leaves with the guard, `hand_back` brings the
signals onto their plans, `start` finds or starts a guard for a controller.
"""
