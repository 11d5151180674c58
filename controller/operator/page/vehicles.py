"""When vehicles are read for the page, and which: only while somebody watches, and within a share of the wall time."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from city.street_shapes import JunctionShape
from controller.operator.page.feed import Feed
from controller.operator.page.frames import Vehicles, View

COLLECT_SHARE = 0.03
"""Of the wall time, what reading vehicles takes at most."""
MIN_INTERVAL_S = 0.1
"""Wall time between two readings, at least."""


class VehicleSource(Protocol):
    """The part of a connection to SUMO that reads vehicles."""

    def vehicles_near(self, junction: str, radius_m: float) -> NDArray[np.float64]: ...


class VehicleCollector:
    """Reads the vehicles in view between two decision steps."""

    def __init__(self, feed: Feed, junctions: Sequence[JunctionShape], clock: Callable[[], float] = time.monotonic) -> None:
        self._feed, self._clock = feed, clock
        self._names = [junction.id for junction in junctions]
        self._at = np.array([(junction.x, junction.y) for junction in junctions]).reshape(-1, 2)
        self._next_s = 0.0
        self._read: tuple[float, View] | None = None
        """(simulated second, view) of the newest reading."""
        self.took_s = 0.0
        """Wall time of the newest reading."""
        self.interval_s = MIN_INTERVAL_S
        """Wall time to the next one."""

    def collect(self, source: VehicleSource, now: float) -> bool:
        """Read vehicles if that is due; return whether they were read. Called by the decision loop's thread.

        Raises the exceptions of `SumoConnection.read`.
        """
        view = self._feed.wanted_view
        if view is None or not self._names or (now, view) == self._read:
            return False
        begin = self._clock()
        if begin < self._next_s:
            return False
        junction, radius_m = self._circle(view)
        values = source.vehicles_near(junction, radius_m).astype(np.float32)
        self._feed.set_vehicles(now, Vehicles(*np.ascontiguousarray(values.T)))
        self._read = now, view
        self.took_s = self._clock() - begin
        self.interval_s = max(MIN_INTERVAL_S, self.took_s / COLLECT_SHARE)
        self._next_s = begin + self.interval_s
        return True

    def _circle(self, view: View) -> tuple[str, float]:
        """The circle around a view: the junction that is nearest to its middle, and the radius in m."""
        x0, y0, x1, y1 = view
        middle = np.array([(x0 + x1) / 2, (y0 + y1) / 2])
        nearest = int(np.argmin(((self._at - middle) ** 2).sum(1)))
        corners = np.array([(x0, y0), (x0, y1), (x1, y0), (x1, y1)])
        return self._names[nearest], float(np.sqrt(((corners - self._at[nearest]) ** 2).sum(1).max()))
