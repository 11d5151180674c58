"""What never changes during a run, as one gzip JSON: shapes, signals with their links, TLs with their contracts."""

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from city.network import StreetNetwork
from city.street_shapes import Polyline, StreetShapes
from city.version import VERSION
from controller.alarms import REMEDIES
from controller.operator.page.feed import Feed
from controller.operator.page.frames import MAX_SIGNALS, View
from controller.runbook import instructions
from protos import policy_pb2 as pb
from signals.fallback.control_mode import ControlMode
from signals.policy_signals import greens_of

CENTIMETRES = 100


class StreetData:
    """The static data, and where signals and lanes are."""

    def __init__(
        self,
        feed: Feed,
        street: StreetNetwork,
        shapes: StreetShapes,
        name: str,
        driver: str = "",
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare the data.

        Args:
            feed: of the run, with its lanes.
            street, shapes: of the same network file.
            name: of the city.
            driver: what decides in the place of the policies; "" for policies.
            record: what the page says of a record that it plays; None: the run is live.
        """
        self.shapes, self.driver = shapes, driver
        middles = _signal_middles(street, shapes)
        controlled = set(feed.signals)
        uncontrolled = [signal for signal in middles if signal not in controlled]
        signals = [*feed.signals, *uncontrolled]
        self.uncontrolled = dict(enumerate(uncontrolled, len(feed.signals)))
        """By index, the signals that this run does not control: those of the TLs come first."""
        self.links = [len(street.signals[signal].links) if signal in street.signals else 0 for signal in signals]
        """By index of a signal."""
        if len(signals) > MAX_SIGNALS:
            raise ValueError(f"{len(signals)} signals; a frame numbers at most {MAX_SIGNALS}")
        bounds = shapes.bounds
        outside = (bounds[0], bounds[1])
        self.signal_at = np.array([middles.get(signal, outside) for signal in signals], float).reshape(-1, 2)
        """float64 [signals, 2], in m."""
        lane_index = {lane.id: k for k, lane in enumerate(shapes.lanes)}
        shape_of = {lane.id: lane.points for lane in shapes.lanes}
        ends = [shape_of[lane][-1] if shape_of.get(lane) else outside for lane in feed.lanes]
        self.lane_end = np.array(ends, float).reshape(-1, 2)
        """float64 [lanes of the readings, 2], the stop line."""
        content = {
            "version": VERSION,
            "name": name,
            "driver": driver,
            "record": record,
            "modes": [mode.name.lower() for mode in ControlMode],
            "bounds": bounds,
            "lanes": {
                "id": [lane.id for lane in shapes.lanes],
                "width": [round(CENTIMETRES * lane.width_m) for lane in shapes.lanes],
                "crossing": [k for k, lane in enumerate(shapes.lanes) if lane.is_crossing],
                "shape": [_compact(lane.points) for lane in shapes.lanes],
            },
            "junctions": [_compact(junction.points) for junction in shapes.junctions if junction.points],
            "rows": [lane_index.get(lane, -1) for lane in feed.lanes],
            "signals": [
                {"id": signal, "at": _rounded(at), "links": _links(street, signal, lane_index)}
                for signal, at in zip(signals, self.signal_at.tolist(), strict=True)
            ],
            "controlled": len(feed.signals),
            "alarms": {name: {"remedy": REMEDIES[name], "instructions": instructions(name)} for name in REMEDIES},
            "tls": [self._tl(feed, contract) for contract in feed.contracts.values()],
        }
        self.compressed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 6, mtime=0)

    def _tl(self, feed: Feed, contract: pb.PolicyContract) -> dict[str, Any]:
        place = feed.places[contract.tl]
        return {
            "tl": contract.tl,
            "signals": list(range(place.start, place.stop)),
            "at": _rounded(self.signal_at[place].mean(0).tolist()),
            "dialect": contract.observation.dialect,
            "action": contract.action.kind,
            "scores": contract.action.scores or "probabilities",
            "features": [[f.kind, f.signal_id, f.lane_id] for f in contract.observation.features],
            "normalisation": contract.observation.normalisation,
            "greens": [greens_of(signal) for signal in contract.signals],
            "timing": MessageToDict(contract.timing, preserving_proto_field_name=True),
            "origin": MessageToDict(contract.origin, preserving_proto_field_name=True),
        }

    def signals_in(self, view: View) -> list[int]:
        """The indices of the signals in a view."""
        return [int(k) for k in np.flatnonzero(_inside(self.signal_at, view))]

    def lanes_in(self, view: View) -> Any:
        """intp [n], the rows of the readings' lanes whose stop line is in a view."""
        return np.flatnonzero(_inside(self.lane_end, view))


def _inside(points: Any, view: View) -> Any:
    x0, y0, x1, y1 = view
    return (points[:, 0] >= x0) & (points[:, 0] <= x1) & (points[:, 1] >= y0) & (points[:, 1] <= y1)


def _links(street: StreetNetwork, signal: str, lane_index: Mapping[str, int]) -> list[list[int]]:
    """By link, its incoming lanes, and for a pedestrians' link its crossing; those that have a shape."""
    links = []
    for pairs in street.signals[signal].links if signal in street.signals else ():
        lanes = dict.fromkeys(lane for pair in pairs for lane in pair[:1])
        crossings = dict.fromkeys(lane for pair in pairs for lane in pair if lane.startswith(":"))
        links.append([lane_index[lane] for lane in (crossings or lanes) if lane in lane_index])
    return links


def _signal_middles(street: StreetNetwork, shapes: StreetShapes) -> dict[str, tuple[float, float]]:
    """By signal of the network, the middle of its junctions; without them, of its stop lines."""
    at = {junction.id: (junction.x, junction.y) for junction in shapes.junctions}
    ends = {lane.id: lane.points[-1] for lane in shapes.lanes if lane.points}
    middles = {}
    for signal, network in street.signals.items():
        points = [at[name] for name in shapes.junctions_of_signal.get(signal, ()) if name in at]
        points = points or [ends[lane] for lane in network.lanes if lane in ends]
        if points:
            xs, ys = zip(*points, strict=True)
            middles[signal] = (sum(xs) / len(xs), sum(ys) / len(ys))
    return middles


def _compact(points: Polyline) -> list[int]:
    """x0, y0, and then differences, in cm."""
    values: list[int] = []
    last = (0, 0)
    for x, y in points:
        point = (round(CENTIMETRES * x), round(CENTIMETRES * y))
        values += (point[0] - last[0], point[1] - last[1])
        last = point
    return values


def _rounded(at: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in at]
