"""A SUMO program over its socket: one round trip a decision step, however many TLs."""

import contextlib
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import traci

from controller.observation import Readings, Rows
from controller.sumo import wire
from controller.sumo.link import Lanes, Moment, NotWaiting, Setting, SumoGone, SumoRefused
from controller.sumo.messages import Messages
from controller.sumo.programs import Voice
from controller.sumo.settings import commands_of, refusals_of
from controller.sumo.wire import Garbled, Refused

_LANE_NUMBERS = (
    (wire.LAST_STEP_VEHICLE_NUMBER, wire.TYPE_INT),
    (wire.LAST_STEP_HALTING, wire.TYPE_INT),
    (wire.LAST_STEP_LENGTH, wire.TYPE_DOUBLE),
)
"""Of each lane: the ints, then the double."""


class _Settings(NamedTuple):
    """A message of settings; `seen_s`: the second up to which it also asks what was shown."""

    settings: Sequence[Setting]
    seen_s: float | None


_STEP, _COUNTED, _NUMBERS, _SHOWN, _OTHER = (_Settings((), None) for _ in range(5))
"""Stand for the other messages: a step; what asks for the vehicles of counted lanes, for numbers, for the states behind them;
what is asked by itself."""
CLOSE_S, ABANDON_S = 10.0, 30.0
"""Wall time that SUMO may take to answer the end of a connection."""


class TraciLink:
    """One socket to a SUMO program."""

    def __init__(
        self,
        api: Any,
        lost: type[Exception],
        process: subprocess.Popen[bytes] | None,
        voice: Voice,
        hurried: Callable[[], bool],
        through_guard: bool = False,
    ) -> None:
        """`hurried`: whether whoever stops the controller does not want to wait for SUMO.

        `through_guard`: `process` is the guard that the connection leads to.
        """
        self._through_guard, self._guarded = through_guard, False
        self._api = api
        self._voice = voice
        self.lost = lost
        # traci has no public way to send many commands at once
        self._messages = Messages(api._socket, voice, hurried)
        self._process = process
        self._hurried = hurried
        self._table = Lanes()
        self._has_read = False
        self._reached_s: float | None = None
        """Where the way since the last reading leads to."""
        self._unanswered: deque[_Settings] = deque()
        """Messages whose answers have not come yet."""
        self._shown: dict[str, str] = {}
        self._getters: dict[tuple[str, ...], tuple[wire.NumberGetters, slice | Rows, bytes]] = {}

    @property
    def api(self) -> Any:
        self.shown()  # or its answer would be taken for that to another question
        return self._api

    @property
    def guarded(self) -> bool:
        """Whether a guard hands the signals back when this link closes."""
        return self._guarded

    @property
    def socket(self) -> socket.socket:
        return self._messages.socket

    @property
    def lanes(self) -> tuple[str, ...]:
        return self._table.lanes

    @property
    def readings(self) -> Readings:
        return self._table.readings

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str], signals: Mapping[str, int]) -> None:
        self._table.watch(lanes_of, counted)
        self._signals, self._states = tuple(signals), wire.StateGetters(signals)
        self._counted = b"".join(wire.get(wire.GET_LANE, wire.LAST_STEP_VEHICLE_IDS, lane) for lane in counted)

    def _getters_for(self, due: tuple[str, ...]) -> tuple[wire.NumberGetters, slice | Rows, bytes]:
        if due not in self._getters:
            if len(self._getters) > 256:
                self._getters.clear()
            lanes, rows = self._table.of(due)
            wanted = [(wire.GET_LANE, variable, lane, kind) for lane in lanes for variable, kind in _LANE_NUMBERS]
            wanted.append((wire.GET_SIM, wire.TIME, "", wire.TYPE_DOUBLE))
            getters = wire.NumberGetters(wanted)
            self._getters[due] = getters, rows, wire.message([getters.request])
        return self._getters[due]

    def set(self, settings: Sequence[Setting]) -> None:
        # Settings and step are messages of their own. In one message SUMO would give the
        # answers to the settings to another client, where there are several: it keeps one
        # buffer of answers, and a step hands the turn to the next client.
        if settings:
            # what was shown up to here is asked for in the same message
            shown = [] if self._reached_s is None else [self._states.request]
            commands = [command for setting in settings for command in commands_of(setting)]
            self._post(wire.message([*shown, *commands]), _Settings(settings, self._reached_s))
            self._messages.send()  # SUMO wakes up while the step is thought of

    def go(self, until_s: float) -> None:
        self._post(wire.message([wire.step(until_s)]), _STEP)
        self._post_counts()
        self._messages.send()
        self._reached_s = until_s

    def read(self, due: tuple[str, ...]) -> Moment:
        getters, rows, request = self._getters_for(due)
        if not self._has_read:
            self._has_read = True
            self._post_counts()  # who is there at the beginning
        self._post(request, _NUMBERS)
        answers = self._messages.answers(len(self._unanswered))
        if self._signals:
            # SUMO tells it while the next decision is thought of
            self._post(wire.message([self._states.request]), _SHOWN)
        refusals: dict[str, str] = {}
        seen: list[tuple[float, Sequence[str]]] = []
        answer = b""
        try:
            # those that come before the numbers are looked at while SUMO still simulates
            for answer in answers:
                kind = self._unanswered.popleft()
                if kind is _STEP:
                    if answer != wire.STEPPED:
                        wire.Reader(answer).stepped()
                elif kind is _COUNTED:
                    self._count(wire.Reader(answer))
                elif kind is _SHOWN:
                    self._show(answer)
                elif kind is not _NUMBERS:
                    acknowledged = 0
                    if kind.seen_s is not None:
                        seen.append((kind.seen_s, self._states.decode(answer)))
                        acknowledged = self._states.size
                    refusals |= refusals_of(answer[acknowledged:], kind.settings)
            ints, doubles = getters.decode(answer)
            read = self._table.readings
            read.counts[:, rows], read.mean_length_m[rows] = ints.reshape(-1, 2).T, doubles[:-1]
            self._reached_s = None
            return Moment(float(doubles[-1]), seen, refusals)
        except Refused as error:
            for _ in answers:
                self._unanswered.popleft()  # they are not the answers to what is asked next
            raise SumoRefused(f"SUMO refuses to step or to be read: {error}") from None
        except Garbled as error:
            raise SumoGone(f"SUMO answers {error}") from None

    def shown(self) -> dict[str, str]:
        if self._unanswered and self._unanswered[0] is _SHOWN:
            answer = next(self._messages.answers(1))
            self._unanswered.popleft()
            try:
                self._show(answer)
            except Refused as error:
                raise SumoRefused(f"SUMO refuses to be read: {error}") from None
            except Garbled as error:
                raise SumoGone(f"SUMO answers {error}") from None
        return self._shown

    def _show(self, answer: bytes) -> None:
        self._shown = dict(zip(self._signals, self._states.decode(answer), strict=True))

    def _post_counts(self) -> None:
        if self._counted:
            self._post(wire.message([self._counted]), _COUNTED)

    def _count(self, reader: wire.Reader) -> None:
        for lane in self._table.counted:
            self._table.count(lane, reader.value())

    def version(self) -> tuple[int, str]:
        """SUMO's, as it tells it; a guard adds wire.GUARDED. Raises SumoGone."""
        try:
            number, words = self.api.getVersion()
        except (self.lost, OSError) as error:
            raise SumoGone(self._voice.error() or str(error)) from None
        return int(number), str(words)

    def running(self, signal: str) -> tuple[str, str]:
        """(program, state) of a signal, asked for by itself. Raises SumoRefused."""
        try:
            return self.api.trafficlight.getProgram(signal), self.api.trafficlight.getRedYellowGreenState(signal)
        except traci.TraCIException as error:
            raise SumoRefused(str(error)) from None

    def switch_program(self, signal: str, program: str) -> None:
        with contextlib.suppress(SumoRefused):
            self.shown()  # its answer comes before; that it is refused is no reason to leave the signal as it is
        answer = self._answer_to(wire.message([wire.set_text(wire.SET_TL, wire.PROGRAM, signal, program)]))
        try:
            wire.Reader(answer).status()
        except Refused as error:
            raise SumoRefused(str(error)) from None
        except Garbled as error:
            raise SumoGone(f"SUMO answers {error}") from None

    def leave_will(self, content: bytes) -> None:
        if not self.version()[1].endswith(wire.GUARDED):
            return
        self._guarded = True
        answer = self._answer_to(wire.message([wire.command(wire.WILL, content)]))
        try:
            wire.Reader(answer).status()
        except (Refused, Garbled) as error:
            raise SumoGone(f"the guard of the connection answers {error}") from None

    def _answer_to(self, message: bytes) -> bytes:
        """The answer to a message by itself; those that are due before it are passed over."""
        self._post(message, _OTHER)
        newest = b""
        for answer in self._messages.answers(len(self._unanswered)):
            self._unanswered.popleft()
            newest = answer
        return newest

    def _post(self, message: bytes, kind: _Settings) -> None:
        self._unanswered.append(kind)
        self._messages.post(message)

    def why(self) -> str:
        return self._voice.error()

    def abandon(self, programs: Sequence[tuple[str, str]]) -> None:
        switches = [wire.set_text(wire.SET_TL, wire.PROGRAM, signal, program) for signal, program in programs]
        self._messages.end(wire.message(switches) + wire.message([wire.command(wire.CLOSE, b"")]), ABANDON_S)

    def close(self) -> None:
        """Close cleanly, and wait."""
        with contextlib.suppress(SumoGone, SumoRefused, NotWaiting):
            self.shown()  # or its answer would be taken for that to the end; where there is none, the end tells
        # the guard sees to what is left, so that nobody need wait for SUMO's other clients
        wait_s = 0.0 if self._guarded and self._hurried() else CLOSE_S
        is_closed = self._messages.end(wire.message([wire.command(wire.CLOSE, b"")]), wait_s)
        # a guard goes on without a controller that it has given up
        if is_closed or not self._through_guard:
            self.wait()

    def wait(self) -> None:
        """See the SUMO program that was started here to its end."""
        # it may still serve other clients, or write large outputs
        while self._process is not None and self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            if self._hurried():
                if self._through_guard:
                    return  # it sees to the end by itself; killed, it would end the simulation for the others
                self._process.kill()
                self._process.wait()
