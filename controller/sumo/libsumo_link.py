"""SUMO in this process, where the controller is its only client."""

from collections.abc import Mapping, Sequence
from typing import Any

from city.errors import InputError
from controller.observation import Readings, Rows
from controller.safety import PermittedHandover, PermittedState
from controller.sumo.link import Lanes, Moment, Setting, SumoGone, SumoRefused
from controller.sumo.programs import sumo_program


class LibsumoLink:
    """SUMO in this process, where the controller is its only client."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.lost = api.FatalTraCIError
        self._table = Lanes()
        self._asked: dict[tuple[str, ...], tuple[list[str], slice | Rows]] = {}
        self._refusals: dict[str, str] = {}
        """Of the settings since the last reading."""
        self._signals: tuple[str, ...] = ()
        self._shown: dict[str, str] = {}
        self._seen: list[tuple[float, Sequence[str]]] = []
        self._reached_s: float | None = None
        """Where the way since the last reading has led to."""

    @property
    def guarded(self) -> bool:
        return False

    @property
    def lanes(self) -> tuple[str, ...]:
        return self._table.lanes

    @property
    def readings(self) -> Readings:
        return self._table.readings

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str], signals: Mapping[str, int]) -> None:
        self._table.watch(lanes_of, counted)
        self._signals = tuple(signals)
        self._count()

    def set(self, settings: Sequence[Setting]) -> None:
        if settings and self._reached_s is not None:
            self._seen.append((self._reached_s, self._states()))
        for setting in settings:
            try:
                self._set(setting)
            except self.api.TraCIException as error:
                self._refusals[setting.signal] = str(error)

    def go(self, until_s: float) -> None:
        try:
            self.api.simulationStep(until_s)
        except self.api.FatalTraCIError as error:
            raise SumoGone(f"SUMO has ended: {error}") from None
        self._reached_s = until_s
        self._count()

    def read(self, due: tuple[str, ...]) -> Moment:
        refusals, self._refusals = self._refusals, {}
        seen, self._seen, self._reached_s = self._seen, [], None
        self._shown = dict(zip(self._signals, self._states(), strict=True))
        lane, readings = self.api.lane, self._table.readings
        if due not in self._asked:
            if len(self._asked) > 256:
                self._asked.clear()
            self._asked[due] = self._table.of(due)
        names, rows = self._asked[due]
        vehicles = list(map(lane.getLastStepVehicleNumber, names))
        # an empty lane need not be asked for more
        halting = [lane.getLastStepHaltingNumber(name) if count else 0 for name, count in zip(names, vehicles, strict=True)]
        lengths_m = [lane.getLastStepLength(name) if count else 0.0 for name, count in zip(names, vehicles, strict=True)]
        readings.counts[:, rows], readings.mean_length_m[rows] = (vehicles, halting), lengths_m
        return Moment(self.api.simulation.getTime(), seen, refusals)

    def shown(self) -> dict[str, str]:
        return self._shown

    def _states(self) -> list[str]:
        return [self.api.trafficlight.getRedYellowGreenState(signal) for signal in self._signals]

    def _count(self) -> None:
        for name in self._table.counted:
            self._table.count(name, self.api.lane.getLastStepVehicleIDs(name))

    def _set(self, setting: Setting) -> None:
        light = self.api.trafficlight
        if type(setting) is PermittedState:
            light.setRedYellowGreenState(setting.signal, setting.state)
        elif type(setting) is PermittedHandover:
            light.setProgram(setting.signal, setting.program)
            light.setPhase(setting.signal, setting.phase)
            if setting.remaining_s is not None:
                light.setPhaseDuration(setting.signal, setting.remaining_s)
        else:
            raise TypeError(f"only what the safety rules permit reaches SUMO, not {setting!r}")

    def leave_will(self, content: bytes) -> None:
        """SUMO ends with this process: there is no guard."""

    def switch_program(self, signal: str, program: str) -> None:
        try:
            self.api.trafficlight.setProgram(signal, program)
        except self.api.TraCIException as error:
            raise SumoRefused(str(error)) from None

    def abandon(self, programs: Sequence[tuple[str, str]]) -> None:
        """SUMO ends with this process: there is nobody to hand anything back to."""

    def why(self) -> str:
        return ""

    def close(self) -> None:
        self.api.close()


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
