"""Oregon DOT's package atspm reads our files, and its measures are those of the pictures of the same record."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import pytest

from city import config, network
from controller.recording.detectors import PRESENCE
from records.atspm import detectors, files
from records.atspm.event_codes import Code
from records.atspm.from_record import RecordSelection, read
from records.atspm.pictures.phase_pictures import occupancy_ratios
from records.atspm.pictures.signal_view import SignalView, views
from records.export import export_atspm
from records.run_files import open_files
from tests.conftest import GRID
from tests.records.replayed_city import record_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SECONDS, BIN_S, ZERO = 3600, 900, datetime(2026, 3, 2, 7)
OPTIONS = ("--scale", "1.3", "--seed", "7")
"""More demand than the city's, so that some splits fail."""
RED_S, THRESHOLD = 5, 0.8
"""atspm's defaults: a split fails if a detector is occupied for 80 % of the green, and of the first 5 s of red."""
CAUSES = {Code.PHASE_GAP_OUT: "GapOut", Code.PHASE_MAX_OUT: "MaxOut", Code.PHASE_FORCE_OFF: "ForceOff"}
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
    """What atspm computes from our files, and the signals as the pictures have them."""

    tables: dict[str, list[dict]]
    views: list[SignalView]
    device: dict[str, int]
    notes: tuple[str, ...]

    def table(self, name, *key):
        """Rows of a table of atspm by (device, bin, further columns)."""
        return {(row["DeviceId"], bin_of(row["TimeStamp"]), *(row[k] for k in key)): row for row in self.tables[name]}

    def count(self, meaning_of):
        """Number of events by (device, bin, their meaning); None: not counted."""
        found = Counter()
        for view in self.views:
            for event in view.events:
                meaning = meaning_of(event)
                if meaning is not None:
                    found[self.device[view.own.signal], event.time_ms // 1000 // BIN_S, *meaning] += 1
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


@pytest.fixture(scope="module")
def judged(atspm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    placed, record = folder / "detectors.add.xml", folder / "run.mcap"
    detectors.write(placed, detectors.place(network.of_sumocfg(GRID / "grid.sumocfg")))
    additional = ("-a", f"{GRID / 'fixed_time.add.xml'},{placed}")
    record_run(record, config.load(GRID / "city.toml"), SECONDS, *additional, *OPTIONS, releases_until_s=None)
    selection = RecordSelection(zero=ZERO)
    written = export_atspm(open_files([record]), folder / "atspm", selection)
    observed = read(open_files([record]), selection)
    tables = read_by_atspm(atspm, folder / "atspm")
    return Judged(tables, views(observed), files.device_numbers(observed.phases), written.notes)


def test_every_bin_has_data_and_only_long_intervals_are_invalid(judged):
    # policies with senseless actions keep some signals as they are for longer than readers expect, and the files say so
    assert judged.notes and all("no event for" in n and "in control mode policy" in n for n in judged.notes)
    assert len(judged.table("has_data")) == 9 * SECONDS // BIN_S
    intervals = Counter((row["EventClass"], row["IsValid"]) for row in judged.tables["timeline"])
    kinds = {kind for kind, _ in intervals}
    assert kinds >= {"Green", "Yellow", "Red", "Phase Call", "Pattern Change", "Special Function"}
    assert {kind for kind, is_valid in intervals if not is_valid} <= {"Green", "Red", "Phase Call", "Phase Wait"}


def test_detector_counts_and_terminations_agree(judged):
    detected = judged.count(lambda event: (event.parameter,) if event.code == Code.DETECTOR_ON else None)
    assert sum(detected.values()) > 8_000
    assert {key: row["Total"] for key, row in judged.table("actuations", "Detector").items()} == detected
    ended = judged.count(lambda event: (event.parameter, CAUSES[event.code]) if event.code in CAUSES else None)
    found = judged.table("terminations", "Phase", "PerformanceMeasure")
    assert {key: row["Total"] for key, row in found.items()} == ended and len(ended) > 50


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
