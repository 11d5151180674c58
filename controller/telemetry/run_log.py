"""The log and metrics of a run, summarised so that a thousand TLs stay readable."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from city import names
from controller.decision_step import DecisionLoop, RunCounters
from controller.events import DecisionEvent, StepTimes, Subscriber
from controller.telemetry.metrics import MISSING_REASONS, ControllerMetrics
from signals.fallback.control_mode import ControlMode
from signals.movement_names import MovementNames
from signals.safety.conflicts import EXPLANATIONS, OverrideReason
from signals.safety.monitor import Alarm, MonitorRule
from signals.safety.signal_safety import Override

log = logging.getLogger("controller")

MAX_NAMED_TLS = 10
"""TLs named in one line; the others are counted."""
MAX_OVERRULED_SHARE = 0.1
"""Share of a TL's decisions that the safety rules may overrule without a warning."""
_TRAIN_REMEDY = "greenserve check prints times to train with"
OVERRULED_REMEDIES = {
    OverrideReason.YELLOW: _TRAIN_REMEDY,
    OverrideReason.CLEARANCE: _TRAIN_REMEDY,
    OverrideReason.MIN_GREEN: _TRAIN_REMEDY,
    OverrideReason.MAX_GREEN: "a longer max_green_s in [safety] leaves the choice to the policy",
    OverrideReason.MAX_RED: "a longer max_red_s in [safety], or in the TL's table, leaves the choice to the policy",
}
"""By reason of the overrides, how to avoid them."""
COMPARE_REMEDY = "greenserve check compares its greens with the network"
MAX_NAMED_OVERRULED = 3
"""TLs named in this warning, with their counts."""
ALARM_LOG_INTERVAL_S = 60.0
"""Simulated seconds between two log lines of one signal and rule; every alarm is counted."""


class RunLog(Subscriber):
    """Counts events in metrics and logs them; the mode changes of a decision step are one line per kind."""

    def __init__(self, metrics: ControllerMetrics, tls: Iterable[str], names: Mapping[str, MovementNames]) -> None:
        """`names`: by signal, the names of its movements."""
        self._metrics, self._names = metrics, names
        self._mode_changes: dict[tuple[ControlMode, ControlMode], list[tuple[str, str]]] = {}
        """(old, new) -> (TL, reason) of this decision step."""
        self._logged_alarms: dict[tuple[str, MonitorRule], tuple[float, int]] = {}
        """(signal, rule) -> (second of its newest log line, alarms since)."""
        self._overruled: set[str] = set()
        """TLs that a warning has counted because the safety rules overrule them often."""
        for tl in tls:
            metrics.mode.labels(tl).set(ControlMode.POLICY.value)
            metrics.tls.labels(ControlMode.POLICY.name.lower()).inc()

    def add(self, event: DecisionEvent) -> None:
        for command in event.commands:
            why = f" ({command.reason})" if command.reason else ""
            log.warning("%s set %s to %s at %g%s", command.author, command.tl, command.wanted, event.at_s, why)
            if command.mode is not command.mode_before:
                self._mode_change(command.tl, command.mode_before, command.mode, f"set by {command.author}")
        for decision in event.decisions:
            if decision.failure:
                self._metrics.missing_answers.labels(decision.tl, _label(decision.failure)).inc()
                log.debug("%s at %g: %s", decision.tl, event.at_s, decision.failure)
            if decision.mode is not decision.mode_before:
                self._mode_change(decision.tl, decision.mode_before, decision.mode, decision.failure)
        for sent in event.sent:
            for override in sent.overrides:
                self._metrics.overrides.labels(override.reason.value).inc()
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s", self._describe_override(override, sent.at_s))
        for signal, reason in event.rejected.items():
            self._metrics.rejections.inc()
            log.error("SUMO rejected a command at %g: %s: %s", event.at_s, signal, reason)
        for alarm in event.alarms:
            self._alarm(alarm)
        self._write_mode_changes(event.at_s)
        self.set_second(event.at_s)
        if event.times is not None:
            self._decided(event)

    def set_second(self, now: float) -> None:
        """Set the metric of the simulated second, which an end without a decision passes too."""
        self._metrics.simulation_s.set(now)

    def _describe_override(self, override: Override, at_s: float) -> str:
        names = self._names.get(override.signal, MovementNames())
        requested, permitted = (
            f"{state} ({name})" if (name := names.of_state(state)) != state else state
            for state in (override.requested, override.permitted)
        )
        reason = EXPLANATIONS[override.reason]
        return f"{override.signal} at {at_s:g}: requested {requested}, permitted {permitted}: {reason}"

    def _mode_change(self, tl: str, old: ControlMode, new: ControlMode, reason: str) -> None:
        self._metrics.mode.labels(tl).set(new.value)
        self._metrics.tls.labels(old.name.lower()).dec()
        self._metrics.tls.labels(new.name.lower()).inc()
        self._mode_changes.setdefault((old, new), []).append((tl, reason))

    def _alarm(self, alarm: Alarm) -> None:
        self._metrics.alarms.labels(alarm.rule.value).inc()
        if alarm.rule is MonitorRule.UNEXPECTED_STATE:
            self._metrics.unexpected_states.labels(alarm.signal).inc()
        logged_s, unlogged = self._logged_alarms.get((alarm.signal, alarm.rule), (-math.inf, 0))
        if alarm.at_s < logged_s + ALARM_LOG_INTERVAL_S:
            self._logged_alarms[alarm.signal, alarm.rule] = logged_s, unlogged + 1
            return
        self._logged_alarms[alarm.signal, alarm.rule] = alarm.at_s, 0
        more = f" ({unlogged} more since second {logged_s:g})" if unlogged else ""
        log.error("ALARM: %s at %g: %s: %s%s", alarm.signal, alarm.at_s, alarm.rule.value, alarm.message, more)

    def _decided(self, event: DecisionEvent) -> None:
        assert event.times is not None
        missing = [decision for decision in event.decisions if decision.failure]
        self._metrics.steps.inc()
        self._metrics.decisions.inc(len(event.decisions) - len(missing))
        self._metrics.deadline_misses.inc(any(_label(decision.failure) == "deadline" for decision in missing))
        self._metrics.decision_s.observe(event.times.decision_s)
        for stage in ("sumo", "observe", "inference", "apply"):
            self._metrics.stage_s.labels(stage).observe(getattr(event.times, f"{stage}_s"))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", _describe_step(event))

    def _write_mode_changes(self, now: float) -> None:
        """Write the mode changes of this decision step: one line per kind of change, with its most frequent reason."""
        changes, self._mode_changes = self._mode_changes, {}
        for (old, new), tls in changes.items():
            level = logging.INFO if new is ControlMode.POLICY else logging.WARNING
            named = names.listed([tl for tl, _ in tls], MAX_NAMED_TLS)
            count = f"{len(tls)} TLs: " if len(tls) > 1 else ""
            reasons = Counter(reason for _, reason in tls if reason).most_common()
            reason = (
                f" ({reasons[0][0]}{f'; {len(reasons) - 1} other reasons' if len(reasons) > 1 else ''})"
                if reasons
                else ""
            )
            log.log(level, "%s%s at %g: %s -> %s%s", count, named, now, old.name, new.name, reason)

    def summary(self, loop: DecisionLoop) -> None:
        """Log one line about the run so far, and warn once of each TL that the safety rules overrule often."""
        values = figures(loop.counters)
        modes = Counter(intersection.control_name for intersection in loop.intersections.values())
        log.info(
            "second %g: %s; %d decisions, p50 %.2f ms, p99 %.2f ms; %d answers missing, %d fallbacks; %d overrides%s",
            loop.now,
            ", ".join(f"{count} {name}" for name, count in sorted(modes.items())),
            loop.counters.decisions,
            values["decision_ms_p50"],
            values["decision_ms_p99"],
            values["missing_answers"],
            loop.counters.fallbacks,
            values["overrides"],
            "".join(f", {reason} {count}" for reason, count in sorted(loop.counters.overrides.items())),
        )
        # a driver such as max-pressure is not trained, so there are no times to train it with
        unreported = {tl for tl, x in loop.intersections.items() if x.has_policy} - self._overruled
        overruled = [item for item in overruled_tls(loop.counters) if item[0] in unreported]
        self._overruled.update(tl for tl, _, _ in overruled)
        if overruled:
            named = [f"{tl} ({count} of {decisions})" for tl, count, decisions in overruled]
            reasons = [loop.counters.overruled_reason[tl] for tl, _, _ in overruled]
            remedies = {OVERRULED_REMEDIES.get(reason, COMPARE_REMEDY) for reason in reasons}
            log.warning(
                "safety rules overruled more than %g %% of the decisions of %s; %s",
                100 * MAX_OVERRULED_SHARE,
                names.listed(named, MAX_NAMED_OVERRULED),
                ", and ".join(sorted(remedies)),
            )


def _describe_step(event: DecisionEvent) -> str:
    """One line about a decision step: decisions, missing answers, overrides, times."""
    assert event.times is not None
    decided = [decision.tl for decision in event.decisions if not decision.failure]
    missing = {decision.tl: decision.failure for decision in event.decisions if decision.failure}
    named = f"{names.listed(decided, MAX_NAMED_TLS)} decided" if decided else "no TL decided"
    parts = [f"second {event.at_s:g}: {named}"]
    if missing:
        reason, count = Counter(missing.values()).most_common(1)[0]
        tls = names.listed(list(missing), MAX_NAMED_TLS)
        parts.append(f"{tls} had no valid action ({reason}{f', {count} times' if count > 1 else ''})")
    parts.append(f"{sum(len(sent.overrides) for sent in event.sent)} overrides until the next step")
    parts.append(
        f"{1000 * event.times.decision_s:.2f} ms, of which {1000 * event.times.inference_s:.2f} ms for inference"
    )
    return "; ".join(parts)


def _label(reason: str) -> str:
    """The metric label of a missing answer. `reason`: class name of the error, a colon, its text."""
    return MISSING_REASONS.get(reason.partition(":")[0], "other")


def figures(counters: RunCounters) -> dict[str, object]:
    """The run's figures: counts, and decision times in ms."""
    times = counters.times or [StepTimes(0.0, 0.0, 0.0, 0.0)]
    decision_ms = [1000 * each.decision_s for each in times]
    inference_ms = [1000 * each.inference_s for each in times]
    return {
        "decisions": counters.decisions,
        "decision_steps": counters.decision_steps,
        "decision_ms_p50": float(np.percentile(decision_ms, 50)),
        "decision_ms_p99": float(np.percentile(decision_ms, 99)),
        "inference_ms_p50": float(np.percentile(inference_ms, 50)),
        "inference_ms_p99": float(np.percentile(inference_ms, 99)),
        "missing_answers": sum(counters.missing_answers.values()),
        "missing_answers_by_tl": dict(counters.missing_answers),
        "fallbacks": counters.fallbacks,
        "overrides": sum(counters.overrides.values()),
        "overrides_by_reason": dict(counters.overrides),
        "alarms": sum(counters.alarms.values()),
        "alarms_by_rule": dict(counters.alarms),
        "unexpected_states_by_signal": dict(counters.unexpected_states),
        "rejections": counters.rejections,
    }


def overruled_tls(counters: RunCounters) -> list[tuple[str, int, int]]:
    """(TL, overruled decisions, decisions) of TLs above MAX_OVERRULED_SHARE, the most overruled first."""
    overruled = [
        (tl, counters.overruled_by_tl[tl], decisions)
        for tl, decisions in counters.decisions_by_tl.items()
        if counters.overruled_by_tl[tl] > MAX_OVERRULED_SHARE * decisions
    ]
    return sorted(overruled, key=lambda item: -item[1] / item[2])
