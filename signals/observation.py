"""Lane readings, observers (readings to observations), sequencers (actions to states), and what they keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MIN_GAP_M = 2.5
"""sumo-rl's minimal gap: a lane's capacity is length / (gap + mean vehicle length)."""
MAX_CACHED_BATCHES = 256
"""Sets of TLs whose gather indices are kept."""

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Observation = NDArray[np.float32]
ActionValues = Sequence[float]
"""The values of an action: one index of a categorical policy, or A values in [-1, 1]."""


@dataclass
class SavedState:
    """A state that a record keeps: what later decisions depend on, beside contracts, settings and network.

    Plain values and other saved states, in fields that are named like those of protos/loop_state.proto.

    A list has an element for each link, green or signal, so its length never changes; a tuple or set may have any size.
    A dialect of the user's own need not have one: a TL without it is not replayed from the middle of a run.
    """


class PhaseState(NamedTuple):
    """The TL's own phases, as far as an observation contains them."""

    phases: tuple[int, ...]
    """By signal, the green index (sumo-rl, street) or the phase index."""
    min_green_passed: bool
    green_s: float = 0.0
    """How long the current green has been shown, s (street)."""
    since_green_s: tuple[float, ...] = ()
    """By green, the time since it was last shown, s; 0 for the current one (street)."""


class VehicleReadings(NamedTuple):
    """The vehicles on the lanes that were read for single vehicles, and the persons before crossings; arrays with one
    element each."""

    row: Rows
    """intp [n], row of the vehicle's lane in the readings."""
    position_m: Floats
    """float64 [n], of its front, from the beginning of the lane; of a person, 0 at its crossing and negative before
    it."""
    speed_mps: Floats
    """float64 [n]."""
    waiting_s: Floats
    """float64 [n], SUMO's waiting time: since it was last faster than 0.1 m/s."""


NO_VEHICLES = VehicleReadings(np.zeros(0, np.intp), np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Readings:
    """Readings of all lanes at one moment."""

    counts: Floats
    """float64 [2, lanes]: vehicles, and those of them that halt (slower than 0.1 m/s)."""
    mean_length_m: Floats
    """float64 [lanes]."""
    outflow: Floats
    """float64 [lanes]: vehicles that left the lane since the controller started."""
    by_vehicle: VehicleReadings = NO_VEHICLES
    """The vehicles on the vehicle lanes of the TLs that were read last, in the order of lanes."""

    @property
    def vehicles(self) -> Floats:
        """float64 [lanes]."""
        return self.counts[0, :]

    @property
    def halting(self) -> Floats:
        """float64 [lanes]."""
        return self.counts[1, :]


@dataclass(frozen=True)
class Shares:
    """Density and queue of all lanes as shares of capacity, in [0, 1].

    `row` is float32 [1 + 2 lanes]: a zero, all densities, all queues. Many observations
    can be gathered from it at once.
    """

    row: NDArray[np.float32]

    @property
    def density(self) -> NDArray[np.float32]:
        return self.row[1 : 1 + len(self.row) // 2]

    @property
    def queue(self) -> NDArray[np.float32]:
        return self.row[1 + len(self.row) // 2 :]


def shares_of(readings: Readings, length_m: Floats) -> Shares:
    """Compute sumo-rl's density and queue of all lanes.

    min(1, vehicles / (lane length / (2.5 + mean vehicle length))), in float64
    and in this order of operations, as `TrafficSignal.get_lanes_density`.
    """
    capacity = length_m / (MIN_GAP_M + readings.mean_length_m)
    row = np.zeros(1 + 2 * len(length_m), np.float32)
    row[1:] = np.minimum(1.0, readings.counts / capacity).ravel()
    return Shares(row)


class Observer(Protocol):
    """Builds the observations of one TL."""

    size: int

    def observe(self, readings: Readings, shares: Shares, phase_state: PhaseState) -> Observation:
        """float32 [size]."""

    def decided(self, readings: Readings) -> None:
        """Record that the observation of these readings led to a decision: volumes count from it."""
        return


class PhaseSequencer(Protocol):
    """Turns the decisions of one TL into the states that its signals should show, second by second.

    The states are only requested: the safety rules have the last word. Moments
    are rounded to the millisecond (`simulation_time`).
    """

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        """Take over from the states that are shown; `start`: at the beginning of the run."""

    def apply_action(self, now: float, action: ActionValues) -> None:
        """Start the change that the policy's action requests."""

    def requested_states(self, now: float) -> tuple[str, ...]:
        """The state that each signal should show at second `now`."""

    def note_shown(self, now: float, signal: int) -> None:
        """Record that signal number `signal` shows its requested state at second `now`: safety rules may have delayed
        it."""
        return

    def phase_state(self, now: float) -> PhaseState:
        """The TL's own phases at second `now`, for its observation."""

    def next_change_s(self, now: float) -> float:
        """When the requested states next change without a decision, in s; inf if they do not."""

    def note_asked(self, now: float) -> None:
        """Record that the policy was asked at `now`, with or without an answer: its next decision is a later one."""
        return

    def next_decision_s(self, now: float) -> float:
        """The first decision moment after `now`."""

    def decides_at(self, now: float) -> bool:
        """True if a decision may be taken at `now`; if not, an answer only shows that the policy is available."""
        return True


class ObserverGroup(Protocol):
    """Observers of one class, which are computed at once."""

    def observe(self, readings: Readings, shares: Shares, phase_states: Sequence[PhaseState]) -> list[Observation]:
        """float32 [O] of each observer, equal to what its own `observe` returns."""


class _OneByOne:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def observe(self, readings: Readings, shares: Shares, phase_states: Sequence[PhaseState]) -> list[Observation]:
        return [o.observe(readings, shares, state) for o, state in zip(self._observers, phase_states, strict=True)]


class ObservationBatch:
    """The observers of the TLs that decide at the same moment.

    A class of observers that has a static method `together`, from several observers to an ObserverGroup, is computed at
    once.
    """

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._tls = list(observers)
        by_class: dict[Any, list[int]] = {}
        for k, observer in enumerate(observers.values()):
            by_class.setdefault(getattr(type(observer), "together", _OneByOne), []).append(k)
        values = list(observers.values())
        self._groups = [(together([values[k] for k in indices]), indices) for together, indices in by_class.items()]

    def observe(self, readings: Readings, shares: Shares, phase_states: Sequence[PhaseState]) -> dict[str, Observation]:
        """float32 [O] by TL, equal to what each observer's `observe` returns. `phase_states`: in the order of the
        observers."""
        observations: dict[str, Observation] = {}
        for group, indices in self._groups:
            results = group.observe(readings, shares, [phase_states[k] for k in indices])
            observations.update(zip([self._tls[k] for k in indices], results, strict=True))
        return observations if len(self._groups) == 1 else {tl: observations[tl] for tl in self._tls}
