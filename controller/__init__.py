"""The controller: a daemon that reads, observes, chooses, permits and applies.

Reading order: daemon -> decision_step -> sumo.link (readings) -> observation
-> policy -> signal_timing -> safety -> sumo.link (signal states).
`observation`, `action`, `signal_timing`, `failover`, `safety`, `fallback` and
`intersection` are pure: no input or output, no clock; time is passed in.
"""
