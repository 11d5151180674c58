"""A run of the sample city's own programs over libsumo: its readings of every step, and the period that follows from
it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from controller.sumo.libsumo_connection import start_libsumo
from records.atspm.analysis_period import AnalysisPeriod, Detection, ProgramChange, ShownState, SignalHistory
from records.atspm.detectors import PlacedDetector
from tests.conftest import GRID

ZERO = datetime(2026, 3, 2, 7)
OPTIONS = ("--scale", "1.3", "--seed", "7")
"""More demand than the city's, so that some splits fail."""


@dataclass
class Readings:
    seconds: int
    states: dict[str, list[str]] = field(default_factory=dict)
    """By signal, the state shown in each second."""
    phase: dict[str, list[int]] = field(default_factory=dict)
    """By signal, SUMO's index of the phase in each second."""
    max_s: dict[str, list[float]] = field(default_factory=dict)
    """By signal, the maximum duration of each phase of its program."""
    program: dict[str, str] = field(default_factory=dict)
    passages: dict[str, dict[tuple[str, float], float]] = field(default_factory=dict)
    """By detector, (vehicle, second of its entry) -> second of its exit; -1 while it is on the detector."""
    link_of_lane: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By incoming lane, (signal, index of its link straight on, else to the left, else to the right)."""


def run(additional: Sequence[Path], placed: Sequence[PlacedDetector], seconds: int) -> Readings:
    """Simulate the sample city with the programs of its files, of which SUMO runs the last one loaded."""
    files = ",".join(map(str, [GRID / "fixed_time.add.xml", *additional]))
    options = ["-c", str(GRID / "grid.sumocfg"), "-a", files, *OPTIONS, "--no-step-log", "--no-warnings"]
    connection = start_libsumo(options)
    api = connection.api
    signals = api.trafficlight.getIDList()
    readings = Readings(
        seconds, {s: [] for s in signals}, {s: [] for s in signals}, passages={detector.id: {} for detector in placed}
    )
    for signal in signals:
        readings.program[signal] = api.trafficlight.getProgram(signal)
        logics = {logic.programID: logic for logic in api.trafficlight.getAllProgramLogics(signal)}
        readings.max_s[signal] = [phase.maxDur for phase in logics[readings.program[signal]].phases]
        index = {ends[0][:2]: k for k, ends in enumerate(api.trafficlight.getControlledLinks(signal)) if ends}
        for lane in dict.fromkeys(api.trafficlight.getControlledLanes(signal)):
            links = sorted(api.lane.getLinks(lane), key=lambda link: "slr".index(link[6]))
            readings.link_of_lane[lane] = signal, index[lane, links[0][0]]
    for _ in range(seconds):
        api.simulationStep()
        for signal in signals:
            readings.states[signal].append(api.trafficlight.getRedYellowGreenState(signal))
            readings.phase[signal].append(api.trafficlight.getPhase(signal))
        for detector, passages in readings.passages.items():
            for vehicle, _, entry_s, exit_s, _ in api.inductionloop.getVehicleData(detector):
                passages[vehicle, entry_s] = exit_s
    connection.close()
    return readings


def union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals that cover the same time."""
    disjoint: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if disjoint and begin <= disjoint[-1][1]:
            disjoint[-1] = disjoint[-1][0], max(end, disjoint[-1][1])
        else:
            disjoint.append((begin, end))
    return disjoint


def occupied(passages: Mapping[tuple[str, float], float], end_s: float) -> list[tuple[int, int]]:
    """The intervals in which a detector is occupied by any vehicle, ms."""
    ends = [(entry_s, exit_s if exit_s >= 0 else end_s) for (_, entry_s), exit_s in passages.items()]
    return union((round(entry_s * 1000), round(exit_s * 1000)) for entry_s, exit_s in ends)


def period(readings: Readings) -> AnalysisPeriod:
    signals = []
    for signal, states in readings.states.items():
        changes = [k for k, state in enumerate(states) if not k or state != states[k - 1]]
        shown = tuple(ShownState(float(k), states[k]) for k in changes)
        signals.append(SignalHistory(signal, shown, programs=(ProgramChange(0.0, readings.program[signal]),)))
    detections = [
        Detection(detector, ms / 1000, is_on)
        for detector, passages in readings.passages.items()
        for interval in occupied(passages, readings.seconds)
        for ms, is_on in zip(interval, (True, False), strict=True)
        if ms < 1000 * readings.seconds
    ]
    return AnalysisPeriod(0.0, float(readings.seconds), ZERO, tuple(signals), tuple(detections))
