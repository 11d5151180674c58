"""SUMO in this process, with the controller as its only client."""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from controller.sumo.connection import (
    CommandRejected,
    Crossings,
    LanesToRead,
    Person,
    StepCollector,
    StepResult,
    SumoConnectionLost,
    Traffic,
)
from controller.sumo.programs import sumo_program
from controller.sumo.tracked_detectors import DetectorVehicle, TrackedDetectors
from signals.observation import MAX_CACHED_BATCHES, NO_VEHICLES, Rows, VehicleReadings
from signals.safety.signal_safety import PermittedRelease, PermittedState, SignalCommand

REPORT_OPTIONS = ("--verbose", "--duration-log.statistics")
"""SUMO's options that print progress and statistics."""
HALTING_MPS = 0.1
"""SUMO's waiting time of a faster vehicle is 0."""


class SimulationRunning(InputError):
    """A simulation runs over libsumo in this process, which has one at a time."""


class LibsumoConnection(StepCollector):
    """A connection over libsumo."""

    is_guarded = False

    def __init__(self, api: Any) -> None:
        super().__init__()
        self.api = api
        self.connection_error = api.FatalTraCIError
        self._rows_of = functools.lru_cache(MAX_CACHED_BATCHES)(self._new_rows)
        self._on_outflow_lanes: list[list[Sequence[str]]] = []
        """By segment since the last reading, the vehicles on each lane with counted outflow."""

    def track(self, lanes: LanesToRead, signals: Mapping[str, int]) -> None:
        self.track_lanes(lanes)
        self._rows_of.cache_clear()
        self._signals = tuple(signals)
        self._on_outflow_lanes = [self._vehicles_on_outflow_lanes()]
        self._count_outflow()

    def detector_parameters(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        domain = self.api.inductionloop
        parameters = {}
        for detector in domain.getIDList():
            parameters[detector] = tuple(domain.getParameter(detector, key) for key in keys)
        return parameters

    def track_detectors(self, detectors: Sequence[str], sumo_step_s: float) -> None:
        now = self.api.simulation.getTime()
        self._detectors = TrackedDetectors(detectors, now, sumo_step_s)
        self._read_detectors(now)

    def set(self, commands: Sequence[SignalCommand]) -> None:
        if commands and self._segment_end_s is not None:
            self._shown_before.append(
                (self._segment_end_s, list(map(self.api.trafficlight.getRedYellowGreenState, self._signals)))
            )
        for command in commands:
            try:
                self._set(command)
            except self.api.TraCIException as error:
                self._rejected[command.signal] = str(error)

    def advance(self, until_s: float) -> None:
        try:
            for end_s in self._detectors.advance(until_s):
                self.api.simulationStep(end_s)
                self._read_detectors(end_s)
        except self.api.FatalTraCIError as error:
            raise SumoConnectionLost(f"SUMO has ended: {error}") from None
        self._segment_end_s = until_s
        # counted with the reading: until then, the readings are those of the last one
        self._on_outflow_lanes.append(self._vehicles_on_outflow_lanes())

    def read(self, due: tuple[str, ...]) -> StepResult:
        self._segment_end_s = None
        self._shown = dict(
            zip(self._signals, list(map(self.api.trafficlight.getRedYellowGreenState, self._signals)), strict=True)
        )
        self._count_outflow()
        lane, readings = self.api.lane, self.readings
        names, rows, vehicle_lanes, vehicle_rows, crossings = self._rows_of(due)
        vehicles = list(map(lane.getLastStepVehicleNumber, names))
        # an empty lane has no halting vehicles and no mean length
        halting = [
            lane.getLastStepHaltingNumber(name) if count else 0 for name, count in zip(names, vehicles, strict=True)
        ]
        lengths_m = [
            lane.getLastStepLength(name) if count else 0.0 for name, count in zip(names, vehicles, strict=True)
        ]
        readings.counts[:, rows] = vehicles, halting
        readings.mean_length_m[rows] = lengths_m
        by_vehicle = self._vehicles(vehicle_lanes, vehicle_rows)
        self.set_vehicles(crossings.with_persons(by_vehicle, self.persons(crossings.areas)))
        return self._take_result(self.api.simulation.getTime())

    def _new_rows(self, due: tuple[str, ...]) -> tuple[list[str], slice | Rows, list[str], Rows, Crossings]:
        """(lanes of TLs that are counted, their rows, lanes of their single vehicles, their rows, crossings)."""
        return *self.rows_of(due), *self.vehicle_rows_of(due), self.crossings_of(due)

    def _vehicles(self, lanes: Sequence[str], rows: Rows) -> VehicleReadings:
        ids = [self.api.lane.getLastStepVehicleIDs(lane) for lane in lanes]
        vehicles = [vehicle for of_lane in ids for vehicle in of_lane]
        if not vehicles:
            return NO_VEHICLES
        domain = self.api.vehicle
        speeds = list(map(domain.getSpeed, vehicles))
        waiting = [
            domain.getWaitingTime(v) if mps <= HALTING_MPS else 0.0 for v, mps in zip(vehicles, speeds, strict=True)
        ]
        positions = list(map(domain.getLanePosition, vehicles))
        return VehicleReadings(
            np.repeat(rows, list(map(len, ids))), np.array(positions), np.array(speeds), np.array(waiting)
        )

    def shown(self) -> dict[str, str]:
        return self._shown

    def programs(self, signals: Sequence[str]) -> dict[str, str]:
        return {signal: self.api.trafficlight.getProgram(signal) for signal in signals}

    def traffic(self, lanes: tuple[str, ...]) -> Traffic:
        domain = self.api.lane
        counts = list(map(domain.getLastStepVehicleNumber, lanes))
        speeds_mps = [domain.getLastStepMeanSpeed(lane) if n else 0.0 for lane, n in zip(lanes, counts, strict=True)]
        waiting = [self.api.vehicle.getRoute(vehicle)[0] for vehicle in self.api.simulation.getPendingVehicles()]
        return Traffic(np.array(counts, np.int32), np.array(speeds_mps, np.float64), waiting)

    def halting(self, lanes: tuple[str, ...]) -> NDArray[np.int32]:
        return np.array([self.api.lane.getLastStepHaltingNumber(lane) for lane in lanes], np.int32)

    def persons(self, walking_areas: Sequence[str]) -> list[Person]:
        domain = self.api.person
        ids = [person for area in walking_areas for person in self.api.edge.getLastStepPersonIDs(area)]
        return [Person(domain.getNextEdge(p), domain.getSpeed(p), domain.getWaitingTime(p)) for p in ids]

    def vehicles_near(self, junction: str, radius_m: float) -> NDArray[np.float64]:
        domain = self.api.vehicle
        rows = [(*domain.getPosition(v), domain.getAngle(v), domain.getSpeed(v)) for v in domain.getIDList()]
        return np.array(rows, np.float64).reshape(-1, 4)

    def _vehicles_on_outflow_lanes(self) -> list[Sequence[str]]:
        return [self.api.lane.getLastStepVehicleIDs(name) for name in self.outflow_lanes]

    def _read_detectors(self, time_s: float) -> None:
        vehicles_of = {}
        for k, detector in enumerate(self._detectors.ids):
            # (vehicle, length, entry, exit, type)
            if data := self.api.inductionloop.getVehicleData(detector):
                vehicles_of[k] = [DetectorVehicle(vehicle, entry_s, exit_s) for vehicle, _, entry_s, exit_s, _ in data]
        self._detectors.add(time_s, vehicles_of)

    def _count_outflow(self) -> None:
        on_lanes, self._on_outflow_lanes = self._on_outflow_lanes, []
        for by_lane in on_lanes:
            for name, vehicles in zip(self.outflow_lanes, by_lane, strict=True):
                self.count_outflow(name, vehicles)

    def _set(self, command: SignalCommand) -> None:
        light = self.api.trafficlight
        if type(command) is PermittedState:
            light.setRedYellowGreenState(command.signal, command.state)
        elif type(command) is PermittedRelease:
            light.setProgram(command.signal, command.program)
            if command.phase is not None:
                light.setPhase(command.signal, command.phase)
            if command.remaining_s is not None:
                light.setPhaseDuration(command.signal, command.remaining_s)
        else:
            raise TypeError(f"only what the safety rules permit is sent to SUMO, not {command!r}")

    def signal_states(self, links_of: Mapping[str, int]) -> list[str]:
        return [self.api.trafficlight.getRedYellowGreenState(signal) for signal in links_of]

    def switch_program(self, signal: str, program: str) -> None:
        try:
            self.api.trafficlight.setProgram(signal, program)
        except self.api.TraCIException as error:
            raise CommandRejected(str(error)) from None

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """SUMO ends with this process, so there is no guard, and it has no other clients."""

    mark_controlled = register_handover = keep_alive = check_open = abandon = _do_nothing

    def error_message(self) -> str:
        return ""

    def close(self) -> None:
        self.api.close()


def start_libsumo(arguments: Sequence[str]) -> LibsumoConnection:
    """Start SUMO inside this process. Raises InputError; SimulationRunning if there is one."""
    try:
        import libsumo
    except ImportError as error:
        raise InputError(f"libsumo is not installed ({error}); install libsumo, or leave --libsumo out") from None
    if libsumo.isLoaded():
        # libsumo would end it without a word
        raise SimulationRunning("another simulation runs over libsumo in this process, which has one at a time")
    # a configuration's reports stay out of this process's output, unless the user passes the options
    given = {argument.partition("=")[0] for argument in arguments}
    quiet = [part for option in REPORT_OPTIONS if option not in given for part in (option, "false")]
    try:
        libsumo.start([sumo_program(), *arguments, *quiet])
    except (libsumo.TraCIException, libsumo.FatalTraCIError) as error:
        with contextlib.suppress(libsumo.TraCIException, libsumo.FatalTraCIError):
            libsumo.close()  # the part that was loaded
        raise InputError(f"SUMO did not start: {error}") from None
    return LibsumoConnection(libsumo)
