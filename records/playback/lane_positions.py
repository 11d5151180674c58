"""Where recorded vehicles are on the map: their positions along lanes as points."""

from collections.abc import Mapping, Sequence

import numpy as np

from city.street_shapes import StreetShapes
from controller.operator.page.frames import NO_VEHICLES, Vehicles
from signals.observation import Floats, Rows

MIN_POINTS = 2
"""A lane of fewer points has no direction."""


class _Line:
    """A lane's line, by the distance from its beginning."""

    def __init__(self, points: Sequence[tuple[float, float]], length_m: float) -> None:
        self.at = np.array(points, float)
        steps = np.diff(self.at, axis=0)
        drawn_m = np.concatenate(([0.0], np.hypot(steps[:, 0], steps[:, 1]).cumsum()))
        # a lane's length may differ from that of its shape
        self.distance_m: Floats = drawn_m * (length_m / drawn_m[-1] if drawn_m[-1] > 0 and length_m > 0 else 1.0)
        self.angle_deg: Floats = np.degrees(np.arctan2(steps[:, 0], steps[:, 1])) % 360


class LanePositions:
    """The lines of the lanes of readings."""

    def __init__(self, shapes: StreetShapes, lanes: Sequence[str], length_m: Mapping[str, float]) -> None:
        """`lanes`: of the readings, in their order. `length_m`: by lane, as SUMO counts it."""
        # persons stand before a crossing, not on it
        points = {lane.id: lane.points for lane in shapes.lanes if not lane.is_crossing}
        self._lines = [
            _Line(points[lane], length_m.get(lane, 0.0)) if len(points.get(lane, ())) >= MIN_POINTS else None
            for lane in lanes
        ]

    def at(self, row: Rows, position_m: Floats, speed_mps: Floats) -> Vehicles:
        """Vehicles on the map, by the row of their lane; those on lanes without a shape are left out."""
        parts = []
        for lane in np.unique(row):
            line = self._lines[lane]
            if line is None:
                continue
            on_lane = row == lane
            at_m = position_m[on_lane]
            x = np.interp(at_m, line.distance_m, line.at[:, 0])
            y = np.interp(at_m, line.distance_m, line.at[:, 1])
            segment = (np.searchsorted(line.distance_m, at_m, "right") - 1).clip(0, len(line.angle_deg) - 1)
            parts.append((x, y, line.angle_deg[segment], speed_mps[on_lane]))
        if not parts:
            return NO_VEHICLES
        return Vehicles(*(np.concatenate(column).astype(np.float32) for column in zip(*parts, strict=True)))
