"""A connection to a SUMO program over its socket: one round trip per decision step for any number of TLs.

A second one reads single vehicles, if some of the TLs need them: their ids must be known first.
"""

import contextlib
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import traci
from numpy.typing import NDArray

from city.errors import InputError
from controller.sumo import wire
from controller.sumo.connection import (
    OWNER_KEY,
    CommandRejected,
    Interrupts,
    StepResult,
    SumoConnectionLost,
    TrackedLanes,
    Traffic,
    WaitAborted,
)
from controller.sumo.detector_passages import DetectorChange, DetectorPassages, step_ends
from controller.sumo.detector_wire import DetectorGetters
from controller.sumo.messages import MessageStream
from controller.sumo.programs import StderrReader
from controller.sumo.signal_commands import decode_rejections, encode_commands
from controller.sumo.wire import MalformedMessage
from signals.observation import MAX_CACHED_BATCHES, NO_VEHICLES, Readings, Rows, VehicleReadings
from signals.safety.signal_safety import SignalCommand

_LANE_VARIABLES = (
    (wire.LAST_STEP_VEHICLE_NUMBER, wire.TYPE_INT),
    (wire.LAST_STEP_HALTING, wire.TYPE_INT),
    (wire.LAST_STEP_LENGTH, wire.TYPE_DOUBLE),
)
"""Variables of a lane: two ints, then a double."""
_SPEED_VARIABLES = ((wire.LAST_STEP_VEHICLE_NUMBER, wire.TYPE_INT), (wire.LAST_STEP_MEAN_SPEED, wire.TYPE_DOUBLE))


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


class _Kind(Enum):
    """The kind of a request, which determines how its answer is decoded."""

    COMMANDS = "signal commands"
    STEP = "a step"
    OUTFLOW = "vehicles of the outflow lanes"
    DETECTORS = "vehicles on the detectors"
    LANES = "lane variables, the time and the vehicles' ids"
    STATES = "signal states"
    SINGLE = "a request with an answer that is waited for at once"


class _Sent(NamedTuple):
    """A message without an answer yet."""

    kind: _Kind
    commands: Sequence[SignalCommand] = ()
    segment_end_s: float | None = None
    """Set if signal commands come with a request for the states of the segment before: the end of that segment."""
    step_end_s: float = 0.0
    """Of DETECTORS, the end of the step after which they are read."""


class _TrackedDetectors:
    """The detectors that are read after every step of SUMO."""

    def __init__(self, detectors: Sequence[str], now: float, sumo_step_s: float) -> None:
        self.getters = DetectorGetters(detectors)
        self.request = wire.message([self.getters.request])
        self._passages = DetectorPassages()
        self._changes: list[DetectorChange] = []
        self._time_s, self._sumo_step_s = now, sumo_step_s

    def advance(self, until_s: float) -> list[float]:
        """The ends of SUMO's steps in the segment that ends at until_s."""
        ends, self._time_s = step_ends(self._time_s, until_s, self._sumo_step_s), until_s
        return ends

    def decode(self, answer: bytes, time_s: float) -> None:
        """Take the answer after the step that ends at time_s. Raises CommandRejected or MalformedMessage."""
        self._changes += self._passages.add(time_s, self.getters.decode(answer))

    def take_changes(self) -> list[DetectorChange]:
        """What has changed since the last call."""
        changes, self._changes = self._changes, []
        return changes


class _Getters(NamedTuple):
    """What is read for the TLs that are due."""

    numbers: wire.NumericGetters
    """Of the lane variables, and the time."""
    rows: slice | Rows
    """Rows of the lanes whose variables are read."""
    vehicle_ids: wire.VehicleIdGetters
    vehicle_rows: Rows
    """Rows of the lanes whose vehicles are read."""
    request: bytes
    """The message of `numbers` and `vehicle_ids`."""


class TraciConnection:
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
        self._through_guard, self._is_guarded = through_guard, False
        self._api = api
        self._stderr = stderr
        self.connection_error = connection_error
        # traci has no public way to send many commands at once
        self._messages = MessageStream(api._socket, stderr, interrupts)
        self._process = process
        self._interrupts = interrupts
        self._table = TrackedLanes()
        self._has_read = False
        self._segment_end_s: float | None = None
        """End of the newest segment since the last reading."""
        self._unanswered: deque[_Sent] = deque()
        self._shown: dict[str, str] = {}
        self._untracked: tuple[tuple[str, ...], wire.StateGetters] = (), wire.StateGetters({})
        """The signals of the newest `signal_states`, and their getters."""
        self._unmark = b""
        """A message that removes the marks of `mark_controlled`."""
        self._getters: dict[tuple[str, ...], _Getters] = {}
        self._speed_getters: dict[tuple[str, ...], wire.NumericGetters] = {}
        self._origins: dict[str, str] = {}
        """Road on which a vehicle waits to depart, or has waited."""
        self._detectors: _TrackedDetectors | None = None

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

    @property
    def lanes(self) -> tuple[str, ...]:
        return self._table.lanes

    @property
    def readings(self) -> Readings:
        return self._table.readings

    def track(
        self,
        lanes_of: Mapping[str, Sequence[str]],
        outflow_lanes: Sequence[str],
        signals: Mapping[str, int],
        vehicle_lanes_of: Mapping[str, Sequence[str]] = {},
    ) -> None:
        self._table.track(lanes_of, outflow_lanes, vehicle_lanes_of)
        self._signals, self._states = tuple(signals), wire.StateGetters(signals)
        self._outflow_getters = b"".join(
            wire.get(wire.GET_LANE, wire.LAST_STEP_VEHICLE_IDS, lane) for lane in outflow_lanes
        )

    def detector_parameters(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        detectors = self.api.inductionloop.getIDList()
        if not detectors:
            return {}  # SUMO does not answer a message without commands
        answer = self._request(
            wire.message(
                [wire.get_parameter(wire.GET_DETECTOR, detector, key) for detector in detectors for key in keys]
            )
        )
        reader = wire.Reader(answer)
        try:
            return {detector: tuple(str(reader.value()) for _ in keys) for detector in detectors}
        except CommandRejected as error:
            raise CommandRejected(f"SUMO rejected a getter: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def track_detectors(self, detectors: Sequence[str], sumo_step_s: float) -> None:
        self._detectors = None
        if not detectors:
            return
        now = float(self.api.simulation.getTime())
        self._detectors = _TrackedDetectors(detectors, now, sumo_step_s)
        answer = self._request(self._detectors.request)
        try:
            self._detectors.decode(answer, now)
        except CommandRejected as error:
            raise CommandRejected(f"SUMO rejected a getter: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def _getters_for(self, due: tuple[str, ...]) -> _Getters:
        if due not in self._getters:
            if len(self._getters) > MAX_CACHED_BATCHES:
                self._getters.clear()
            lanes, rows = self._table.rows_of(due)
            variables = [(wire.GET_LANE, variable, lane, kind) for lane in lanes for variable, kind in _LANE_VARIABLES]
            variables.append((wire.GET_SIM, wire.TIME, "", wire.TYPE_DOUBLE))
            numbers = wire.NumericGetters(variables)
            vehicle_lanes, vehicle_rows = self._table.vehicle_rows_of(due)
            vehicle_ids = wire.VehicleIdGetters(vehicle_lanes)
            request = wire.message([numbers.request, vehicle_ids.request])
            self._getters[due] = _Getters(numbers, rows, vehicle_ids, vehicle_rows, request)
        return self._getters[due]

    def set(self, commands: Sequence[SignalCommand]) -> None:
        # Commands and step are separate messages. With several clients, SUMO sends the answers to commands
        # in the same message as a step to another client: it has one buffer of answers, and a step
        # makes the next client current.
        if commands:
            # the states of the segment before are requested in the same message
            states = [] if self._segment_end_s is None else [self._states.request]
            encoded = [part for command in commands for part in encode_commands(command)]
            self._post(wire.message([*states, *encoded]), _Sent(_Kind.COMMANDS, commands, self._segment_end_s))
            self._messages.send()  # SUMO begins with them while the step is prepared

    def advance(self, until_s: float) -> None:
        if self._detectors is None:
            self._post(wire.message([wire.step(until_s)]), _Sent(_Kind.STEP))
        else:
            for end_s in self._detectors.advance(until_s):
                self._post(wire.message([wire.step(end_s)]), _Sent(_Kind.STEP))
                self._post(self._detectors.request, _Sent(_Kind.DETECTORS, step_end_s=end_s))
        self._post_outflow_getters()
        self._messages.send()
        self._segment_end_s = until_s

    def read(self, due: tuple[str, ...]) -> StepResult:
        getters = self._getters_for(due)
        if not self._has_read:
            self._has_read = True
            self._post_outflow_getters()  # the vehicles at the beginning
        self._post(getters.request, _Sent(_Kind.LANES))
        answers = self._messages.answers(len(self._unanswered))
        if self._signals:
            # SUMO answers this while the next decision is prepared
            self._post(wire.message([self._states.request]), _Sent(_Kind.STATES))
        rejected: dict[str, str] = {}
        shown: list[tuple[float, Sequence[str]]] = []
        answer = b""
        try:
            # the answers before the lanes' are decoded while SUMO still simulates
            for answer in answers:
                sent = self._unanswered.popleft()
                if sent.kind is _Kind.STEP:
                    if answer != wire.STEPPED:
                        wire.Reader(answer).stepped()
                elif sent.kind is _Kind.OUTFLOW:
                    self._count_outflow(wire.Reader(answer))
                elif sent.kind is _Kind.DETECTORS and self._detectors is not None:
                    self._detectors.decode(answer, sent.step_end_s)
                elif sent.kind is _Kind.STATES:
                    self._decode_shown(answer)
                elif sent.kind is _Kind.COMMANDS:
                    decoded = 0
                    if sent.segment_end_s is not None:
                        states, decoded = self._states.decode(answer)
                        shown.append((sent.segment_end_s, states))
                    rejected |= decode_rejections(answer[decoded:], sent.commands)
            ints, doubles = getters.numbers.decode(answer)
            names, counts = getters.vehicle_ids.decode(answer, getters.numbers.size)
            readings = self._table.readings
            readings.counts[:, getters.rows], readings.mean_length_m[getters.rows] = ints.reshape(-1, 2).T, doubles[:-1]
            self._segment_end_s = None
        except CommandRejected as error:
            for _ in answers:
                self._unanswered.popleft()  # so that they are not taken for answers to the next requests
            raise CommandRejected(f"SUMO rejected a step or a getter: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None
        self._table.set_vehicles(
            self._vehicles(names, np.repeat(getters.vehicle_rows, counts)) if names else NO_VEHICLES
        )
        detector_changes = self._detectors.take_changes() if self._detectors is not None else ()
        return StepResult(float(doubles[-1]), shown, rejected, detector_changes)

    def _vehicles(self, names: Sequence[bytes], rows: Rows) -> VehicleReadings:
        """Request the readings of vehicles on the lanes of `rows`. Raises the exceptions of `read`."""
        getters = wire.VehicleGetters(names)
        self.shown()  # receives the answer that is due first
        answer = self._request(wire.message([getters.request]))
        try:
            values, known = getters.decode(answer)
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None
        return VehicleReadings(rows[known], *values)

    def shown(self) -> dict[str, str]:
        if self._unanswered and self._unanswered[0].kind is _Kind.STATES:
            answer = next(self._messages.answers(1))
            self._unanswered.popleft()
            try:
                self._decode_shown(answer)
            except CommandRejected as error:
                raise CommandRejected(f"SUMO rejected a getter: {error}") from None
            except MalformedMessage as error:
                raise SumoConnectionLost(f"SUMO sent {error}") from None
        return self._shown

    def programs(self, signals: Sequence[str]) -> dict[str, str]:
        self.shown()  # receives the answer that is due first
        answer = self._request(
            wire.message([wire.get(wire.GET_TL, wire.CURRENT_PROGRAM, signal) for signal in signals])
        )
        reader = wire.Reader(answer)
        try:
            return {signal: str(reader.value()) for signal in signals}
        except CommandRejected as error:
            raise CommandRejected(f"SUMO rejected a getter: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def traffic(self, lanes: tuple[str, ...]) -> Traffic:
        if lanes not in self._speed_getters:
            if len(self._speed_getters) > MAX_CACHED_BATCHES:
                self._speed_getters.clear()
            variables = [(wire.GET_LANE, variable, lane, kind) for lane in lanes for variable, kind in _SPEED_VARIABLES]
            self._speed_getters[lanes] = wire.NumericGetters(variables)
        getters = self._speed_getters[lanes]
        self.shown()  # receives the answer that is due first
        answer = self._request(wire.message([getters.request, wire.get(wire.GET_SIM, wire.PENDING_VEHICLES, "")]))
        try:
            counts, speeds_mps = getters.decode(answer)
            waiting = list(wire.Reader(answer, getters.size).value())
            # its route is the same as long as a vehicle waits
            if unknown := [vehicle for vehicle in waiting if vehicle not in self._origins]:
                routes = [wire.get(wire.GET_VEHICLE, wire.EDGES, vehicle) for vehicle in unknown]
                reader = wire.Reader(self._request(wire.message(routes)))
                self._origins |= {vehicle: reader.value()[0] for vehicle in unknown}
        except CommandRejected as error:
            raise CommandRejected(f"SUMO rejected a getter: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None
        return Traffic(counts, speeds_mps, [self._origins[vehicle] for vehicle in waiting])

    def vehicles_near(self, junction: str, radius_m: float) -> NDArray[np.float64]:
        self.shown()  # receives the answer that is due first
        answer = self._request(wire.message([wire.vehicles_near(junction, radius_m)]))
        try:
            return wire.decode_vehicles_near(answer, junction)
        except CommandRejected as error:
            raise CommandRejected(f"SUMO rejected a subscription: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def _decode_shown(self, answer: bytes) -> None:
        self._shown = dict(zip(self._signals, self._states.decode(answer)[0], strict=True))

    def _post_outflow_getters(self) -> None:
        if self._outflow_getters:
            self._post(wire.message([self._outflow_getters]), _Sent(_Kind.OUTFLOW))

    def _count_outflow(self, reader: wire.Reader) -> None:
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

    def running(self, signal: str) -> tuple[str, str]:
        """Request (program, state) of a signal. Raises CommandRejected."""
        try:
            return self.api.trafficlight.getProgram(signal), self.api.trafficlight.getRedYellowGreenState(signal)
        except traci.TraCIException as error:
            raise CommandRejected(str(error)) from None

    def switch_program(self, signal: str, program: str) -> None:
        with contextlib.suppress(CommandRejected):
            self.shown()  # receives the answer that is due first; the signal is switched even if it is a rejection
        answer = self._request(wire.message([wire.set_string(wire.SET_TL, wire.PROGRAM, signal, program)]))
        try:
            wire.Reader(answer).status()
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def mark_controlled(self, signals: Sequence[str], owner: str) -> None:
        if not signals:
            return
        marks, self._unmark = (
            wire.message([wire.set_parameter(f"{OWNER_KEY}.{signal}", text) for signal in signals])
            for text in (owner, "")
        )
        self.shown()  # receives the answer that is due first
        reader = wire.Reader(self._request(marks))
        try:
            for _ in signals:
                reader.status()
        except (CommandRejected, MalformedMessage) as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def register_handover(self, content: bytes) -> None:
        if not self.version()[1].endswith(wire.GUARDED):
            return
        self._is_guarded = True
        answer = self._request(wire.message([wire.command(wire.HANDOVER, content)]))
        try:
            wire.Reader(answer).status()
        except (CommandRejected, MalformedMessage) as error:
            raise SumoConnectionLost(f"the guard of the connection sent {error}") from None

    def keep_alive(self) -> None:
        if self._is_guarded:
            self.shown()  # receives the answer that is due first
            # answered by the guard itself: SUMO does nothing
            self._request(wire.message([wire.command(wire.GETVERSION, b"")]))

    def check_open(self) -> None:
        self.shown()  # receives the answer that is due first: it would hide the end behind it
        self._messages.check_open()

    def signal_states(self, links_of: Mapping[str, int]) -> list[str]:
        if not links_of:
            return []
        if tuple(links_of) != self._untracked[0]:
            self._untracked = tuple(links_of), wire.StateGetters(links_of)
        getters = self._untracked[1]
        self.shown()  # receives the answer that is due first
        answer = self._request(wire.message([getters.request]))
        try:
            return getters.decode(answer)[0]
        except CommandRejected as error:
            raise CommandRejected(f"SUMO rejected a getter: {error}") from None
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def _request(self, message: bytes) -> bytes:
        """Send a message and wait for its answer; answers that are due before it are dropped."""
        self._post(message, _Sent(_Kind.SINGLE))
        newest = b""
        for answer in self._messages.answers(len(self._unanswered)):
            self._unanswered.popleft()
            newest = answer
        return newest

    def _post(self, message: bytes, sent: _Sent) -> None:
        self._unanswered.append(sent)
        self._messages.queue(message)

    def error_message(self) -> str:
        return self._stderr.error()

    def abandon(self, programs: Sequence[tuple[str, str]]) -> None:
        switches = [wire.set_string(wire.SET_TL, wire.PROGRAM, signal, program) for signal, program in programs]
        self._messages.end(wire.message(switches) + self._unmark + wire.message([wire.command(wire.CLOSE, b"")]))

    def close(self) -> None:
        """Close cleanly, and wait for the end of a SUMO that this process started."""
        with contextlib.suppress(SumoConnectionLost, CommandRejected, WaitAborted):
            self.shown()  # its answer is due before that of CLOSE; if SUMO has ended, the next call reports it
        # a guard hands the signals back, so this need not wait for SUMO's other clients
        wait = not (self._is_guarded and self._interrupts.abort_requested())
        has_answer = self._messages.end(self._unmark + wire.message([wire.command(wire.CLOSE, b"")]), wait)
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
