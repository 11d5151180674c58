"""Reads from SUMO what the page alone needs: only while there is a watcher, and within a share of the wall time.

These are the vehicles in view, and the states of uncontrolled signals in view.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from controller.operator.page.frames import NO_VEHICLES, Vehicles, View
from controller.operator.page.street_data import StreetData
from controller.sumo.connection import CommandRejected, ViewConnection

log = logging.getLogger("controller")

COLLECT_SHARE = 0.03
"""Share of the wall time that reading takes at most."""
MIN_INTERVAL_S = 0.1
"""Wall time between two readings, at least."""


class Collected(NamedTuple):
    """Vehicles and states that were read from SUMO for the watchers."""

    number: int
    """Counts readings."""
    vehicles: Vehicles
    states: Mapping[int, str]
    """By index of the page, states of uncontrolled signals."""


class Collector:
    """Reads what is in view between two decision steps."""

    def __init__(
        self, street: StreetData, known: Collection[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the first reading.

        Args:
            street: has the junctions, and the signals that this run does not control.
            known: the signals that SUMO has.
            clock: wall time in s.
        """
        self._street, self._clock = street, clock
        self.wanted_view: View | None = None
        """The part of the map that watchers see, set by the page's thread; None: there is no watcher."""
        self.collected = Collected(0, NO_VEHICLES, {})
        """Replaced by the thread of the decision loop, never changed."""
        junctions = street.shapes.junctions
        self._names = [junction.id for junction in junctions]
        self._at = np.array([(junction.x, junction.y) for junction in junctions]).reshape(-1, 2)
        self._uncontrolled = {k: signal for k, signal in street.uncontrolled.items() if signal in known}
        """By index of the page."""
        self._next_s = 0.0
        self._read: tuple[float, View] | None = None
        """(simulated second, view) of the newest reading."""
        self._is_rejected = False
        """Set once SUMO has rejected a request: then nothing more is read."""
        self.took_s = 0.0
        """Wall time of the newest reading."""
        self.interval_s = MIN_INTERVAL_S
        """Wall time to the next one."""

    def collect(self, connection: ViewConnection, now: float) -> bool:
        """Read what is in view if that is due; return whether it was read. Called by the decision loop's thread.

        A rejection ends the reading and not the run. Raises SumoConnectionLost, WaitAborted, and CommandRejected if
        SUMO has rejected an earlier request of the run.
        """
        view = self.wanted_view
        if view is None or not self._names or self._is_rejected or (now, view) == self._read:
            return False
        begin = self._clock()
        if begin < self._next_s:
            return False
        junction, radius_m = self._circle(view)
        connection.shown()  # receives the answer that is due first: its rejection is not one of the page's
        try:
            values = connection.vehicles_near(junction, radius_m).astype(np.float32)
            states = self._states(connection, view)
        except CommandRejected as error:
            self._is_rejected = True
            log.warning("second %g: the live page no longer reads vehicles and uncontrolled signals: %s", now, error)
            return True
        self.collected = Collected(self.collected.number + 1, Vehicles(*np.ascontiguousarray(values.T)), states)
        self._read = now, view
        self.took_s = self._clock() - begin
        self.interval_s = max(MIN_INTERVAL_S, self.took_s / COLLECT_SHARE)
        self._next_s = begin + self.interval_s
        return True

    def _states(self, connection: ViewConnection, view: View) -> dict[int, str]:
        """By index, the states of uncontrolled signals in view."""
        wanted = [k for k in self._street.signals_in(view) if k in self._uncontrolled]
        links_of = {self._uncontrolled[k]: self._street.links[k] for k in wanted}
        return dict(zip(wanted, connection.signal_states(links_of), strict=True)) if wanted else {}

    def _circle(self, view: View) -> tuple[str, float]:
        """The circle around a view: the junction that is nearest to its middle, and the radius in m."""
        x0, y0, x1, y1 = view
        middle = np.array([(x0 + x1) / 2, (y0 + y1) / 2])
        nearest = int(np.argmin(((self._at - middle) ** 2).sum(1)))
        corners = np.array([(x0, y0), (x0, y1), (x1, y0), (x1, y1)])
        return self._names[nearest], float(np.sqrt(((corners - self._at[nearest]) ** 2).sum(1).max()))
