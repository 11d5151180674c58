"""A SUMO program over its socket: two round trips a decision step, however many TLs."""

import contextlib
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from controller.observation import Readings
from controller.safety import PermittedHandover, PermittedState
from controller.sumo import wire
from controller.sumo.link import Lanes, Setting, SumoGone, SumoRefused
from controller.sumo.programs import Voice
from controller.sumo.wire import Garbled, Refused

_LANE_NUMBERS = (
    (wire.LAST_STEP_VEHICLE_NUMBER, wire.TYPE_INT),
    (wire.LAST_STEP_HALTING, wire.TYPE_INT),
    (wire.LAST_STEP_LENGTH, wire.TYPE_DOUBLE),
)


class TraciLink:
    """One socket to a SUMO program."""

    def __init__(
        self,
        api: Any,
        lost: type[Exception],
        process: subprocess.Popen[bytes] | None,
        voice: Voice,
        stopping: Callable[[], bool],
    ) -> None:
        self.api = api
        self._voice = voice
        self.lost = lost
        self._socket: socket.socket = api._socket  # traci has no public way to send many commands at once
        self._process = process
        self._stopping = stopping
        self._table = Lanes()
        self._getters: dict[tuple[str, ...], tuple[wire.NumberGetters, np.ndarray[Any, Any]]] = {}

    @property
    def lanes(self) -> tuple[str, ...]:
        return self._table.lanes

    @property
    def readings(self) -> Readings:
        return self._table.readings

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str]) -> None:
        # only from here on: traci's own calls take a time-out for the end of SUMO
        self._socket.settimeout(1.0)
        self._table.watch(lanes_of, counted)
        self._counted = b"".join(wire.get(wire.GET_LANE, wire.LAST_STEP_VEHICLE_IDS, lane) for lane in counted)

    def _getters_for(self, due: tuple[str, ...]) -> tuple[wire.NumberGetters, Any]:
        if due not in self._getters:
            if len(self._getters) > 256:
                self._getters.clear()
            table = self._table
            lanes = list(dict.fromkeys(lane for tl in due for lane in table.lanes_of[tl]))
            wanted = [(wire.GET_SIM, wire.TIME, "", wire.TYPE_DOUBLE)]
            wanted += [(wire.GET_LANE, variable, lane, kind) for lane in lanes for variable, kind in _LANE_NUMBERS]
            rows = np.array([table.row[lane] for lane in lanes], np.intp)
            self._getters[due] = wire.NumberGetters(wanted), rows
        return self._getters[due]

    def read(self, due: tuple[str, ...], shown: Sequence[str]) -> tuple[float, Readings, dict[str, str]]:
        getters, rows = self._getters_for(due)
        states = [wire.get(wire.GET_TL, wire.STATE, signal) for signal in shown]
        answer = self._exchange([getters.request, self._counted, *states])
        try:
            values = getters.decode(answer)
            table = self._table
            numbers = values[1:].reshape(-1, len(_LANE_NUMBERS))
            for array, column in zip(
                (table.readings.vehicles, table.readings.halting, table.readings.mean_length_m), numbers.T, strict=True
            ):
                array[rows] = column
            rest = wire.Reader(answer, getters.size)
            for lane in table.counted:
                table.count(lane, rest.value())
            return float(values[0]), table.readings, {signal: str(rest.value()) for signal in shown}
        except Refused as error:
            raise SumoRefused(str(error)) from None
        except Garbled as error:
            raise SumoGone(f"SUMO answers {error}") from None

    def step(self, settings: Sequence[Setting], until_s: float) -> None:
        commands: list[bytes] = []
        for setting in settings:
            if type(setting) is PermittedState:
                commands.append(wire.set_text(wire.SET_TL, wire.STATE, setting.signal, setting.state))
            elif type(setting) is PermittedHandover:
                commands.append(wire.set_text(wire.SET_TL, wire.PROGRAM, setting.signal, setting.program))
                commands.append(wire.set_int(wire.SET_TL, wire.PHASE, setting.signal, setting.phase))
            else:
                raise TypeError(f"only what the safety rules permit reaches SUMO, not {setting!r}")
        # Two messages, sent together: one round trip. In one message SUMO would give the
        # answers to the settings to another client, where there are several: it keeps one
        # buffer of answers, and a step hands the turn to the next client.
        messages = [wire.message(commands)] if commands else []
        self._send(b"".join([*messages, wire.message([wire.step(until_s)])]))
        try:
            refusals = []
            reader = wire.Reader(self._answer() if commands else b"")
            for _ in commands:
                try:
                    reader.status()
                except Refused as error:
                    refusals.append(str(error))
            wire.Reader(self._answer()).stepped()
        except Refused as error:
            raise SumoGone(f"SUMO cannot step: {error}") from None
        except Garbled as error:
            raise SumoGone(f"SUMO answers {error}") from None
        if refusals:
            raise SumoRefused("; ".join(refusals))

    def switch_program(self, signal: str, program: str) -> None:
        try:
            wire.Reader(self._exchange([wire.set_text(wire.SET_TL, wire.PROGRAM, signal, program)])).status()
        except Refused as error:
            raise SumoRefused(str(error)) from None
        except Garbled as error:
            raise SumoGone(f"SUMO answers {error}") from None

    def _exchange(self, commands: Sequence[bytes]) -> bytes:
        self._send(wire.message(commands))
        return self._answer()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise SumoGone(f"the connection to SUMO has ended: {error}") from None

    def _answer(self) -> bytes:
        try:
            (size,) = struct.unpack("!i", self._receive(4))
            return self._receive(size - 4)
        except OSError as error:
            raise SumoGone(f"the connection to SUMO has ended: {error}") from None

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        patience = 10
        while len(parts) < size:
            try:
                part = self._socket.recv(min(size - len(parts), 1 << 20))
            except TimeoutError:
                # another client of the simulation may take its time; but who is asked to stop does not wait for ever
                patience -= self._stopping()
                if patience <= 0:
                    raise SumoGone("SUMO did not answer within 10 s of the request to stop") from None
                continue
            if not part:
                raise SumoGone(self._voice.error() or "SUMO has closed the connection")
            parts += part
        return bytes(parts)

    def why(self) -> str:
        return self._voice.error()

    def close(self) -> None:
        """Close cleanly and end the SUMO program that was started here."""
        with contextlib.suppress(OSError, SumoGone):
            self._socket.settimeout(5)
            self._socket.sendall(wire.message([wire.command(wire.CLOSE, b"")]))
            self._socket.recv(64)
        self._socket.close()
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
