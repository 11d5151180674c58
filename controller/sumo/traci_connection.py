"""A connection to a SUMO program over its socket: one round trip per decision step for any number of TLs.

A second one reads single vehicles, if some of the TLs need them: their ids must be known first.
"""

import contextlib
import functools
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Interrupts,
    StepResult,
    SumoConnectionLost,
    TableReadings,
    Traffic,
    WaitAborted,
)
from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.messages import MessageStream
from controller.sumo.programs import StderrReader
from controller.sumo.signal_commands import decode_rejections, encode_commands
from controller.sumo.tracked_detectors import TrackedDetectors
from controller.sumo.wire import MalformedMessage
from signals.observation import MAX_CACHED_BATCHES, NO_VEHICLES, Readings, Rows, VehicleReadings
from signals.safety.signal_safety import SignalCommand

Decoded = TypeVar("Decoded")
CLOSE = wire.message([wire.command(wire.CLOSE, b"")])
_LANE_VARIABLES = (
    (tc.LAST_STEP_VEHICLE_NUMBER, tc.TYPE_INTEGER),
    (tc.LAST_STEP_VEHICLE_HALTING_NUMBER, tc.TYPE_INTEGER),
    (tc.LAST_STEP_LENGTH, tc.TYPE_DOUBLE),
)
"""Variables of a lane: two ints, then a double."""
_SPEED_VARIABLES = ((tc.LAST_STEP_VEHICLE_NUMBER, tc.TYPE_INTEGER), (tc.LAST_STEP_MEAN_SPEED, tc.TYPE_DOUBLE))


def check_decodable(error: Exception) -> None:
    """Raise InputError if traci raised the error while it decoded an answer: damaged bytes give any kind of error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    if module.partition(".")[0] != "traci" or isinstance(error, (traci.FatalTraCIError, OSError)):
        return
    raise InputError(
        f"SUMO sent an answer that cannot be read ({type(error).__name__}: {error}); check that the address is SUMO's, "
        "that both have the same version, and that nothing between them changes bytes"
    ) from None


@contextlib.contextmanager
def _decoding(rejection: str = "SUMO rejected a request: ") -> Iterator[None]:
    """Begin SUMO's error text with `rejection`, and end the connection at bytes that cannot be read."""
    try:
        yield
    except CommandRejected as error:
        raise CommandRejected(f"{rejection}{error}") from None
    except MalformedMessage as error:
        raise SumoConnectionLost(f"SUMO sent {error}") from None


def _ignore(_: bytes) -> None:
    """Decode nothing: the answer is decoded where it is waited for."""


def _traffic_getters(lanes: tuple[str, ...]) -> wire.NumericGetters:
    return wire.NumericGetters(
        [(tc.CMD_GET_LANE_VARIABLE, variable, lane, kind) for lane in lanes for variable, kind in _SPEED_VARIABLES]
    )


def _first_roads(vehicles: Sequence[str], answer: bytes) -> dict[str, str]:
    """Decode the routes of vehicles: the first road of each."""
    reader = wire.Reader(answer)
    return {vehicle: reader.value()[0] for vehicle in vehicles}


# a watcher's view changes rarely, and there are few watchers
@functools.lru_cache(4)
def _state_getters(links_of: tuple[tuple[str, int], ...]) -> wire.StateGetters:
    return wire.StateGetters(dict(links_of))


class _Getters(NamedTuple):
    """The getters for the TLs that are due."""

    numbers: wire.NumericGetters
    """Getters of the lane variables and of the time."""
    rows: slice | Rows
    """Rows of the lanes whose variables are read."""
    vehicle_ids: wire.VehicleIdGetters
    vehicle_rows: Rows
    """Rows of the lanes whose vehicles are read."""
    request: bytes
    """The message of `numbers` and `vehicle_ids`."""

    def decode(self, answer: bytes, readings: Readings) -> tuple[float, list[bytes], list[int]]:
        """Write the lane variables into the readings; (the time in s, vehicles' ids, vehicles by lane)."""
        ints, doubles = self.numbers.decode(answer)
        ids, counts = self.vehicle_ids.decode(answer, self.numbers.size)
        readings.counts[:, self.rows] = ints.reshape(-1, 2).T
        readings.mean_length_m[self.rows] = doubles[:-1]
        return float(doubles[-1]), ids, counts


class TraciConnection(TableReadings):
    """One socket to a SUMO program."""

    def __init__(
        self,
        api: Any,
        connection_error: type[Exception],
        process: subprocess.Popen[bytes] | None,
        stderr: StderrReader,
        interrupts: Interrupts,
        through_guard: bool = False,
    ) -> None:
        """Take over a connection.

        Args:
            api: traci's connection.
            connection_error: the exception that `api` raises after SUMO has ended.
            process: the SUMO or the guard, if this process started it.
            stderr: reader of its stderr.
            interrupts: the operator's requests.
            through_guard: whether the connection is to a guard.
        """
        self._through_guard = through_guard
        self._is_guarded = False
        self._api = api
        self._stderr = stderr
        self.connection_error = connection_error
        # traci has no public way to send many commands at once
        self._messages = MessageStream(api._socket, stderr, interrupts)
        self._process = process
        self._interrupts = interrupts
        super().__init__()
        self._has_read = False
        self._segment_end_s: float | None = None
        """End of the newest segment since the last reading."""
        self._unanswered: deque[Callable[[bytes], None]] = deque()
        """The decoders of the answers that have not been received, in their order."""
        self._rejected: dict[str, str] = {}
        """SUMO's error text by signal, of the commands since the last reading."""
        self._shown_before: list[tuple[float, Sequence[str]]] = []
        """By segment since the last reading without the last one: its end in s, and the states in it."""
        self._shown: dict[str, str] = {}
        self._unmark = b""
        """A message that removes the marks of `mark_controlled`."""
        self._getters_of = functools.lru_cache(MAX_CACHED_BATCHES)(self._new_getters)
        self._traffic_getters_of = functools.lru_cache(MAX_CACHED_BATCHES)(_traffic_getters)
        self._origins: dict[str, str] = {}
        """Road on which a vehicle waits to depart, or has waited."""
        self._detectors: TrackedDetectors | None = None

    @property
    def api(self) -> Any:
        self.shown()  # receives the answer that is due first
        return self._api

    @property
    def is_guarded(self) -> bool:
        return self._is_guarded

    @property
    def socket(self) -> socket.socket:
        return self._messages.socket

    def track(
        self,
        lanes_of: Mapping[str, Sequence[str]],
        outflow_lanes: Sequence[str],
        signals: Mapping[str, int],
        vehicle_lanes_of: Mapping[str, Sequence[str]] = {},
    ) -> None:
        self._table.track(lanes_of, outflow_lanes, vehicle_lanes_of)
        self._signals = tuple(signals)
        self._states = wire.StateGetters(signals)
        outflow = [wire.get(tc.CMD_GET_LANE_VARIABLE, tc.LAST_STEP_VEHICLE_ID_LIST, lane) for lane in outflow_lanes]
        self._outflow_request = wire.message(outflow) if outflow else b""
        self._getters_of.cache_clear()

    def detector_parameters(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        detectors = self.api.inductionloop.getIDList()
        if not detectors:
            return {}  # SUMO does not answer a message without commands

        def decode(answer: bytes) -> dict[str, tuple[str, ...]]:
            reader = wire.Reader(answer)
            parameters = {}
            for detector in detectors:
                parameters[detector] = tuple(str(reader.value()) for _ in keys)
            return parameters

        getters = [
            wire.get_parameter(tc.CMD_GET_INDUCTIONLOOP_VARIABLE, detector, key)
            for detector in detectors
            for key in keys
        ]
        return self._ask(getters, decode)

    def track_detectors(self, detectors: Sequence[str], sumo_step_s: float) -> None:
        self._detectors = None
        if not detectors:
            return
        now = float(self.api.simulation.getTime())
        self._detectors = TrackedDetectors(detectors, now, sumo_step_s)
        self._detector_getters = DetectorGetters(detectors)
        self._ask([self._detector_getters.request], functools.partial(self._add_detected, now))

    def _add_detected(self, time_s: float, answer: bytes) -> None:
        """Take the vehicles on detectors after the step that ends at time_s."""
        if self._detectors is not None:
            self._detectors.add(time_s, self._detector_getters.decode(answer))

    def _new_getters(self, due: tuple[str, ...]) -> _Getters:
        lanes, rows = self._table.rows_of(due)
        variables = [
            (tc.CMD_GET_LANE_VARIABLE, variable, lane, kind) for lane in lanes for variable, kind in _LANE_VARIABLES
        ]
        variables.append((tc.CMD_GET_SIM_VARIABLE, tc.VAR_TIME, "", tc.TYPE_DOUBLE))
        numbers = wire.NumericGetters(variables)
        vehicle_lanes, vehicle_rows = self._table.vehicle_rows_of(due)
        vehicle_ids = wire.VehicleIdGetters(vehicle_lanes)
        return _Getters(numbers, rows, vehicle_ids, vehicle_rows, wire.message([numbers.request, vehicle_ids.request]))

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
        if self._detectors is None:
            self._post(wire.message([wire.step(until_s)]), wire.check_stepped)
        else:
            for end_s in self._detectors.advance(until_s):
                self._post(wire.message([wire.step(end_s)]), wire.check_stepped)
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
        with _decoding("SUMO rejected a step or a request: "):
            try:
                # the answers before the lanes' are decoded while SUMO still simulates
                for answer in answers:
                    self._unanswered.popleft()(answer)
                time_s, ids, counts = getters.decode(answer, self._table.readings)
            except CommandRejected:
                for _ in answers:
                    self._unanswered.popleft()  # so that they are not taken for answers to the next requests
                raise
        self._segment_end_s = None
        self._table.set_vehicles(self._vehicles(ids, np.repeat(getters.vehicle_rows, counts)) if ids else NO_VEHICLES)
        rejected, self._rejected = self._rejected, {}
        shown, self._shown_before = self._shown_before, []
        detector_changes = self._detectors.take_changes() if self._detectors is not None else ()
        return StepResult(time_s, shown, rejected, detector_changes)

    def _vehicles(self, ids: Sequence[bytes], rows: Rows) -> VehicleReadings:
        """Request the readings of vehicles on the lanes of `rows`. Raises the exceptions of `read`."""
        getters = wire.VehicleGetters(ids)
        values, known = self._ask([getters.request], getters.decode)
        return VehicleReadings(rows[known], *values)

    def shown(self) -> dict[str, str]:
        if self._unanswered and self._unanswered[0] == self._decode_shown:
            answer = next(self._messages.answers(1))
            self._unanswered.popleft()
            with _decoding():
                self._decode_shown(answer)
        return self._shown

    def programs(self, signals: Sequence[str]) -> dict[str, str]:
        def decode(answer: bytes) -> dict[str, str]:
            reader = wire.Reader(answer)
            return {signal: str(reader.value()) for signal in signals}

        return self._ask(
            [wire.get(tc.CMD_GET_TL_VARIABLE, tc.TL_CURRENT_PROGRAM, signal) for signal in signals], decode
        )

    def traffic(self, lanes: tuple[str, ...]) -> Traffic:
        numbers = self._traffic_getters_of(lanes)

        def decode(answer: bytes) -> tuple[NDArray[np.int32], NDArray[np.float64], list[str]]:
            return *numbers.decode(answer), list(wire.Reader(answer, numbers.size).value())

        pending = wire.get(tc.CMD_GET_SIM_VARIABLE, tc.VAR_PENDING_VEHICLES, "")
        counts, speeds_mps, waiting = self._ask([numbers.request, pending], decode)
        # its route is the same as long as a vehicle waits
        if unknown := [vehicle for vehicle in waiting if vehicle not in self._origins]:
            self._origins |= self._ask(
                [wire.get(tc.CMD_GET_VEHICLE_VARIABLE, tc.VAR_EDGES, vehicle) for vehicle in unknown],
                functools.partial(_first_roads, unknown),
            )
        return Traffic(counts, speeds_mps, [self._origins[vehicle] for vehicle in waiting])

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
        for lane in self._table.outflow_lanes:
            self._table.count_outflow(lane, reader.value())

    def version(self) -> tuple[int, str]:
        """SUMO's version; a guard appends wire.GUARDED. Raises SumoConnectionLost."""
        try:
            number, text = self.api.getVersion()
        except Exception as error:
            check_decodable(error)
            if not isinstance(error, (self.connection_error, OSError)):
                raise
            raise SumoConnectionLost(self._stderr.error() or str(error)) from None
        return int(number), str(text)

    def switch_program(self, signal: str, program: str) -> None:
        with contextlib.suppress(CommandRejected):
            self.shown()  # receives the answer that is due first; the signal is switched even if it is a rejection
        answer = self._request(wire.message([wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_PROGRAM, signal, program)]))
        with _decoding(""):
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
            self._is_guarded = True
            self._ask([wire.command(wire.HANDOVER, content)], lambda answer: wire.Reader(answer).status())

    def keep_alive(self) -> None:
        if self._is_guarded:
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

    def _ask(self, commands: Sequence[bytes], decode: Callable[[bytes], Decoded]) -> Decoded:
        """Request between a reading and the next commands, and decode the answer. Raises the exceptions of `read`."""
        self.shown()  # receives the answer that is due first
        answer = self._request(wire.message(commands))
        with _decoding():
            return decode(answer)

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
        self._messages.end(wire.message(switches) + self._unmark + CLOSE)

    def close(self) -> None:
        """Close cleanly, and wait for the end of a SUMO that this process started."""
        with contextlib.suppress(SumoConnectionLost, CommandRejected, WaitAborted):
            self.shown()  # its answer is due before that of CLOSE; if SUMO has ended, the next call reports it
        # a guard hands the signals back, so this need not wait for SUMO's other clients
        wait = not (self._is_guarded and self._interrupts.abort_requested())
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
