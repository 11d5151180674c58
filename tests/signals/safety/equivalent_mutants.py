"""Mutants of signals/safety that no test can kill, by name, each with the reason.

The mutation tests fail if one of these is killed or does not exist any more.
"""

_CACHE = "one more or one less result is kept; the bound limits memory, and decisions do not depend on it"
_WHOLE_MS = "SUMO counts whole milliseconds, and a duration that is 1 ms short may be rounding"
_SPEED = "equal at exactly 50.5, 60.5 or 70.5 km/h, which are no speeds in m/s with the two decimals of networks"
_NO_LINKS = "differs for a signal without links, which has no link that could wait"
_OVERWRITTEN = "follow_program or check_shown sets it before anything reads it"
_SOME_AND_OTHERS = "compared with {True, False}: links that some phases serve are also those that others do not serve"
_PREFILTER = "a prefilter that lets more pass; _check_max_red compares each link's red itself"

EQUIVALENT_MUTANTS = {
    "conflicts: MAX_CACHED_STATES = 10000 -> MAX_CACHED_STATES = 10001": _CACHE,
    "monitor: MAX_CACHED_STATES = 10000 -> MAX_CACHED_STATES = 10001": _CACHE,
    "signal_safety: MAX_CACHED_TRANSITIONS = 64 -> MAX_CACHED_TRANSITIONS = 65": _CACHE,
    "signal_safety.SignalSafety._transition: len(self._transitions) > MAX_CACHED_TRANSITIONS -> "
    "len(self._transitions) >= MAX_CACHED_TRANSITIONS": _CACHE,
    "monitor: _ROUNDING_S = 0.001 -> _ROUNDING_S = 0.0011": _WHOLE_MS,
    "monitor.SignalMonitor._change: lasted_s + _ROUNDING_S < self._min_green_s -> "
    "lasted_s + _ROUNDING_S <= self._min_green_s": _WHOLE_MS,
    "monitor.SignalMonitor._change: lasted_s + _ROUNDING_S < self._yellow_s[i] -> "
    "lasted_s + _ROUNDING_S <= self._yellow_s[i]": _WHOLE_MS,
    "monitor.SignalMonitor._change: red_s + _ROUNDING_S < self._clear_s[j] -> "
    "red_s + _ROUNDING_S <= self._clear_s[j]": _WHOLE_MS,
    "monitor._required_yellow_s: kmh < 50.5 -> kmh <= 50.5": _SPEED,
    "monitor._required_yellow_s: kmh < 60.5 -> kmh <= 60.5": _SPEED,
    "monitor._required_yellow_s: kmh < 70.5 -> kmh <= 70.5": _SPEED,
    "safety_times.yellow_s_at: kmh <= bound + 0.5 -> kmh < bound + 0.5": _SPEED,
    "monitor.SignalMonitor.__init__: max(self._yellow_s, default=0.0) -> max(self._yellow_s, default=1.0)": _NO_LINKS,
    "monitor.SignalMonitor.__init__: max(self._clear_s, default=0.0) -> max(self._clear_s, default=1.0)": _NO_LINKS,
    "monitor.SignalMonitor.__init__: min(self._max_red_s, default=math.inf) -> "
    "min(self._max_red_s, default=0.0)": _NO_LINKS,
    "monitor.SignalMonitor.check_shown: max(state.waited_s, default=0.0) -> max(state.waited_s, "
    "default=1.0)": _NO_LINKS,
    "monitor.MonitorState: monitored_from_s: float = math.inf -> monitored_from_s: float = 0.0": _OVERWRITTEN,
    "monitor.MonitorState: max_waited_s: float = 0.0 -> max_waited_s: float = 1.0": _PREFILTER,
    "monitor.SignalMonitor.check_shown: end_s - state.monitored_from_s + state.max_waited_s > self._least_max_red_s -> "
    "end_s - state.monitored_from_s + state.max_waited_s >= self._least_max_red_s": _PREFILTER,
    "monitor.SignalMonitor.check_shown: end_s - state.monitored_from_s -> end_s + state.monitored_from_s": (
        _PREFILTER + "; simulated time is not negative"
    ),
    "monitor.SignalMonitor.__init__: state[i] in 'gG' -> state[i] not in 'gG'": _SOME_AND_OTHERS,
    "service_bounds.ServiceBounds.__init__: state[i] in GREEN -> state[i] not in GREEN": _SOME_AND_OTHERS,
    "monitor.SignalMonitor.__init__: state[i] == 'G' -> state[i] != 'G'": _SOME_AND_OTHERS,
    "service_bounds.ServiceBounds.__init__: state[i] in PROTECTED_GREEN -> state[i] not in PROTECTED_GREEN": (
        _SOME_AND_OTHERS
    ),
    "safety_times.movement_max_reds_s: min(each, default=math.inf) -> min(each, default=0.0)": _NO_LINKS,
    "monitor.MonitorState: is_controlled: bool = True -> is_controlled: bool = False": (
        "without a state, follow_program compares nothing and check_shown begins anew in either case"
    ),
    "monitor.SignalMonitor._compare: self._clear_s[j] > 0 -> self._clear_s[j] >= 0": (
        "a foe without clearance awaits 0 s, which have always passed"
    ),
    "monitor.SignalMonitor._find_faults: i < j -> i <= j": "no link is its own foe",
    "service_bounds.ServiceBounds.__init__: min((times.max_green_s, *self._max_red_s)) < math.inf -> "
    "min((times.max_green_s, *self._max_red_s)) <= math.inf": "without bounds, the minimum of infinite times is infinite "
    "as well",
    "signal_safety.SignalSafety.__init__: self._target_state = self.state.shown -> pass": (
        "permit sets it before it is read"
    ),
    "signal_safety.SignalSafety._show: settled_s > self._ages_matter_until_s -> settled_s >= "
    "self._ages_matter_until_s": ("assigns the value that it has"),
    "signal_safety.SignalSafety.resume: max(self._settled_s, default=-math.inf) -> "
    "max(self._settled_s, default=math.inf)": _NO_LINKS,
    "signal_safety.SignalSafety.resume: -math.inf -> -0.0": _NO_LINKS,
    "signal_safety.SignalSafety.allows: now >= self._ages_matter_until_s -> now > self._ages_matter_until_s": (
        "no link is younger at that moment either"
    ),
    "signal_safety.SignalSafety._young: now >= self._ages_matter_until_s -> now > self._ages_matter_until_s": (
        "at this moment the mask has no link either"
    ),
    "signal_safety.SignalSafety._transition: young and self._crossings -> young or self._crossings": (
        "computes what the cache holds: no crossing is being cleared once no link is young"
    ),
    "signal_safety.SignalSafety._walking_s: until_red_s + self.clearance_s[j] > 0 -> until_red_s + self.clearance_s[j] "
    ">= 0": ("0 s never exceed the time in which vehicles clear"),
}
