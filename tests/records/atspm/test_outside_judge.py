"""Oregon DOT's package atspm reads our files, and its measures are those of libsumo's readings of the run."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import pytest

from city import network
from controller.recording.detectors import ADVANCE, PRESENCE
from evaluation import actuated
from records.atspm import detectors, files
from records.atspm.event_codes import Code
from records.atspm.events import signal_events
from records.atspm.from_record import ObservedSignals
from records.atspm.pictures.phase_pictures import occupancy_ratios
from records.atspm.pictures.signal_view import SignalView, views
from signals import phase_numbers
from tests.conftest import GRID
from tests.records.atspm.libsumo_run import ZERO, Readings, occupied, period, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SECONDS, BIN_S = 3600, 900
RED_S, THRESHOLD = 5, 0.8
"""atspm's defaults: a split fails if a detector is occupied for 80 % of the green, and of the first 5 s of red."""
PACKAGES = ("atspm>=2.6,<2.7", "pandas<3", "duckdb<2")
READ = """
import json, sys
from atspm import SignalDataProcessor
folder = sys.argv[1]
names = {"has_data": {"no_data_min": 5, "min_data_points": 3}, "actuations": {}, "terminations": {}, "coordination_agg": {},
    "arrival_on_green": {"latency_offset_seconds": 0}, "yellow_red": {"latency_offset_seconds": 0},
    "split_failures": {"red_time": 5, "red_occupancy_threshold": 0.8, "green_occupancy_threshold": 0.8, "by_approach": True},
    "timeline": {"min_duration": 0, "cushion_time": 1}}
with SignalDataProcessor(raw_data=f"{folder}/events.csv", detector_config=f"{folder}/detectors.csv", bin_size=15, verbose=0,
        aggregations=[{"name": name, "params": params} for name, params in names.items()]) as processor:
    processor.load()
    processor.aggregate()
    tables = {name: json.loads(processor.conn.query(f"SELECT * FROM {name}").df().to_json(orient="records", date_format="iso"))
        for name in names}
print(json.dumps(tables))
"""


@dataclass
class Judged:
    """A run, its readings, and what atspm computes from our files."""

    readings: Readings
    placed: list[detectors.PlacedDetector]
    phases: dict[str, phase_numbers.PhaseNumbers]
    tables: dict[str, list[dict]]
    notes: tuple[str, ...]
    views: list[SignalView]
    """The signals as the pictures have them."""

    @property
    def device(self):
        return files.device_numbers(self.phases)

    def table(self, name, *key):
        """Rows of a table of atspm by (device, bin, further columns)."""
        return {(row["DeviceId"], bin_of(row["TimeStamp"]), *(row[k] for k in key)): row for row in self.tables[name]}

    def phase_of(self, detector):
        return self.phases[detector.signal].phase_of_lane[detector.stop_lane]

    def greens(self, signal, link):
        """(begin, end of green, begin of red) of a link in each cycle, in s, as libsumo reported; None after the
        end."""
        states = [state[link].lower() for state in self.readings.states[signal]]
        changes = [k for k in range(SECONDS) if k == 0 or states[k] != states[k - 1]]
        found = []
        for k in changes:
            if states[k] == "g":
                end = next((t for t in changes if t > k), None)
                found.append((k, end, next((t for t in changes if t > k and states[t] == "r"), None)))
        return found


def bin_of(text):
    return int((datetime.fromisoformat(text).replace(tzinfo=None) - ZERO).total_seconds() // BIN_S)


@pytest.fixture(scope="module")
def atspm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("atspm")
    python = folder / "bin" / "python"
    pip = ["install", "--quiet", "--disable-pip-version-check", "--retries", "2", "--only-binary", ":all:", *PACKAGES]
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", *pip]):
        result = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if result.returncode:
            reason = (result.stderr or result.stdout).strip().splitlines()
            pytest.skip(f"atspm cannot be installed: {reason[-1] if reason else command}")
    return str(python)


def read_by_atspm(python, folder):
    result = subprocess.run([python, "-c", READ, str(folder)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["fixed", "actuated"])
def judged(request, atspm, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    street = network.of_sumocfg(GRID / "grid.sumocfg")
    additional = [folder / "detectors.add.xml"]
    detectors.write(additional[0], detectors.place(street))
    placed = detectors.read(additional[0])
    if request.param == "actuated":
        additional.append(actuated.write(folder / "actuated.add.xml", list(street.signals.values())))
    street = network.read(street.net_file, [GRID / "fixed_time.add.xml", *additional])
    readings = run(additional, placed, SECONDS)
    phases = {name: phase_numbers.number_phases(signal) for name, signal in street.signals.items()}
    programs = {name: signal.programs for name, signal in street.signals.items()}
    made = period(readings)
    written = files.write(folder / "atspm", made, signal_events(made, phases, placed, programs), phases, placed)
    pictured = views(ObservedSignals(street, made, phases, programs, detectors=tuple(placed)))
    return Judged(readings, placed, phases, read_by_atspm(atspm, folder / "atspm"), written.notes, pictured)


def test_every_bin_has_data_and_every_interval_is_valid(judged):
    assert judged.notes == ()
    assert len(judged.table("has_data")) == 9 * SECONDS // BIN_S
    intervals = Counter((row["EventClass"], row["IsValid"]) for row in judged.tables["timeline"])
    assert {kind for kind, _ in intervals} >= {"Green", "Yellow", "Red", "Phase Call", "Pattern Change"}
    assert all(is_valid for _, is_valid in intervals)
    greens = {
        signal: sum(len(judged.greens(signal, p.links[0])) for p in judged.phases[signal].phases)
        for signal in judged.phases
    }
    ended = sum(greens.values()) - sum(
        judged.greens(signal, phase.links[0])[-1][1] is None
        for signal, own in judged.phases.items()
        for phase in own.phases
    )
    assert intervals["Green", True] == ended


def test_detector_counts_agree(judged):
    numbers = detectors.detector_numbers(judged.placed)
    expected = Counter()
    for detector in judged.placed:
        for begin_ms, _ in occupied(judged.readings.passages[detector.id], SECONDS):
            expected[judged.device[detector.signal], begin_ms // 1000 // BIN_S, numbers[detector.id]] += 1
    assert sum(expected.values()) > 10_000
    assert {key: row["Total"] for key, row in judged.table("actuations", "Detector").items()} == expected
    # a point has one vehicle at a time
    by_loop = Counter(
        (row["DeviceId"], row["Detector"]) for row in judged.tables["actuations"] for _ in range(row["Total"])
    )
    for detector in judged.placed:
        if not detector.length_m:
            assert by_loop[judged.device[detector.signal], numbers[detector.id]] == len(
                judged.readings.passages[detector.id]
            )


def test_arrivals_on_green_agree(judged):
    total, green = Counter(), Counter()
    for detector in judged.placed:
        if detector.function != ADVANCE:
            continue
        signal, link = judged.readings.link_of_lane[detector.stop_lane]
        for _, entry_s in judged.readings.passages[detector.id]:
            second = round(entry_s * 1000) // 1000
            key = judged.device[signal], second // BIN_S, judged.phase_of(detector)
            total[key] += 1
            green[key] += judged.readings.states[signal][second][link] in "gG"
    found = judged.table("arrival_on_green", "Phase")
    assert found.keys() == {key for key in total if green[key]} and len(found) > 200
    for key, row in found.items():
        assert row["Total_Actuations"] == total[key]
        assert row["Percent_AOG"] == pytest.approx(green[key] / total[key], abs=1e-6), key


def test_pictures_differ_from_atspm_only_as_documented(judged):
    """docs/atspm.md says which arrivals and splits atspm leaves out; the pictures' others are the same, by phase."""
    arrivals, failures = judged.table("arrival_on_green", "Phase"), judged.table("split_failures", "Phase")
    totals = Counter()
    for view in judged.views:
        device = judged.device[view.own.signal]
        for phase in view.vehicle_phases:
            green, total = Counter(), Counter()
            for time_s in view.arrivals(phase.number):
                total[device, int(time_s // BIN_S), phase.number] += 1
                green[device, int(time_s // BIN_S), phase.number] += view.is_green(phase.number, time_s)
            found = {key: row for key, row in arrivals.items() if (key[0], key[2]) == (device, phase.number)}
            assert {key: row["Total_Actuations"] for key, row in found.items()} == {
                k: total[k] for k in total if green[k]
            }
            assert {key: round(row["Total_Actuations"] * row["Percent_AOG"]) for key, row in found.items()} == +green
            splits = [each for each in view.splits(phase.number) if each.red_s is not None]
            begins = [each.begin_s for each in splits]
            numbers = view.numbers(phase.number, PRESENCE)
            first_s = min((t for n in numbers for t in view.times_s(Code.DETECTOR_ON, n)), default=SECONDS)
            failed, cycles = Counter(), Counter()
            for k, ratios in enumerate(occupancy_ratios(view, phase.number)):
                assert ratios.red_s == splits[k].red_s
                short = any(begin_s < ratios.red_s + RED_S for begin_s in begins[k + 1 : k + 2])
                short |= any(begins[k] < split.red_s + RED_S for split in splits[max(k - 1, 0) : k])
                if short or begins[k] < first_s:
                    totals["left out"] += 1
                    continue
                key = device, int((ratios.red_s + RED_S) // BIN_S), phase.number
                cycles[key] += 1
                failed[key] += ratios.green >= THRESHOLD and ratios.red >= THRESHOLD
            found = {key: row for key, row in failures.items() if (key[0], key[2]) == (device, phase.number)}
            assert {key: row["Split_Failure"] for key, row in found.items()} == {key: failed[key] for key in cycles}
            totals["failed"] += sum(failed.values())
    assert totals["failed"] > 20 and totals["left out"]


def test_terminations_agree(judged):
    expected = Counter()
    for signal, own in judged.phases.items():
        indices = judged.readings.phase[signal]
        for phase in own.phases:
            for _, end, _ in judged.greens(signal, phase.links[0]):
                if end is None:
                    continue
                index = indices[end - 1]
                begin = next(k for k in range(end, -1, -1) if k == 0 or (indices[k - 1] != index and k < end))
                if judged.readings.program[signal] != actuated.PROGRAM:
                    cause = "ForceOff"
                elif begin == 0:
                    continue  # the first phase has begun before the run
                else:
                    cause = "MaxOut" if end - begin >= judged.readings.max_s[signal][index] else "GapOut"
                expected[judged.device[signal], end // BIN_S, phase.number, cause] += 1
    found = judged.table("terminations", "Phase", "PerformanceMeasure")
    assert {key: row["Total"] for key, row in found.items()} == expected
    assert {cause for *_, cause in expected} == (
        {"MaxOut", "GapOut"} if actuated.PROGRAM in judged.readings.program.values() else {"ForceOff"}
    )
