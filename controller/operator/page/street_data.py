"""The data that never change during a run, as one gzip JSON: shapes, signals with their links, TLs with contracts."""

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from city.lanes import is_internal
from city.network import StreetNetwork
from city.street_shapes import Polyline, StreetShapes
from city.version import VERSION
from controller.alarms import KINDS, instructions
from controller.operator.page.frames import MAX_SIGNALS, View
from controller.operator.tl_layout import TlLayout
from protos import policy_pb2 as pb
from signals.fallback.control_mode import ControlMode
from signals.movement_names import MovementNames
from signals.policy_signals import greens_of

CENTIMETRES = 100


class StreetData:
    """The static data, and where signals and lanes are."""

    def __init__(
        self,
        layout: TlLayout,
        street: StreetNetwork,
        shapes: StreetShapes,
        name: str,
        driver: str = "",
        record: Mapping[str, Any] | None = None,
        server: str = "",
        if_lost: str = "",
    ) -> None:
        """Prepare the data.

        Args:
            layout: of the run, with its lanes.
            street, shapes: of the same network file.
            name: of the city.
            driver: what decides in the place of the policies; "" for policies.
            record: what the page says of a record that it plays; None: the run is live.
            server: the model server's address; "": none, or not known.
            if_lost: what the signals do if the controller ends without releasing them.
        """
        self.layout = layout
        self.shapes = shapes
        self.driver = driver
        outside = shapes.bounds[:2]
        ends = {lane.id: lane.points[-1] for lane in shapes.lanes if lane.points}
        middles = _signal_middles(street, shapes, ends)
        uncontrolled = [signal for signal in middles if signal not in layout.tl_of_signal]
        signals = [*layout.signals, *uncontrolled]
        if len(signals) > MAX_SIGNALS:
            raise ValueError(f"{len(signals)} signals; a frame numbers at most {MAX_SIGNALS}")
        self.uncontrolled = dict(enumerate(uncontrolled, len(layout.signals)))
        """By index, the signals that this run does not control: those of the TLs come first."""
        links_of = {signal: network.links for signal, network in street.signals.items()}
        self.links = [len(links_of.get(signal, ())) for signal in signals]
        """By index of a signal."""
        self.signal_at = np.array([middles.get(signal, outside) for signal in signals], float).reshape(-1, 2)
        """float64 [signals, 2], in m."""
        self.lane_end = np.array([ends.get(lane, outside) for lane in layout.lanes], float).reshape(-1, 2)
        """float64 [lanes of the readings, 2], the stop line."""
        lane_index = {lane.id: k for k, lane in enumerate(shapes.lanes)}
        content = {
            "version": VERSION,
            "name": name,
            "driver": driver,
            "record": record,
            "if_lost": if_lost,
            "modes": [mode.name.lower() for mode in ControlMode],
            **_map(shapes),
            "rows": [lane_index.get(lane, -1) for lane in layout.lanes],
            "signals": [
                {
                    "id": signal,
                    "at": _rounded(at),
                    "links": _links(links_of.get(signal, ()), lane_index),
                    "movements": [
                        {"name": group.name, "kind": group.kind, "heading_deg": group.heading_deg, "links": group.links}
                        for group in layout.names.get(signal, MovementNames()).groups
                    ],
                }
                for signal, at in zip(signals, self.signal_at.tolist(), strict=True)
            ],
            "controlled": len(layout.signals),
            "alarms": {name: instructions(name, server) for name in KINDS},
            "tls": [self._tl(contract) for contract in layout.contracts.values()],
        }
        self.compressed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 6, mtime=0)

    def _tl(self, contract: pb.PolicyContract) -> dict[str, Any]:
        place = self.layout.places[contract.tl]
        return {
            "tl": contract.tl,
            "signals": list(range(place.start, place.stop)),
            "at": _rounded(self.signal_at[place].mean(0).tolist()),
            "dialect": contract.observation.dialect,
            "action": contract.action.kind,
            "scores": contract.action.scores or "probabilities",
            "features": [[f.kind, f.signal_id, f.lane_id] for f in contract.observation.features],
            "lane_names": dict(
                pair
                for signal in contract.signal_ids
                for pair in self.layout.names.get(signal, MovementNames()).lane_names.items()
            ),
            "normalisation": contract.observation.normalisation,
            "greens": [greens_of(signal) for signal in contract.signals],
            "green_names": [
                self.layout.names.get(signal.id, MovementNames()).of_states(greens_of(signal))
                for signal in contract.signals
            ],
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


def _map(shapes: StreetShapes) -> dict[str, Any]:
    return {
        "bounds": shapes.bounds,
        "lanes": {
            "id": [lane.id for lane in shapes.lanes],
            "width": [round(CENTIMETRES * lane.width_m) for lane in shapes.lanes],
            "crossing": [k for k, lane in enumerate(shapes.lanes) if lane.is_crossing],
            "shape": [_compact(lane.points) for lane in shapes.lanes],
        },
        "junctions": [_compact(junction.points) for junction in shapes.junctions if junction.points],
    }


def _links(links: Sequence[Sequence[tuple[str, str]]], lane_index: Mapping[str, int]) -> list[list[int]]:
    """By link, its incoming lanes, and for a pedestrians' link its crossing; those that have a shape."""
    drawn = []
    for pairs in links:
        incoming = [lane for lane, _ in pairs]
        crossings = [lane for pair in pairs for lane in pair if is_internal(lane)]
        drawn.append([lane_index[lane] for lane in dict.fromkeys(crossings or incoming) if lane in lane_index])
    return drawn


def _signal_middles(
    street: StreetNetwork, shapes: StreetShapes, ends: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """By signal of the network, the middle of its junctions; without them, of its stop lines (`ends` of lanes)."""
    at = {junction.id: (junction.x, junction.y) for junction in shapes.junctions}
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
