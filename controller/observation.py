"""What a policy sees: lane readings turned into the observation of its dialect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2 as pb

MIN_GAP_M = 2.5
"""sumo-rl's minimal gap: a lane's capacity is length / (gap + mean vehicle length)."""
EPSILON = float(np.finfo(float).eps)

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Observation = NDArray[np.float32]
Clockwork = tuple[tuple[int, ...], bool]
"""(phases, whether min green has passed)."""


@dataclass(frozen=True)
class Readings:
    """Readings of all lanes at one moment."""

    counts: Floats
    """float64 [2, lanes]: vehicles, and of these the halting ones, slower than 0.1 m/s."""
    mean_length_m: Floats
    """float64 [lanes]."""
    left_total: Floats
    """float64 [lanes]: vehicles that left the lane since the controller started."""

    @property
    def vehicles(self) -> Floats:
        """float64 [lanes]."""
        vehicles: Floats = self.counts[0]
        return vehicles

    @property
    def halting(self) -> Floats:
        """float64 [lanes]."""
        halting: Floats = self.counts[1]
        return halting


@dataclass(frozen=True)
class Shares:
    """Density and queue of all lanes as shares of capacity, in [0, 1].

    One row, so that many observations can be gathered from it at once:
    float32 [1 + 2 lanes], a zero, all densities, all queues.
    """

    row: Observation

    @property
    def density(self) -> Observation:
        return self.row[1 : 1 + len(self.row) // 2]

    @property
    def queue(self) -> Observation:
        return self.row[1 + len(self.row) // 2 :]


def shares(readings: Readings, length_m: Floats) -> Shares:
    """sumo-rl's lane density and queue, all lanes at once.

    min(1, vehicles / (lane length / (2.5 + mean vehicle length))), in float64
    and in this order of operations, as `TrafficSignal.get_lanes_density`.
    """
    capacity = length_m / (MIN_GAP_M + readings.mean_length_m)
    row = np.zeros(1 + 2 * len(length_m), np.float32)
    row[1:] = np.minimum(1.0, readings.counts / capacity).ravel()
    return Shares(row)


class Observer(Protocol):
    size: int

    def observe(self, readings: Readings, shared: Shares, phases: tuple[int, ...], min_green_passed: bool) -> Observation:
        """float32 [size]. `phases`: green index (sumo-rl) or phase index, by signal."""

    def decided(self) -> None:
        """A decision was taken on what was observed last: volumes count from there."""


class SumoRlObserver:
    """[one-hot of the green phase | min_green bit | density per lane | queue per lane]."""

    def __init__(self, rows: Rows, lanes: int, greens: int) -> None:
        """`rows`: of its lanes among all `lanes` that are read."""
        self._greens = greens
        self.places: Rows = np.concatenate([np.zeros(greens + 1, np.intp), 1 + rows, 1 + lanes + rows])
        """[size], where in `Shares.row` each number stands; those that are marked stand at the zero."""
        self.size = len(self.places)

    def observe(self, readings: Readings, shared: Shares, phases: tuple[int, ...], min_green_passed: bool) -> Observation:
        out = shared.row[self.places]
        self.mark(out, phases, min_green_passed)
        return out

    def mark(self, out: Observation, phases: tuple[int, ...], min_green_passed: bool) -> None:
        """Write what the lanes do not tell into an observation."""
        out[phases[0]] = 1.0
        out[self._greens] = min_green_passed

    def decided(self) -> None:
        """Nothing here counts since the last decision."""


class SappoObserver:
    """Lane blocks of `d`, `v`, `vd` or `vdd`, then the phase of every signal.

    Density is vehicles per metre; volume counts vehicles that left the lane
    since the last decision. Each block is (block + eps) / its maximum.
    """

    def __init__(self, state: str, rows: Rows, length_m: Floats, phase_counts: tuple[int, ...]) -> None:
        self._state = state
        self._rows = rows
        self._length_m = length_m[rows]
        self._phase_scale = max(max(phase_counts) - 1, 1)
        self._left_before: Floats | None = None
        self._left_now: Floats | None = None
        blocks = 2 if state == "vd" else 1
        self.size = blocks * len(rows) + len(phase_counts)

    def observe(self, readings: Readings, shared: Shares, phases: tuple[int, ...], min_green_passed: bool) -> Observation:
        density = readings.vehicles[self._rows] / self._length_m
        left = readings.left_total[self._rows]
        volume = left - (left if self._left_before is None else self._left_before)
        self._left_now = left
        blocks = {
            "d": (density,),
            "v": (volume,),
            "vd": (density, volume),
            "vdd": (volume / (density + EPSILON),),
        }[self._state]
        phase = np.array(phases, np.float64) / self._phase_scale
        return np.concatenate([*map(_by_maximum, blocks), phase]).astype(np.float32)

    def decided(self) -> None:
        self._left_before = self._left_now


def _by_maximum(block: Floats) -> Floats:
    raised = block + EPSILON
    scaled: Floats = raised / raised.max()
    return scaled


class ObservationBatch:
    """The observers of the TLs that decide at the same moment: one look at the lanes serves all of them."""

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._observers = dict(observers)
        gathered = [one for one in self._observers.values() if isinstance(one, SumoRlObserver)]
        self._places = np.concatenate([np.zeros(0, np.intp), *(one.places for one in gathered)])
        ends = np.cumsum([one.size for one in gathered]).tolist()
        self._parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def observe(self, readings: Readings, shared: Shares, clockworks: Sequence[Clockwork]) -> dict[str, Observation]:
        """float32 [O] by TL, as each observer's own `observe` gives it. `clockworks`: in the order of the observers."""
        row = shared.row[self._places]
        parts = iter(self._parts)
        observations = {}
        for (tl, one), (phases, min_green_passed) in zip(self._observers.items(), clockworks, strict=True):
            if isinstance(one, SumoRlObserver):
                observation = observations[tl] = row[next(parts)]
                one.mark(observation, phases, min_green_passed)
            else:
                observations[tl] = one.observe(readings, shared, phases, min_green_passed)
        return observations


def observer(policy: pb.Policy, lane_row: dict[str, int], length_m: Floats, greens: int) -> Observer:
    """The observer of a contract; `lane_row` finds a lane in the readings."""
    rows = np.array([lane_row[lane] for signal in policy.signals for lane in signal.lane_ids], np.intp)
    if policy.observation.dialect == "sumo-rl":
        return SumoRlObserver(rows, len(lane_row), greens)
    counts = tuple(len(signal.phases) for signal in policy.signals)
    return SappoObserver(policy.observation.state, rows, length_m, counts)
