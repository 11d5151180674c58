"""Texts and figures of the page's panels as JSON, of a running controller and of a record alike.

A TL's panel is made of the record's messages (protos/record.proto): those that a controller encodes for the TL that a
browser has selected (WatchedTl), or those that a record has.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from controller.operator import command_log
from controller.operator.control_messages import fields
from controller.operator.run_state import RunState
from controller.operator.tl_layout import TlLayout
from controller.recording.messages import encode_tl_step
from controller.recording.sentences import override_text, sentence
from controller.telemetry.traffic import RecentTraffic
from protos import control_pb2
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from signals.fallback.control_mode import ControlMode
from signals.movement_names import MovementNames

RATE_S = 30.0
"""Wall time over which decisions a second are counted."""
MAX_SENTENCES = 40
"""Decisions that are put into sentences at once."""
MAX_COMMAND_LINES = 30
"""Lines of operators' commands."""
MAX_WORST = 10
"""TLs that the list of the worst has."""
STAGES = ("sumo", "observe", "inference", "apply")
"""Stages of a decision step, in their order."""


def city_panel(
    run: Mapping[str, Any],
    figures: Mapping[str, Any],
    alarms: Iterable[control_pb2.Alarm],
    commands: Sequence[control_pb2.Command],
) -> dict[str, Any]:
    """The run as a whole. `figures`: of the function `figures`."""
    return {
        "run": run,
        **figures,
        "alarms": [{**fields(alarm), "ended_s": None if alarm.is_active else alarm.ended_s} for alarm in alarms],
        "commands": [
            {"at_s": c.at_s, "unix_s": c.unix_s, "text": text}
            for c, text in reversed(command_log.lines(commands)[-MAX_COMMAND_LINES:])
        ],
    }


def traffic(tls: Sequence[str], recent: RecentTraffic) -> dict[str, Any]:
    """The city's traffic, and the TLs with most halting vehicles now. `tls`: in the order of the figures."""
    halting = np.nan_to_num(recent.halting)
    worst = np.lexsort((-np.nan_to_num(recent.delay_s), -halting))[:MAX_WORST]
    return {
        **recent.totals(),
        "counted_tls": int(np.isfinite(recent.delay_s).sum()),
        "mean_vehicles": _finite([recent.mean_vehicles])[0],
        "mean_halting": _finite([recent.mean_halting])[0],
        "span_s": recent.span_s,
        "worst": [
            [tls[k], float(halting[k]), *_finite([recent.delay_s[k]])]
            for k in worst
            if halting[k] > 0 or recent.delay_s[k] > 0
        ],
    }


def figures(decisions: int, missing: int, recent: int, times_s: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Counts of a run, and p50 and p95 of its newest steps; none without steps.

    Args:
        decisions: so far, without those that were missing.
        missing: answers that were.
        recent: decisions of the newest RATE_S.
        times_s: by stage, of the newest steps.
    """
    return {
        "decisions": decisions,
        "missing": missing,
        "decisions_per_s": round(recent / RATE_S, 2),
        "latency_ms": {
            stage: (1000 * np.percentile(values, (50, 95))).round(3).tolist() if values else []
            for stage, values in times_s.items()
        },
    }


class TlHistory(NamedTuple):
    """A TL in a span of simulated time: after one second, up to another."""

    steps: Sequence[record.TlStep]
    """In their order; they may begin before the span, so that the newest decision is one of them."""
    band: list[list[Any]]
    """[begin, end, state of each signal] of the states that were shown."""
    queue: list[list[float]]
    """[second, halting vehicles] at each decision."""
    after_s: float = -math.inf
    until_s: float = math.inf


class WatchedTl:
    """The TL of a running controller that a browser has selected: its steps are encoded, as a record has them, when a
    frame is made. Used by the page's thread.

    Browsers whose newest step is the same have the same of a TL, so that they can share one of these.
    """

    def __init__(self, state: RunState, layout: TlLayout, tl: str) -> None:
        """`layout`: with the lanes of the readings."""
        self.contract = layout.contracts[tl]
        self._state, self._index = state, layout.index[tl]
        self._place, self._rows = layout.places[tl], layout.lane_rows[tl]
        self.number = -1
        """Number of the newest step that the browser has."""
        self._after_s = -math.inf
        self._steps: list[record.TlStep] = []
        """The newest with a decision, and the newest with states."""

    @property
    def is_first(self) -> bool:
        """True while the browser has nothing of this TL yet."""
        return self.number < 0

    def news(self) -> TlHistory:
        """Return the steps since the last call; at first, the whole history."""
        steps = [*self._steps]
        band = []
        queue = []
        kept = self._state.since(self.number)
        for step in kept:
            band += [[shown.begin_s, shown.end_s, *shown.states[self._place]] for shown in step.event.shown]
            encoded = encode_tl_step(step.event, self.contract, ControlMode(step.modes[self._index]))
            if encoded is None:
                continue
            steps.append(encoded)
            if encoded.HasField("decision"):
                queue.append([encoded.at_s, int(step.halting[self._rows].sum())])
        history = TlHistory(steps, band, queue, self._after_s)
        if kept:
            self.number, newest = kept[-1].number, kept[-1].event
            # what was sent for the seconds up to the next reading is part of this step
            self._after_s = max([newest.at_s, *(sent.at_s for sent in newest.sent)])
        decided = [k for k, step in enumerate(steps) if step.HasField("decision")]
        stated = [k for k, step in enumerate(steps) if step.states]
        self._steps = [steps[k] for k in sorted({*decided[-1:], *stated[-1:]})]
        return history


def tl_panel(
    contract: pb.PolicyContract,
    names: Mapping[str, MovementNames],
    history: TlHistory,
    now: Mapping[str, Any],
    driver: str,
    is_first: bool,
) -> dict[str, Any]:
    """A TL's panel.

    Args:
        contract: the TL's.
        names: by signal, the names of its movements.
        history: since the browser's last frame.
        now: its control mode, and who set it.
        driver: what decides in the place of the policy.
        is_first: whether the lists begin anew in the browser.
    """
    decided = [step for step in history.steps if step.HasField("decision")]
    new = [step for step in decided if step.at_s > history.after_s]
    states = [each for step in history.steps for each in step.states if each.at_s <= history.until_s]
    return {
        "tl": contract.tl,
        "is_first": is_first,
        "now": now,
        "decision": _decision(decided[-1]) if decided else {},
        "states": _states(states[-1]) if states else {},
        "shown": _shown(contract, names, history.band),
        "band": history.band,
        "queue": history.queue,
        "overrides": overrides((each for each in states if each.at_s > history.after_s), names),
        "sentences": [sentence(contract, step, driver, names) for step in new[-MAX_SENTENCES:]],
    }


def overrides(states: Iterable[record.States], names: Mapping[str, MovementNames]) -> list[dict[str, Any]]:
    """The requests that were not permitted, in their order. `names`: by signal, of its movements."""
    return [
        {
            "at_s": each.at_s,
            "signal": override.signal,
            "requested": override.requested,
            "permitted": override.permitted,
            "text": override_text(override, names),
        }
        for each in states
        for override in each.overrides
    ]


def _shown(contract: pb.PolicyContract, names: Mapping[str, MovementNames], band: list[list[Any]]) -> list[str]:
    """By signal, the name of the newest state that was shown; empty if there is none."""
    if not band:
        return []
    _, _, *states = band[-1]
    return [
        names.get(signal, MovementNames()).of_state(state)
        for signal, state in zip(contract.signal_ids, states, strict=True)
    ]


def _states(states: record.States) -> dict[str, Any]:
    return {"at_s": states.at_s, "requested": list(states.requested), "permitted": list(states.permitted)}


def _decision(step: record.TlStep) -> dict[str, Any]:
    decision = step.decision
    return {
        "at_s": step.at_s,
        "observation": _finite(decision.observation),
        "phases": list(decision.phases),
        "min_green_passed": decision.min_green_passed,
        "action": _finite(decision.action),
        "scores": _finite(decision.scores),
        "failure": decision.failure,
    }


def _finite(numbers: Iterable[float]) -> list[float | None]:
    """Numbers rounded to five digits, as JSON has them."""
    return [float(f"{number:.5g}") if math.isfinite(number) else None for number in numbers]
