"""The protocols of a connection to SUMO, one by use: commands and steps are pipelined, readings are batched.

Each segment of a decision step is sent as soon as it is known, so that SUMO simulates it
while the next one is prepared. `traci_connection` connects to a SUMO program over a socket
(`messages`), `libsumo_connection` runs SUMO in this process, and `start` starts a program
or attaches to a running one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from city.lanes import road_of
from controller.sumo.tracked_detectors import DetectorChange, TrackedDetectors
from signals.observation import Readings, Rows, VehicleReadings
from signals.safety.signal_safety import SignalCommand

ONLINE = "online"
"""SUMO's program id of a signal with states set by a client."""
OWNER_KEY = "greenserve.controller"
"""Parameter of the simulation that names the controller of a signal; the signal's id follows. (A parameter of the
traffic light belongs to one program, and is lost as soon as a client sets a state.)"""


STANDING_MPS = 0.1
"""A slower person stands; SUMO's waiting time counts from there."""
WALKING_M = 3.0
"""Distance to its crossing of a person who walks on a walking area: SUMO does not tell how far it still is."""


class SumoConnectionLost(Exception):
    """The connection to SUMO has ended; nothing more can be sent or read."""


class CommandRejected(Exception):
    """SUMO rejected a command; the connection is still usable."""


class SimulationReplaced(CommandRejected):
    """Another client has loaded another simulation or state; the connection is still usable."""


class WaitAborted(Exception):
    """SUMO has not answered, and the operator has requested not to wait for it."""


class Interrupts(NamedTuple):
    """The operator's requests while the controller waits for SUMO."""

    abort_requested: Callable[[], bool] = lambda: False
    """Stop at once: do not wait for SUMO's answers."""
    quit_requested: Callable[[], bool] = lambda: False
    """Do not wait for SUMO to acknowledge the close either, although that ends the simulation for its other clients."""


class StepResult(NamedTuple):
    """Time, shown states and rejections since the last reading. The readings are in `readings` of the connection."""

    time_s: float
    shown: Sequence[tuple[float, Sequence[str]]]
    """By segment: its end in s and the states of the tracked signals in it, in the order of `track`.

    The last segment is not included: see `DecisionConnection.shown`.
    """
    rejected: dict[str, str]
    """SUMO's error text by signal, if it rejected the signal's command."""
    detector_changes: Sequence[DetectorChange] = ()
    """Vehicles that came onto tracked detectors or left them since the last reading, in order of time."""


class Traffic(NamedTuple):
    """Vehicles at the newest reading, for measurements rather than decisions."""

    counts: NDArray[np.int32]
    """Vehicles [lanes]."""
    speeds_mps: NDArray[np.float64]
    """Their mean speeds [lanes]; any number for an empty lane."""
    waiting: Sequence[str]
    """The first roads of the vehicles that wait to depart, in the whole network: a road for each vehicle."""


class Person(NamedTuple):
    """A person on a walking area."""

    next_edge: str
    """The crossing or road (SUMO's edge) to which it walks; "" at its destination."""
    speed_mps: float
    waiting_s: float
    """SUMO's waiting time: since it was last faster than 0.1 m/s."""

    @property
    def stands(self) -> bool:
        return self.waiting_s > 0 or self.speed_mps < STANDING_MPS


class Crossings(NamedTuple):
    """The pedestrian crossings whose persons are read."""

    areas: tuple[str, ...]
    """The walking areas at their ends; an area may lead to several crossings."""
    row: Mapping[str, int]
    """By crossing (SUMO's edge), the row of its lane in the readings."""

    def with_persons(self, vehicles: VehicleReadings, persons: Iterable[Person]) -> VehicleReadings:
        """The vehicles, and the persons whose next edge is one of the crossings, in the order of lanes."""
        columns = [
            (self.row[person.next_edge], 0.0 if person.stands else -WALKING_M, person.speed_mps, person.waiting_s)
            for person in persons
            if person.next_edge in self.row
        ]
        if not columns:
            return vehicles
        row, *values = map(np.array, zip(*columns, strict=True))
        merged = [np.concatenate(pair) for pair in zip(vehicles, (row.astype(np.intp), *values), strict=True)]
        order = np.argsort(merged[0], kind="stable")
        return VehicleReadings(*(column[order] for column in merged))


class ApiConnection(Protocol):
    """SUMO's own API, for requests at start-up or between two steps, and the end of the connection."""

    connection_error: type[Exception]
    """The exception that `api` raises after SUMO has ended."""

    @property
    def api(self) -> Any:
        """traci's connection, or libsumo."""

    def error_message(self) -> str:
        """SUMO's error text after it has ended, or ""."""

    def close(self) -> None: ...


class DecisionConnection(Protocol):
    """Commands, simulated time and readings, for decision steps."""

    @property
    def lanes(self) -> tuple[str, ...]:
        """Every tracked lane, in the order of the readings."""

    @property
    def outflow_lanes(self) -> tuple[str, ...]:
        """Those with counted outflow."""

    @property
    def readings(self) -> Readings:
        """The newest readings."""

    def set(self, commands: Sequence[SignalCommand]) -> None:
        """Send commands before the next `advance`, without waiting for SUMO if possible. Raises SumoConnectionLost."""

    def advance(self, until_s: float) -> None:
        """Simulate a segment to second until_s, without waiting for SUMO if possible. Raises SumoConnectionLost."""

    def read(self, due: tuple[str, ...]) -> StepResult:
        """Wait until all segments are simulated, and read the lanes of the TLs that are due.

        Raises SumoConnectionLost, WaitAborted, or CommandRejected if SUMO rejects
        a step or a getter. Rejected signal commands are part of the result.
        """

    def shown(self) -> dict[str, str]:
        """The states of the tracked signals at the newest reading, in the order of `track`.

        SUMO sends them after the lanes, so that decisions need not wait for them. Raises the
        exceptions of `read`.
        """

    def programs(self, signals: Sequence[str]) -> dict[str, str]:
        """Request the programs that signals run, between a reading and the next commands. Raises the exceptions of
        `read`."""

    def switch_program(self, signal: str, program: str) -> None:
        """Hand a signal back at once, after the last step. Raises CommandRejected, SumoConnectionLost."""


class LanesToRead(NamedTuple):
    """Lanes that a connection reads for the TLs."""

    lanes_of: Mapping[str, Sequence[str]] = {}
    """By TL, the lanes whose counts are read when it is due."""
    outflow_lanes: Sequence[str] = ()
    """Lanes with outflow to count at every step."""
    vehicle_lanes_of: Mapping[str, Sequence[str]] = {}
    """By TL, the lanes whose single vehicles are read when it is due, and the crossings whose persons are."""
    walking_areas_of: Mapping[str, Sequence[str]] = {}
    """By crossing, the walking areas (SUMO's edges) on which its persons stand."""


class TrackingConnection(DecisionConnection, Protocol):
    """A connection whose lanes and signals are still to be chosen."""

    def track(self, lanes: LanesToRead, signals: Mapping[str, int]) -> None:
        """Set the lanes and signals to read. `signals`: number of links by signal."""


class StartConnection(TrackingConnection, ApiConnection, Protocol):
    """All that the start of a run needs, up to its first decision step."""

    def mark_controlled(self, signals: Sequence[str], owner: str) -> None:
        """Mark signals as controlled by `owner` until this connection is closed; "" removes marks. Raises
        SumoConnectionLost."""


class DetectorConnection(Protocol):
    """Induction loops (E1) that are read after every step of SUMO."""

    def detector_parameters(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By detector that SUMO has loaded, its parameters of these keys, "" without one. Not for decisions."""

    def track_detectors(self, detectors: Sequence[str], sumo_step_s: float) -> None:
        """Read the vehicles on detectors now, and from now on after every step of SUMO.

        Raises the exceptions of `read`.
        """


class TrafficConnection(Protocol):
    """Measurements of traffic between a reading and the next commands."""

    def traffic(self, lanes: tuple[str, ...]) -> Traffic:
        """Read lanes, and the vehicles that wait to depart. Raises the exceptions of `read`."""

    def halting(self, lanes: tuple[str, ...]) -> NDArray[np.int32]:
        """Read the number of vehicles slower than 0.1 m/s [lanes]. Raises the exceptions of `read`."""

    def persons(self, walking_areas: Sequence[str]) -> Sequence[Person]:
        """Read the persons on walking areas (SUMO's edges). Raises the exceptions of `read`."""


class ViewConnection(Protocol):
    """Vehicles and signals of the running street, for a picture between a reading and the next commands."""

    def shown(self) -> dict[str, str]:
        """See `DecisionConnection.shown`."""

    def vehicles_near(self, junction: str, radius_m: float) -> NDArray[np.float64]:
        """Read all vehicles around a junction: float64 [vehicles, 4].

        The columns: x and y of the front in m, angle in degrees (0 is north, clockwise), speed in m/s. libsumo may
        return vehicles further away. Raises the exceptions of `read`.
        """

    def signal_states(self, links_of: Mapping[str, int]) -> list[str]:
        """Request the states of signals, which need not be tracked. `links_of`: number of links by signal.

        Raises the exceptions of `read`.
        """


class OperatedConnection(ViewConnection, Protocol):
    """Signs of life, for a run that waits between two steps for its pace or an operator."""

    def keep_alive(self) -> None:
        """Show the connection's guard, if any, that this process is alive. Raises SumoConnectionLost, WaitAborted."""

    def check_open(self) -> None:
        """Notice the end of SUMO. Raises SumoConnectionLost, WaitAborted."""


class ReleaseConnection(Protocol):
    """The last resorts of a release, beside its decision steps."""

    @property
    def is_guarded(self) -> bool:
        """True if a guard has the handover plans, and hands the signals back safely when this connection closes."""

    def abandon(self, programs: Sequence[tuple[str, str]]) -> None:
        """Request (signal, program) switches and close, without waiting for answers to earlier requests."""


class SumoConnection(
    StartConnection, DetectorConnection, TrafficConnection, OperatedConnection, ReleaseConnection, Protocol
):
    """A whole connection, for the program that opens it; each part of the program takes the part that it needs."""

    def register_handover(self, content: bytes) -> None:
        """Send the handover plans to the connection's guard, if any, before the first reading. Raises
        SumoConnectionLost."""


class TrackedLanes:
    """The rows of lanes in the readings, the count of vehicles that left them, and the newest readings."""

    lanes: tuple[str, ...] = ()
    outflow_lanes: tuple[str, ...] = ()

    def track_lanes(self, to_read: LanesToRead) -> None:
        self.lanes_of, self.vehicle_lanes_of = to_read.lanes_of, to_read.vehicle_lanes_of
        self.walking_areas_of = to_read.walking_areas_of
        # SUMO looks each lane up in a sorted tree: in this order, neighbours share most of the path
        self.lanes = tuple(
            sorted({lane for of in (self.lanes_of, self.vehicle_lanes_of) for lanes in of.values() for lane in lanes})
        )
        self.row = {lane: i for i, lane in enumerate(self.lanes)}
        self.outflow_lanes = tuple(to_read.outflow_lanes)
        self._on_lane: dict[str, frozenset[str]] = dict.fromkeys(self.outflow_lanes, frozenset())
        size = len(self.lanes)
        self.readings = Readings(np.zeros((2, size)), np.zeros(size), np.zeros(size))

    def rows_of(self, tls: Sequence[str]) -> tuple[list[str], slice | Rows]:
        """The lanes of TLs and their rows in the readings, as a slice if they are contiguous."""
        rows = sorted({self.row[lane] for tl in tls for lane in self.lanes_of[tl]})
        names = [self.lanes[k] for k in rows]
        if rows and rows[-1] - rows[0] == len(rows) - 1:
            return names, slice(rows[0], rows[-1] + 1)
        return names, np.array(rows, np.intp)

    def vehicle_rows_of(self, tls: Sequence[str]) -> tuple[list[str], Rows]:
        """The vehicle lanes of TLs, without crossings, and their rows in the readings."""
        lanes = {lane for tl in tls for lane in self.vehicle_lanes_of.get(tl, ())} - self.walking_areas_of.keys()
        rows = sorted(self.row[lane] for lane in lanes)
        return [self.lanes[k] for k in rows], np.array(rows, np.intp)

    def crossings_of(self, tls: Sequence[str]) -> Crossings:
        """The crossings of TLs."""
        lanes = sorted(
            {lane for tl in tls for lane in self.vehicle_lanes_of.get(tl, ())} & self.walking_areas_of.keys()
        )
        areas = dict.fromkeys(area for lane in lanes for area in self.walking_areas_of[lane])
        return Crossings(tuple(areas), {road_of(lane): self.row[lane] for lane in lanes})

    def set_vehicles(self, vehicles: VehicleReadings) -> None:
        """Replace the single vehicles of the readings; the arrays by lane stay the same."""
        if vehicles is not self.readings.by_vehicle:
            self.readings = replace(self.readings, by_vehicle=vehicles)

    def count_outflow(self, lane: str, vehicles: Sequence[str]) -> None:
        """Count the vehicles that are no longer on the lane."""
        present = frozenset(vehicles)
        self.readings.outflow[self.row[lane]] += len(self._on_lane[lane] - present)
        self._on_lane[lane] = present


class StepCollector(TrackedLanes):
    """States and rejections that a connection collects for its next StepResult."""

    def __init__(self) -> None:
        self._signals: tuple[str, ...] = ()
        self._shown: dict[str, str] = {}
        self._segment_end_s: float | None = None
        """End of the newest segment since the last reading."""
        self._shown_before: list[tuple[float, Sequence[str]]] = []
        """By segment since the last reading without the last one: its end in s, and the states in it."""
        self._rejected: dict[str, str] = {}
        self._detectors = TrackedDetectors((), 0.0, 1.0)

    def _take_result(self, time_s: float) -> StepResult:
        """The result of a reading; the next one begins empty."""
        result = StepResult(time_s, self._shown_before, self._rejected, self._detectors.take_changes())
        self._shown_before, self._rejected = [], {}
        return result
