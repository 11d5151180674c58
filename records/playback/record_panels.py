"""The page's panels at one second of a record: a TL's messages, and the run as a whole."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from controller.operator.page import panels
from controller.operator.page.panels import TlHistory
from controller.operator.run_state import HISTORY_S
from controller.operator.tl_layout import TlLayout
from controller.telemetry.traffic import RecentTraffic
from protos import record_pb2 as record
from records.playback.moments import LOOK_BACK_S, Moment, MomentReader
from records.playback.overview import Overview
from records.record_reader import wall_text
from signals.fallback.control_mode import ControlMode

BAND_S = 180.0
"""Simulated time of signal states that a TL's panel begins with."""
MAX_HISTORY_BYTES = 16 << 20
"""Chunks, as they are on the disk, that a TL's panel begins with: a large city's history is shorter."""
NO_MANIFESTS = {
    "manifest": None,
    "why": "a record has the contracts with which the run began, and no manifests",
}


class RecordPanels:
    """Makes panels of a run. Used by one thread at a time."""

    def __init__(self, moments: MomentReader, overview: Overview, layout: TlLayout, driver: str) -> None:
        """Prepare the panels.

        Args:
            moments, overview: of the run.
            layout: of its TLs and lanes.
            driver: what decided in the place of the policies.
        """
        self._moments = moments
        self._overview = overview
        self._layout = layout
        self._driver = driver
        self._timeline = moments.timeline

    def city(self, moment: Moment) -> dict[str, Any]:
        """The run as a whole. What a record does not have is None."""
        at_s, overview = moment.at_s, self._overview
        run = {"second": at_s, "late_steps": None, "lost_s": None}  # a record has no lateness
        return {
            **panels.city_panel(run, overview.figures(at_s), overview.alarms(at_s), overview.commands(at_s)),
            **overview.progress(at_s),
            "traffic": panels.traffic(list(self._layout.contracts), self._traffic(moment)),
            "has_ended": False,
            "collect_ms": None,
            "wall": wall_text(moment.wall_ns) if moment.wall_ns else "",
            "hole": moment.hole,
            "damage": str(self._timeline.losses),
        }

    def _traffic(self, moment: Moment) -> RecentTraffic:
        """The traffic at a second, without that of the time before, for which all steps would be read."""
        by_tl = [moment.counts[:, rows].sum(1) for rows in self._layout.lane_rows.values()]
        vehicles, halting = np.array(by_tl).reshape(-1, 2).T
        return RecentTraffic(vehicles, halting, np.full(len(by_tl), np.nan), np.nan, np.nan, 0.0)

    def tl(self, tl: str, moment: Moment, since_s: float | None) -> dict[str, Any]:
        """A TL's panel.

        Args:
            tl: its name.
            moment: the second that is shown.
            since_s: the second up to which the browser has the panel, so that lists have what follows; None: it has
                nothing of it.
        """
        at_s = moment.at_s
        begin_s = self._timeline.history_s(at_s, HISTORY_S, MAX_HISTORY_BYTES)
        after_s = begin_s if since_s is None else since_s
        band_from_s = max(at_s - BAND_S, begin_s) if since_s is None else since_s
        # the newest decision is looked for before the span, too
        steps = self._timeline.tl_steps(tl, min(after_s, max(begin_s, at_s - LOOK_BACK_S)), at_s)
        history = TlHistory(
            steps, self._band(tl, band_from_s, at_s), self._queue(tl, after_s, at_s), after_s, at_s
        )  # fmt: skip
        now = self._now(tl, moment, steps)
        contract = self._layout.contracts[tl]
        return {
            **panels.tl_panel(contract, self._layout.names, history, now, self._driver, since_s is None),
            "export": NO_MANIFESTS,
        }

    def _now(self, tl: str, moment: Moment, steps: Sequence[record.TlStep]) -> dict[str, Any]:
        """A TL's control mode, and its newest decision. `steps`: up to the second that is shown."""
        decided = [k for k, step in enumerate(steps) if step.HasField("decision")]
        newest = steps[decided[-1]] if decided else record.TlStep()
        since = steps[decided[-1] :] if decided else []
        overridden = panels.overrides(
            (states for step in since for states in step.states if states.at_s <= moment.at_s), self._layout.names
        )
        override = f"{overridden[-1]['signal']}: {overridden[-1]['text']}" if overridden else ""
        return {
            "mode": ControlMode(moment.modes[self._layout.index[tl]]).name.lower(),
            **self._overview.tl(tl, moment.at_s),
            "until_s": 0.0,
            "model": newest.decision.model,
            "version": newest.decision.version,
            "reason": newest.decision.failure or override,
            "decided_s": newest.at_s,
        }

    def _band(self, tl: str, from_s: float, at_s: float) -> list[list[Any]]:
        """[begin, end, state of each signal] of the states that were shown after from_s, up to at_s."""
        place, signals = self._layout.places[tl], len(self._layout.signals)
        # what was shown up to a second is part of the first step after it
        following = self._timeline.step_since(at_s)
        steps = self._timeline.steps(from_s, max(at_s, following.at_s if following is not None else at_s))
        band = []
        for shown in (shown for step in steps for shown in step.shown):
            if shown.end_s > from_s and shown.begin_s < at_s and len(shown.states) == signals:
                band.append([max(shown.begin_s, from_s), min(shown.end_s, at_s), *shown.states[place]])
        return band

    def _queue(self, tl: str, from_s: float, at_s: float) -> list[list[float]]:
        """[second, halting vehicles] at each decision after from_s."""
        index, rows = self._layout.index[tl], self._layout.lane_rows[tl]
        points: list[list[float]] = []
        for step in self._timeline.steps(from_s, at_s):
            if step.at_s > from_s and index in step.due:
                halting = self._moments.halting_of(step, rows)
                points += [[step.at_s, halting]] if halting is not None else []
        return points
