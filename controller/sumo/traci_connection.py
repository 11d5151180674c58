"""A connection to a SUMO program over its socket: one round trip per decision step for any number of TLs.

A second one reads single vehicles, if some of the TLs need them: their ids must be known first.
"""

import contextlib
import functools
import socket
import subprocess
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import traci
from numpy.typing import NDArray
from traci import constants as tc

from city.errors import InputError
from controller.sumo import wire
from controller.sumo.connection import (
    OWNER_KEY,
    CommandRejected,
    Crossings,
    Interrupts,
    LanesToRead,
    Person,
    StepCollector,
    StepResult,
    SumoConnectionLost,
    Traffic,
    WaitAborted,
)
from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.messages import MessageStream
from controller.sumo.programs import StderrReader
from controller.sumo.tracked_detectors import TrackedDetectors
from controller.sumo.wire import MalformedMessage
from signals.observation import MAX_CACHED_BATCHES, NO_VEHICLES, Readings, Rows, VehicleReadings
from signals.safety.signal_safety import PermittedRelease, PermittedState, SignalCommand

Decoded = TypeVar("Decoded")
CLOSE = wire.message([wire.command(wire.CLOSE, b"")])
_Variables = tuple[tuple[int, int], ...]
"""Variables of a lane, each with its type."""
_COUNT = (tc.LAST_STEP_VEHICLE_NUMBER, tc.TYPE_INTEGER)
_HALTING = (tc.LAST_STEP_VEHICLE_HALTING_NUMBER, tc.TYPE_INTEGER)
_LANE_VARIABLES = (_COUNT, _HALTING, (tc.LAST_STEP_LENGTH, tc.TYPE_DOUBLE))
_TRAFFIC_VARIABLES = (_COUNT, (tc.LAST_STEP_MEAN_SPEED, tc.TYPE_DOUBLE))


@contextlib.contextmanager
def traci_errors(lost: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise `lost` of an error that ends the connection, and InputError if traci cannot decode an answer: damaged bytes
    give any kind of error."""
    try:
        yield
    except (traci.FatalTraCIError, SumoConnectionLost, OSError) as error:
        raise lost(error) from None
    except Exception as error:
        *_, frame = traceback.walk_tb(error.__traceback__)
        if str(frame[0].f_globals.get("__name__", "")).partition(".")[0] != "traci":
            raise
        raise InputError(
            f"SUMO sent an answer that cannot be read ({type(error).__name__}: {error}); check that the address is "
            "SUMO's, that both have the same version, and that nothing between them changes bytes"
        ) from None


def encode_commands(command: SignalCommand) -> list[bytes]:
    """Encode a signal command as TraCI commands. Raises TypeError for a command that the safety rules have not
    permitted."""
    signal = command.signal
    if type(command) is PermittedState:
        return [wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, signal, command.state)]
    if type(command) is not PermittedRelease:
        raise TypeError(f"only what the safety rules permit is sent to SUMO, not {command!r}")
    commands = [wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_PROGRAM, signal, command.program)]
    if command.phase is not None:
        commands.append(wire.set_number(tc.TL_PHASE_INDEX, signal, tc.TYPE_INTEGER, command.phase))
    if command.remaining_s is not None:
        commands.append(wire.set_number(tc.TL_PHASE_DURATION, signal, tc.TYPE_DOUBLE, command.remaining_s))
    return commands


def decode_rejections(answer: bytes, commands: Sequence[SignalCommand]) -> dict[str, str]:
    """SUMO's error text by signal, of the commands that it rejected."""
    if answer == wire.SET_OK * len(commands):
        return {}
    reader = wire.Reader(answer)
    rejections: dict[str, str] = {}
    for command in commands:
        for _ in encode_commands(command):
            try:
                reader.status()
            except CommandRejected as error:
                rejections[command.signal] = str(error)
    return rejections


def _ignore(_: bytes) -> None:
    """Decode nothing: the answer is decoded where it is waited for."""


def _of_lanes(lanes: Iterable[str], variables: _Variables) -> list[tuple[int, int, str, int]]:
    return [(tc.CMD_GET_LANE_VARIABLE, variable, lane, kind) for lane in lanes for variable, kind in variables]


@functools.lru_cache(MAX_CACHED_BATCHES)
def _lane_getters(lanes: tuple[str, ...], variables: _Variables) -> wire.NumericGetters:
    return wire.NumericGetters(_of_lanes(lanes, variables))


# a watcher's view changes rarely, and there are few watchers
@functools.lru_cache(4)
def _state_getters(links_of: tuple[tuple[str, int], ...]) -> wire.StateGetters:
    return wire.StateGetters(dict(links_of))


class _Getters(NamedTuple):
    """The getters for the TLs that are due."""

    numbers: wire.NumericGetters
    """Getters of the lane variables and of the time."""
    rows: slice | Rows
    ids: wire.IdGetters
    vehicle_rows: Rows
    """Rows of the lanes whose vehicles are read."""
    crossings: Crossings
    request: bytes
    """The message of `numbers` and `ids`."""

    def decode(self, answer: bytes, readings: Readings) -> tuple[float, list[bytes], Rows, list[bytes]]:
        """Write the lane variables into the readings; (the time in s, vehicles' ids, their rows, persons' ids)."""
        ints, doubles = self.numbers.decode(answer)
        vehicles, counts, persons = self.ids.decode(answer, self.numbers.size)
        readings.counts[:, self.rows] = ints.reshape(-1, 2).T
        readings.mean_length_m[self.rows] = doubles[:-1]
        return float(doubles[-1]), vehicles, np.repeat(self.vehicle_rows, counts), persons


class TraciConnection(StepCollector):
    """One socket to a SUMO program."""

    connection_error: type[Exception] = traci.FatalTraCIError

    def __init__(
        self,
        api: Any,
        process: subprocess.Popen[bytes] | None,
        stderr: StderrReader,
        interrupts: Interrupts,
        through_guard: bool = False,
    ) -> None:
        """Take over a connection.

        Args:
            api: traci's connection.
            process: the SUMO or the guard, if this process started it.
            stderr: reader of its stderr.
            interrupts: the operator's requests.
            through_guard: whether the connection is to a guard.
        """
        super().__init__()
        self._through_guard = through_guard
        self.is_guarded = False
        self._is_readable = True
        """False after an answer that cannot be read: later ones may never come."""
        self._api = api
        self._stderr = stderr
        # traci has no public way to send many commands at once
        self.socket: socket.socket = api._socket
        self._messages = MessageStream(self.socket, stderr, interrupts)
        self._process = process
        self._interrupts = interrupts
        self._has_read = False
        self._unanswered: deque[Callable[[bytes], None]] = deque()
        """The decoders of the answers that have not been received, in their order."""
        self._unmark = b""
        """A message that removes the marks of `mark_controlled`."""
        self._getters_of = functools.lru_cache(MAX_CACHED_BATCHES)(self._new_getters)
        self._origins: dict[str, str] = {}
        """Road on which a vehicle waits to depart, or has waited."""

    @property
    def api(self) -> Any:
        self.shown()  # receives the answer that is due first
        return self._api

    def track(self, lanes: LanesToRead, signals: Mapping[str, int]) -> None:
        self.track_lanes(lanes)
        self._signals = tuple(signals)
        self._states = wire.StateGetters(signals)
        outflow = [
            wire.get(tc.CMD_GET_LANE_VARIABLE, tc.LAST_STEP_VEHICLE_ID_LIST, lane) for lane in lanes.outflow_lanes
        ]
        self._outflow_request = wire.message(outflow) if outflow else b""
        self._getters_of.cache_clear()

    def detector_parameters(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        detectors = self.api.inductionloop.getIDList()
        values = self._values(
            [
                wire.get_parameter(tc.CMD_GET_INDUCTIONLOOP_VARIABLE, detector, key)
                for key in keys
                for detector in detectors
            ]
        )
        return {detector: tuple(values[k :: len(detectors)]) for k, detector in enumerate(detectors)}

    def track_detectors(self, detectors: Sequence[str], sumo_step_s: float) -> None:
        now = float(self.api.simulation.getTime())
        self._detectors = TrackedDetectors(detectors, now, sumo_step_s)
        if detectors:
            self._detector_getters = DetectorGetters(detectors)
            self._ask([self._detector_getters.request], functools.partial(self._add_detected, now))

    def _add_detected(self, time_s: float, answer: bytes) -> None:
        self._detectors.add(time_s, self._detector_getters.decode(answer))

    def _new_getters(self, due: tuple[str, ...]) -> _Getters:
        lanes, rows = self.rows_of(due)
        time = (tc.CMD_GET_SIM_VARIABLE, tc.VAR_TIME, "", tc.TYPE_DOUBLE)
        numbers = wire.NumericGetters([*_of_lanes(lanes, _LANE_VARIABLES), time])
        vehicle_lanes, vehicle_rows = self.vehicle_rows_of(due)
        crossings = self.crossings_of(due)
        ids = wire.IdGetters(vehicle_lanes, crossings.areas)
        return _Getters(numbers, rows, ids, vehicle_rows, crossings, wire.message([numbers.request, ids.request]))

    def set(self, commands: Sequence[SignalCommand]) -> None:
        # Commands and step are separate messages. With several clients, SUMO sends the answers to commands
        # in the same message as a step to another client: it has one buffer of answers, and a step
        # makes the next client current.
        if commands:
            # the states of the segment before are requested in the same message
            states = [] if self._segment_end_s is None else [self._states.request]
            encoded = [part for command in commands for part in encode_commands(command)]
            decode = functools.partial(self._decode_commands, commands, self._segment_end_s)
            self._post(wire.message([*states, *encoded]), decode)
            self._messages.send()  # SUMO begins with them while the step is prepared

    def _decode_commands(self, commands: Sequence[SignalCommand], segment_end_s: float | None, answer: bytes) -> None:
        """Note rejections, and the states of the segment before if they were requested with the commands."""
        if segment_end_s is not None:
            states, states_end = self._states.decode(answer)
            self._shown_before.append((segment_end_s, states))
            answer = answer[states_end:]
        self._rejected |= decode_rejections(answer, commands)

    def advance(self, until_s: float) -> None:
        for end_s in self._detectors.advance(until_s):
            self._post(wire.message([wire.step(end_s)]), wire.check_stepped)
            if self._detectors.ids:
                decode = functools.partial(self._add_detected, end_s)
                self._post(wire.message([self._detector_getters.request]), decode)
        self._post_outflow_getters()
        self._messages.send()
        self._segment_end_s = until_s

    def read(self, due: tuple[str, ...]) -> StepResult:
        getters = self._getters_of(due)
        if not self._has_read:
            self._has_read = True
            self._post_outflow_getters()  # the vehicles at the beginning
        self._post(getters.request, _ignore)
        answers = self._messages.answers(len(self._unanswered))
        if self._signals:
            # SUMO answers this while the next decision is prepared
            self._post(wire.message([self._states.request]), self._decode_shown)
        answer = b""
        with self._decoding("SUMO rejected a step or a request: "):
            try:
                # the answers before the lanes' are decoded while SUMO still simulates
                for answer in answers:
                    self._unanswered.popleft()(answer)
                time_s, vehicles, rows, persons = getters.decode(answer, self.readings)
            except CommandRejected:
                for _ in answers:
                    self._unanswered.popleft()  # so that they are not taken for answers to the next requests
                raise
        self._segment_end_s = None
        self.set_vehicles(self._vehicles(getters.crossings, vehicles, rows, persons))
        return self._take_result(time_s)

    def _vehicles(
        self, crossings: Crossings, vehicles: Sequence[bytes], rows: Rows, persons: Sequence[bytes]
    ) -> VehicleReadings:
        """Request the readings of vehicles on the lanes of `rows`, and of persons. Raises the exceptions of `read`."""
        if not vehicles and not persons:
            return NO_VEHICLES
        of_persons, of_vehicles = wire.PersonGetters(persons), wire.VehicleGetters(vehicles)

        def decode(answer: bytes) -> VehicleReadings:
            walkers, at = of_persons.decode(answer)
            values, known = of_vehicles.decode(answer, at)
            return crossings.with_persons(VehicleReadings(rows[known], *values), walkers)

        return self._ask([of_persons.request, of_vehicles.request], decode)

    def shown(self) -> dict[str, str]:
        if self._unanswered and self._unanswered[0] == self._decode_shown:
            answer = next(self._messages.answers(1))
            self._unanswered.popleft()
            with self._decoding():
                self._decode_shown(answer)
        return self._shown

    def programs(self, signals: Sequence[str]) -> dict[str, str]:
        getters = [wire.get(tc.CMD_GET_TL_VARIABLE, tc.TL_CURRENT_PROGRAM, signal) for signal in signals]
        return dict(zip(signals, self._values(getters), strict=True))

    def traffic(self, lanes: tuple[str, ...]) -> Traffic:
        numbers = _lane_getters(lanes, _TRAFFIC_VARIABLES)

        def decode(answer: bytes) -> tuple[NDArray[np.int32], NDArray[np.float64], list[str]]:
            return *numbers.decode(answer), list(wire.Reader(answer, numbers.size).value())

        pending = wire.get(tc.CMD_GET_SIM_VARIABLE, tc.VAR_PENDING_VEHICLES, "")
        counts, speeds_mps, waiting = self._ask([numbers.request, pending], decode)
        # its route is the same as long as a vehicle waits
        if unknown := [vehicle for vehicle in waiting if vehicle not in self._origins]:
            routes = self._values([wire.get(tc.CMD_GET_VEHICLE_VARIABLE, tc.VAR_EDGES, vehicle) for vehicle in unknown])
            self._origins |= {vehicle: roads[0] for vehicle, roads in zip(unknown, routes, strict=True)}
        return Traffic(counts, speeds_mps, [self._origins[vehicle] for vehicle in waiting])

    def halting(self, lanes: tuple[str, ...]) -> NDArray[np.int32]:
        numbers = _lane_getters(lanes, (_HALTING,))
        # SUMO does not answer a message without commands
        return self._ask([numbers.request], numbers.decode)[0] if lanes else np.zeros(0, np.int32)

    def persons(self, walking_areas: Sequence[str]) -> list[Person]:
        if not walking_areas:
            return []  # SUMO does not answer a message without commands
        ids = wire.IdGetters((), walking_areas)
        _, _, names = self._ask([ids.request], ids.decode)
        getters = wire.PersonGetters(names)
        return self._ask([getters.request], getters.decode)[0] if names else []

    def vehicles_near(self, junction: str, radius_m: float) -> NDArray[np.float64]:
        request = wire.vehicles_near(junction, radius_m)
        return self._ask([request], lambda answer: wire.decode_vehicles_near(answer, junction))

    def _decode_shown(self, answer: bytes) -> None:
        self._shown = dict(zip(self._signals, self._states.decode(answer)[0], strict=True))

    def _post_outflow_getters(self) -> None:
        if self._outflow_request:
            self._post(self._outflow_request, self._count_outflow)

    def _count_outflow(self, answer: bytes) -> None:
        reader = wire.Reader(answer)
        for lane in self.outflow_lanes:
            self.count_outflow(lane, reader.value())

    def version(self) -> tuple[int, str]:
        """SUMO's version; a guard appends wire.GUARDED. Raises SumoConnectionLost."""
        with traci_errors(lambda error: SumoConnectionLost(self._stderr.error() or str(error))):
            number, text = self.api.getVersion()
        return int(number), str(text)

    def switch_program(self, signal: str, program: str) -> None:
        with contextlib.suppress(CommandRejected):
            self.shown()  # receives the answer that is due first; the signal is switched even if it is a rejection
        answer = self._request(wire.message([wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_PROGRAM, signal, program)]))
        with self._decoding(""):
            wire.Reader(answer).status()

    def mark_controlled(self, signals: Sequence[str], owner: str) -> None:
        def decode(answer: bytes) -> None:
            reader = wire.Reader(answer)
            for _ in signals:
                reader.status()

        if signals:
            keys = [f"{OWNER_KEY}.{signal}" for signal in signals]
            self._unmark = wire.message([wire.set_parameter(key, "") for key in keys])
            self._ask([wire.set_parameter(key, owner) for key in keys], decode)

    def register_handover(self, content: bytes) -> None:
        if self.version()[1].endswith(wire.GUARDED):
            self.is_guarded = True
            self._ask([wire.command(wire.HANDOVER, content)], lambda answer: wire.Reader(answer).status())

    def keep_alive(self) -> None:
        if self.is_guarded:
            # answered by the guard itself: SUMO does nothing
            self._ask([wire.command(wire.GETVERSION, b"")], _ignore)

    def check_open(self) -> None:
        self.shown()  # receives the answer that is due first: it would hide the end behind it
        self._messages.check_open()

    def signal_states(self, links_of: Mapping[str, int]) -> list[str]:
        if not links_of:
            return []
        getters = _state_getters(tuple(links_of.items()))
        return self._ask([getters.request], lambda answer: getters.decode(answer)[0])

    @contextlib.contextmanager
    def _decoding(self, rejection: str = "SUMO rejected a request: ") -> Iterator[None]:
        """Begin SUMO's error text with `rejection`, and end the connection at bytes that cannot be read."""
        try:
            yield
        except CommandRejected as error:
            raise CommandRejected(f"{rejection}{error}") from None
        except MalformedMessage as error:
            self._is_readable = False
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def _ask(self, commands: Sequence[bytes], decode: Callable[[bytes], Decoded]) -> Decoded:
        """Request between a reading and the next commands, and decode the answer. Raises the exceptions of `read`."""
        self.shown()  # receives the answer that is due first
        answer = self._request(wire.message(commands))
        with self._decoding():
            return decode(answer)

    def _values(self, getters: Sequence[bytes]) -> list[Any]:
        """Request strings or lists of strings. Raises the exceptions of `read`."""

        def decode(answer: bytes) -> list[Any]:
            reader = wire.Reader(answer)
            return [reader.value() for _ in getters]

        # SUMO does not answer a message without commands
        return self._ask(getters, decode) if getters else []

    def _request(self, message: bytes) -> bytes:
        """Send a message and wait for its answer; answers that are due before it are dropped."""
        self._post(message, _ignore)
        newest = b""
        for answer in self._messages.answers(len(self._unanswered)):
            self._unanswered.popleft()
            newest = answer
        return newest

    def _post(self, message: bytes, decode: Callable[[bytes], None]) -> None:
        self._unanswered.append(decode)
        self._messages.queue(message)

    def error_message(self) -> str:
        return self._stderr.error()

    def abandon(self, programs: Sequence[tuple[str, str]]) -> None:
        switches = [
            wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_PROGRAM, signal, program) for signal, program in programs
        ]
        self._messages.end(wire.message(switches) + self._unmark + CLOSE, wait=self._is_readable)

    def close(self) -> None:
        """Close cleanly, and wait for the end of a SUMO that this process started."""
        with contextlib.suppress(SumoConnectionLost, CommandRejected, WaitAborted):
            self.shown()  # its answer is due before that of CLOSE; if SUMO has ended, the next call reports it
        # a guard hands the signals back, so this need not wait for SUMO's other clients
        wait = self._is_readable and not (self.is_guarded and self._interrupts.abort_requested())
        has_answer = self._messages.end(self._unmark + CLOSE, wait)
        # a guard that has cut this controller off keeps running
        if has_answer or not self._through_guard:
            self.wait()

    def wait(self) -> None:
        """Wait for the end of the process that this one started."""
        # SUMO may still serve other clients or write large outputs
        while self._process is not None and self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            if self._interrupts.abort_requested():
                if self._through_guard:
                    return  # the guard ends on its own; killing it would end the simulation for the other clients
                self._process.kill()
                self._process.wait()
