"""The link to SUMO: readings in bulk, signal states and the step sent together.

`TraciLink` talks to a SUMO program over a socket, two round trips a decision step;
`LibsumoLink` drives libsumo in this process. Both offer the same methods.
"""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from city.errors import InputError
from controller.observation import Readings
from controller.safety import PermittedHandover, PermittedState
from controller.sumo import wire
from controller.sumo.wire import Garbled, Refused

Setting = PermittedState | PermittedHandover
_LANE_NUMBERS = (
    (wire.LAST_STEP_VEHICLE_NUMBER, wire.TYPE_INT),
    (wire.LAST_STEP_HALTING, wire.TYPE_INT),
    (wire.LAST_STEP_LENGTH, wire.TYPE_DOUBLE),
)


class SumoGone(Exception):
    """The connection to SUMO has ended; nothing more can be set or read."""


class SumoRefused(Exception):
    """SUMO refused a command; the connection goes on."""


class Link(Protocol):
    api: Any
    """traci's connection, or libsumo: for start-up questions, not for decision steps."""
    lost: type[Exception]
    """What `api` raises when SUMO is gone."""

    @property
    def lanes(self) -> tuple[str, ...]:
        """Every watched lane, in the order of the readings."""

    @property
    def readings(self) -> Readings:
        """The newest readings."""

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str]) -> None:
        """Name the lanes of each TL, and those whose leaving vehicles are counted every step."""

    def read(self, due: tuple[str, ...], shown: Sequence[str]) -> tuple[float, Readings, dict[str, str]]:
        """Time (s), readings (fresh for the TLs due) and the states that signals show."""

    def step(self, settings: Sequence[Setting], until_s: float) -> None:
        """Set states, then simulate until `until_s`."""

    def switch_program(self, signal: str, program: str) -> None:
        """Hand a signal back at once. Only for the way out, where no step is left."""

    def close(self) -> None: ...


class _Lanes:
    """The lanes' rows in the readings, and the count of vehicles that left."""

    def __init__(self) -> None:
        self.lanes: tuple[str, ...] = ()
        self.row: dict[str, int] = {}
        self._inside: dict[str, frozenset[str]] = {}

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str]) -> None:
        self.lanes_of = {tl: tuple(lanes) for tl, lanes in lanes_of.items()}
        self.lanes = tuple(dict.fromkeys(lane for lanes in self.lanes_of.values() for lane in lanes))
        self.row = {lane: i for i, lane in enumerate(self.lanes)}
        self.counted = tuple(counted)
        self._inside = dict.fromkeys(self.counted, frozenset())
        size = len(self.lanes)
        self.readings = Readings(np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size))

    def count(self, lane: str, vehicles: Sequence[str]) -> None:
        now = frozenset(vehicles)
        self.readings.left_total[self.row[lane]] += len(self._inside[lane] - now)
        self._inside[lane] = now


class TraciLink:
    """One socket to a SUMO program."""

    def __init__(
        self, api: Any, lost: type[Exception], process: subprocess.Popen[bytes] | None, stopping: Callable[[], bool]
    ) -> None:
        self.api = api
        self.lost = lost
        self._socket: socket.socket = api._socket  # traci has no public way to send many commands at once
        self._process = process
        self._stopping = stopping
        self._table = _Lanes()
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
                raise SumoGone("SUMO has closed the connection")
            parts += part
        return bytes(parts)

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


class LibsumoLink:
    """SUMO in this process, where the controller is its only client."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.lost = api.FatalTraCIError
        self._table = _Lanes()

    @property
    def lanes(self) -> tuple[str, ...]:
        return self._table.lanes

    @property
    def readings(self) -> Readings:
        return self._table.readings

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str]) -> None:
        self._table.watch(lanes_of, counted)

    def read(self, due: tuple[str, ...], shown: Sequence[str]) -> tuple[float, Readings, dict[str, str]]:
        lane, table = self.api.lane, self._table
        readings = table.readings
        for name in dict.fromkeys(name for tl in due for name in table.lanes_of[tl]):
            row = table.row[name]
            readings.vehicles[row] = lane.getLastStepVehicleNumber(name)
            readings.halting[row] = lane.getLastStepHaltingNumber(name)
            readings.mean_length_m[row] = lane.getLastStepLength(name)
        for name in table.counted:
            table.count(name, lane.getLastStepVehicleIDs(name))
        states = {signal: self.api.trafficlight.getRedYellowGreenState(signal) for signal in shown}
        return self.api.simulation.getTime(), readings, states

    def step(self, settings: Sequence[Setting], until_s: float) -> None:
        light = self.api.trafficlight
        refusals = []
        for setting in settings:
            try:
                if type(setting) is PermittedState:
                    light.setRedYellowGreenState(setting.signal, setting.state)
                elif type(setting) is PermittedHandover:
                    light.setProgram(setting.signal, setting.program)
                    light.setPhase(setting.signal, setting.phase)
                else:
                    raise TypeError(f"only what the safety rules permit reaches SUMO, not {setting!r}")
            except self.api.TraCIException as error:
                refusals.append(str(error))
        try:
            self.api.simulationStep(until_s)
        except self.api.FatalTraCIError as error:
            raise SumoGone(f"SUMO has ended: {error}") from None
        if refusals:
            raise SumoRefused("; ".join(refusals))

    def switch_program(self, signal: str, program: str) -> None:
        self.api.trafficlight.setProgram(signal, program)

    def close(self) -> None:
        self.api.close()


def sumo_program(name: str = "sumo") -> str:
    """The path of a SUMO program: of the eclipse-sumo package, else of $SUMO_HOME or PATH."""
    candidates: list[Path] = []
    with contextlib.suppress(ImportError):
        import sumo

        candidates.append(Path(sumo.SUMO_HOME) / "bin" / name)
    if "SUMO_HOME" in os.environ:
        candidates.append(Path(os.environ["SUMO_HOME"]) / "bin" / name)
    found = next((str(path) for path in candidates if path.is_file()), shutil.which(name))
    if found is None:
        raise InputError(f"the program {name} was not found; install eclipse-sumo or set SUMO_HOME")
    return found


def start(arguments: Sequence[str], clients: int, stopping: Callable[[], bool], order: int | None = None) -> TraciLink:
    """Start the sumo program on a free loopback port and connect to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sumo_program(), *arguments, "--remote-port", str(port), "--num-clients", str(clients)]
    # a group of its own: Ctrl-C at the terminal must reach the controller only, which releases first
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        return attach("127.0.0.1", port, stopping, order, process, patience_s=60)
    except BaseException:
        process.kill()
        process.wait()
        raise


def attach(
    host: str,
    port: int,
    stopping: Callable[[], bool],
    order: int | None = None,
    process: subprocess.Popen[bytes] | None = None,
    patience_s: float = 10,
) -> TraciLink:
    """Connect to a SUMO that listens. Raises InputError where none does."""
    import traci

    limit = time.monotonic() + patience_s
    while True:
        try:
            with contextlib.redirect_stdout(None):
                connection = traci.connect(port, numRetries=0, host=host)
            break
        except (traci.FatalTraCIError, OSError) as error:
            if process is not None and process.poll() is not None:
                said = (process.stderr.read() if process.stderr else b"").decode(errors="replace")
                lines = [line for line in said.splitlines() if line.startswith("Error")] or ["no message"]
                raise InputError(f"SUMO ended before the simulation began: {lines[0]}") from None
            if time.monotonic() > limit or stopping():
                raise InputError(f"no SUMO listens at {host}:{port} ({error}); start it with --remote-port {port}") from None
            time.sleep(0.05)
    if process is not None and process.stderr is not None:
        _drain(process.stderr)
    if order is not None:
        try:
            connection.setOrder(order)
        except (traci.TraCIException, traci.FatalTraCIError) as error:
            raise InputError(
                f"SUMO at {host}:{port} refuses this client as number {order}: {error}; choose another --order"
            ) from None
    return TraciLink(connection, traci.FatalTraCIError, process, stopping)


def _drain(stream: Any) -> None:
    """Keep reading what SUMO writes to stderr, so that it never blocks on a full pipe."""
    import threading

    def run() -> None:
        for _ in stream:
            pass

    threading.Thread(target=run, daemon=True).start()


def start_libsumo(arguments: Sequence[str]) -> LibsumoLink:
    """SUMO inside this process. Raises InputError where it does not start."""
    try:
        import libsumo
    except ImportError as error:
        raise InputError(f"libsumo is not installed ({error}); install libsumo, or leave --libsumo out") from None
    try:
        libsumo.start([sumo_program(), *arguments])
    except (libsumo.TraCIException, libsumo.FatalTraCIError) as error:
        raise InputError(f"SUMO did not start: {error}") from None
    return LibsumoLink(libsumo)
