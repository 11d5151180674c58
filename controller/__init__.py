"""The controller: a daemon that reads, observes, chooses, permits and applies.

Reading order: daemon -> assembly -> decision_step -> sumo/connection (readings) ->
observation and dialects/ -> policies/ -> intersection -> safety/ -> sumo/connection (signal
states); fallback/ when a policy is missing, release at the end. `dialects`, `safety`,
`fallback` and `intersection` are pure: no I/O, no clock; time is passed in.
"""
