"""The panels of the page at one second of a record, as JSON: those of `panels`, made from the record's own messages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from controller.operator.page.feed import HISTORY_S, Feed
from controller.operator.page.panels import MAX_SENTENCES, finite
from controller.recording.sentences import reason_name, sentence
from protos import record_pb2 as record
from records.playback.moments import LOOK_BACK_S, Moment, MomentReader
from records.playback.overview import Overview
from records.record_reader import wall_text
from signals.fallback.control_mode import ControlMode
from signals.safety.conflicts import EXPLANATIONS, OverrideReason

BAND_S = 180.0
"""Simulated time of signal states that a TL's panel begins with."""
MAX_HISTORY_BYTES = 16 << 20
"""Chunks, as they are on the disk, that a TL's panel begins with: a large city's history is shorter."""


class MomentPanels:
    """Makes panels of a run. Used by one thread at a time."""

    def __init__(self, moments: MomentReader, overview: Overview, feed: Feed, driver: str) -> None:
        """Prepare the panels.

        Args:
            moments, overview: of the run.
            feed: with its contracts and lanes; it gets no events.
            driver: what decided in the place of the policies.
        """
        self._moments, self._overview, self._feed, self._driver = moments, overview, feed, driver
        self._timeline = moments.timeline
        self._index = {tl: k for k, tl in enumerate(moments.tls)}

    def city(self, moment: Moment) -> dict[str, Any]:
        """The run as a whole. What a record does not have is None."""
        # a record has no lateness
        run = {"second": moment.at_s, "late_steps": None, "lost_s": None}
        alarms = [dataclasses.asdict(alarm) for alarm in self._overview.alarms(moment.at_s)]
        return {
            "run": run,
            "alarms": alarms,
            "has_ended": False,
            "collect_ms": None,
            "wall": wall_text(moment.wall_ns) if moment.wall_ns else "",
            "hole": moment.hole,
            "damage": str(self._timeline.chunks.losses),
            **self._overview.city(moment.at_s),
        }

    def tl(self, tl: str, moment: Moment, since_s: float | None) -> dict[str, Any]:
        """A TL's panel.

        Args:
            tl: its name.
            moment: the second that is shown.
            since_s: the second up to which the browser has the panel, so that lists have what follows; None: it has
                none.
        """
        at_s = moment.at_s
        begin_s = self._timeline.history_s(at_s, HISTORY_S, MAX_HISTORY_BYTES)
        band_from_s, from_s = (max(at_s - BAND_S, begin_s), begin_s) if since_s is None else (since_s, since_s)
        contract = self._feed.contracts[tl]
        tl_steps = self._timeline.tl_steps(tl, min(from_s, max(begin_s, at_s - LOOK_BACK_S)), at_s)
        decided = [step for step in tl_steps if step.HasField("decision")]
        new = [step for step in decided if step.at_s > from_s]
        newest = decided[-1] if decided else None
        return {
            "tl": tl,
            "is_first": since_s is None,
            "now": self._now(tl, moment, newest, tl_steps),
            "decision": _decision(newest) if newest is not None else {},
            "states": _states(tl_steps, at_s),
            "export": {"manifest": None, "why": "a record has the contracts with which the run began, and no "
            "manifests"},
            "band": self._band(tl, band_from_s, at_s),
            "queue": self._queue(tl, from_s, at_s),
            "overrides": _overrides(tl_steps, from_s, at_s),
            "sentences": [sentence(contract, step, self._driver) for step in new[-MAX_SENTENCES:]],
        }  # fmt: skip

    def _now(
        self, tl: str, moment: Moment, newest: record.TlStep | None, tl_steps: Sequence[record.TlStep]
    ) -> dict[str, Any]:
        history = self._overview.tl(tl, moment.at_s)
        reason = ""
        if newest is not None:
            overrides = _overrides([step for step in tl_steps if step.number >= newest.number], -1.0, moment.at_s)
            reason = newest.decision.failure or (
                f"{overrides[-1]['signal']}: {overrides[-1]['reason']}" if overrides else ""
            )
        return {
            "mode": ControlMode(moment.modes[self._index[tl]]).name.lower(),
            "since_s": history.since_s,
            "set_by": history.set_by,
            "until_s": 0.0,
            "model": newest.decision.model if newest is not None else "",
            "version": newest.decision.version if newest is not None else 0,
            "pinned_version": history.pinned_version,
            "reason": reason,
            "decided_s": newest.at_s if newest is not None else 0.0,
        }

    def _band(self, tl: str, from_s: float, at_s: float) -> list[list[Any]]:
        """[begin, end, state of each signal] of the states that were shown after from_s, up to at_s."""
        place = self._feed.places[tl]
        # what was shown up to a second is part of the first step after it
        following = self._timeline.step_since(at_s)
        steps = self._timeline.steps(from_s, max(at_s, following.at_s if following is not None else at_s))
        return [
            [max(shown.begin_s, from_s), min(shown.end_s, at_s), *shown.states[place]]
            for step in steps
            for shown in step.shown
            if shown.end_s > from_s and shown.begin_s < at_s and len(shown.states) == len(self._feed.signals)
        ]

    def _queue(self, tl: str, from_s: float, at_s: float) -> list[list[float]]:
        """[second, halting vehicles] at each decision after from_s."""
        index, rows = self._index[tl], self._feed.lane_rows.get(tl, [])
        points = []
        for step in self._timeline.steps(from_s, at_s):
            if step.at_s > from_s and index in step.due:
                halting = self._moments.halting_of(step, rows)
                points += [[step.at_s, halting]] if halting is not None else []
        return points


def _decision(step: record.TlStep) -> dict[str, Any]:
    decision = step.decision
    return {
        "at_s": step.at_s,
        "observation": finite(decision.observation),
        "phases": list(decision.phases),
        "min_green_passed": decision.min_green_passed,
        "action": finite(decision.action),
        "scores": finite(decision.scores),
        "failure": decision.failure,
    }


def _states(tl_steps: Sequence[record.TlStep], at_s: float) -> dict[str, Any]:
    """The newest requested and permitted states up to a second."""
    for step in reversed(tl_steps):
        for states in reversed(step.states):
            if states.at_s <= at_s:
                return {"at_s": states.at_s, "requested": list(states.requested), "permitted": list(states.permitted)}
    return {}


def _overrides(tl_steps: Sequence[record.TlStep], from_s: float, at_s: float) -> list[dict[str, Any]]:
    """Those after from_s, up to at_s, in their order."""
    return [
        {
            "at_s": states.at_s,
            "signal": o.signal,
            "requested": o.requested,
            "permitted": o.permitted,
            "reason": _why(o.reason),
        }
        for step in tl_steps
        for states in step.states
        if from_s < states.at_s <= at_s
        for o in states.overrides
    ]


def _why(reason: int) -> str:
    name = reason_name(reason)
    return EXPLANATIONS[OverrideReason(name)] if name in list(OverrideReason) else f"reason {name}"
