"""Texts and figures of the page's panels, as JSON: of the city, and of the TL that a watcher has selected."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from controller.events import DecisionEvent, TlDecision
from controller.operator.page.collector import Collector
from controller.operator.page.controls import Controls
from controller.operator.page.feed import Feed, KeptStep
from controller.recording.messages import Encoder
from controller.recording.sentences import sentence
from signals.observation import Readings
from signals.policy import Answer
from signals.safety.conflicts import EXPLANATIONS

RATE_S = 30.0
"""Wall time over which decisions a second are counted."""
MAX_SENTENCES = 40
"""Decisions that are put into sentences for a TL that has just been selected."""
_STAGES = ("sumo", "observe", "inference", "apply")


def city_panel(
    feed: Feed, controls: Controls, collector: Collector | None, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The run as a whole."""
    now_s = clock()
    times = list(feed.times)
    recent = [step for step in times if step.monotonic_s > now_s - RATE_S]
    return {
        "run": controls.run(),
        "decisions": feed.decisions,
        "missing": feed.missing,
        "decisions_per_s": round(sum(step.decisions for step in recent) / RATE_S, 2),
        "latency_ms": {stage: _percentiles([getattr(step.times, f"{stage}_s") for step in times]) for stage in _STAGES},
        "alarms": controls.alarms(),
        "commands": controls.commands(),
        "collect_ms": round(1000 * collector.took_s, 2) if collector else None,
        "collect_interval_s": round(collector.interval_s, 3) if collector else None,
        "has_ended": feed.has_ended,
    }


def _percentiles(values_s: list[float]) -> list[float]:
    """p50 and p95 in ms; empty without values."""
    return [round(1000 * float(value), 3) for value in np.percentile(values_s, (50, 95))] if values_s else []


class TlPanel:
    """A TL's panel for one watcher: what is new since its last frame."""

    def __init__(self, feed: Feed, controls: Controls, tl: str, encoder: Encoder | None, driver: str = "") -> None:
        """Begin with the whole history.

        Args:
            feed, controls: of the run.
            tl: its name.
            encoder: makes the messages that sentences are made of; None: there are no sentences.
            driver: what decides in the place of the policy.
        """
        self.tl = tl
        self._feed, self._controls, self._driver, self._encoder = feed, controls, driver, encoder
        self._contract, self._place, self._rows = feed.contracts[tl], feed.places[tl], feed.lane_rows.get(tl, [])
        self._number = -1
        self._decision: dict[str, Any] = {}
        self._states: dict[str, Any] = {}
        self._export: dict[str, Any] = {}
        """As it was sent last."""

    def update(self) -> dict[str, Any]:
        """The panel; its lists have what is new, and `is_first` says that they begin anew."""
        steps = list(self._feed.since(self._number))
        first_sentence = max(0, sum(self._has_decision(step) for step in steps) - MAX_SENTENCES)
        band, queue, overrides, sentences, seen = [], [], [], [], 0
        for step in steps:
            band += [[shown.begin_s, shown.end_s, *shown.states[self._place]] for shown in step.shown]
            decision = next((each for each in step.decisions if each.tl == self.tl), None)
            for sent in step.sent:
                states = next((each for each in sent.states if each.tl == self.tl), None)
                if states is not None:
                    self._states = {"at_s": sent.at_s, "requested": states.requested, "permitted": states.permitted}
                overrides += [
                    {"at_s": sent.at_s, "signal": o.signal, "requested": o.requested, "permitted": o.permitted,
                     "reason": EXPLANATIONS[o.reason]}
                    for o in sent.overrides if o.signal in self._contract.signal_ids
                ]  # fmt: skip
            if decision is not None:
                self._decision = _decision(decision, step.at_s)
                queue.append([step.at_s, int(step.halting[self._rows].sum())])
                seen += 1
                if seen > first_sentence and self._encoder is not None:
                    sentences.append(self._sentence(step, decision))
        now = self._controls.tl(self.tl)
        export = now.pop("export", {})
        is_new_export, self._export = export != self._export, export
        is_first, self._number = self._number < 0, steps[-1].number if steps else max(self._number, 0)
        return {
            "tl": self.tl, "is_first": is_first, "now": now, "decision": self._decision,
            "states": self._states, "band": band, "queue": queue, "overrides": overrides, "sentences": sentences,
            **({"export": export} if is_new_export else {}),
        }  # fmt: skip

    def _has_decision(self, step: KeptStep) -> bool:
        return any(decision.tl == self.tl for decision in step.decisions)

    def _sentence(self, step: KeptStep, decision: TlDecision) -> str:
        """The step's sentence, as a record has it."""
        assert self._encoder is not None
        signals = set(self._contract.signal_ids)
        sent = tuple(
            each._replace(
                states=tuple(states for states in each.states if states.tl == self.tl),
                commands=tuple(command for command in each.commands if command.signal in signals),
                overrides=tuple(override for override in each.overrides if override.signal in signals),
            )
            for each in step.sent
        )
        # a sentence says nothing of the readings, only of the observation
        size = len(step.halting)
        readings = Readings(np.zeros((2, size)), np.zeros(size), np.zeros(size))
        event = DecisionEvent(step.number, step.at_s, 0.0, readings, (decision,), sent, (), (), {}, (), None)
        return sentence(self._contract, self._encoder.encode(event)[1][self.tl], self._driver)


def _decision(decision: TlDecision, at_s: float) -> dict[str, Any]:
    answer = decision.answer if isinstance(decision.answer, Answer) else None
    scores = answer.scores if answer is not None else None
    return {
        "at_s": at_s,
        "observation": finite(decision.observation),
        "phases": [int(phase) for phase in decision.phase_state.phases],
        "min_green_passed": bool(decision.phase_state.min_green_passed),
        "action": finite(answer.action) if answer is not None else [],
        "scores": finite(scores) if scores is not None else [],
        "failure": decision.failure,
    }


def finite(values: Any) -> list[float | None]:
    """Numbers rounded to five digits, as JSON has them."""
    numbers = (float(value) for value in np.ravel(values))
    return [float(f"{number:.5g}") if math.isfinite(number) else None for number in numbers]
