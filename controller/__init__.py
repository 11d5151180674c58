"""The controller: a daemon that reads, observes, chooses, permits and applies.

Reading order: daemon -> assembly -> decision_step -> sumo/connection (readings) ->
signals/observation and signals/dialects -> policies/ -> signals/intersection ->
signals/safety -> sumo/connection (signal states); signals/fallback if an answer is
missing, release at the end. `signals` is pure: no I/O, no clock; time is passed in.
"""
