"""Runs of the real programs that are recorded: killed, on a full disk, two in one folder, with scores of a model
server."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

from records import command as record_command
from records.atspm import detectors
from tests.conftest import ROOT
from tests.end_to_end.programs import CITY
from tests.records.replayed_city import read
from tests.sample_city import copy_city, write_city

MAX_LOST_S = 1.0
"""Wall time of a killed controller that may be missing in its record."""
TOLERANCE_S = 1.0
"""For encoding and writing on a busy machine."""
PACED = """
import sys, time
from pathlib import Path
from prometheus_client import CollectorRegistry
from city import config
from controller.recording.record_folder import RecordFolder
from controller.recording.recorder import Recorder
from controller.telemetry.metrics import RecordMetrics
from tests.records.replayed_city import run_city

class Reports:
    def add(self, event):
        print(event.number, time.monotonic(), flush=True)
        time.sleep(0.02)
    def close(self):
        pass

def recorder(run):
    return Recorder(RecordFolder(Path(sys.argv[2]), 10**10), run, RecordMetrics(CollectorRegistry()))

city = config.load(Path(sys.argv[1]))
run_city(city, 100_000, subscribe=lambda run: [recorder(run), Reports()])
"""


# by a shell: this process has threads of gRPC, which a fork without an exec does not survive
WITH_SMALL_FILES = ("sh", "-c", 'ulimit -f 78; exec "$@"', "sh")
"""Beginning of a command whose files have at most 78 blocks of 512 bytes."""


def control(*arguments, prefix=()):
    command = [*prefix, sys.executable, "-m", "greenserve", "control", "--city", CITY, "--seed", "1"]
    return subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process):
    _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return log


def test_killed_controller_loses_a_second_at_most(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PACED, CITY, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        reported = [process.stdout.readline().split()]
        end_s = time.monotonic() + 3.5
        while time.monotonic() < end_s:
            reported.append(process.stdout.readline().split())
        killed_s = time.monotonic()
        os.killpg(process.pid, signal.SIGKILL)  # and its SUMO
        reported += [line.split() for line in process.stdout.read().splitlines()]
    (path,) = tmp_path.glob("*.mcap")
    _, steps, missing = read(path)
    numbers = [each.step.number for each in steps]
    written = [
        int(number) for number, at_s in filter(None, reported) if float(at_s) < killed_s - MAX_LOST_S - TOLERANCE_S
    ]
    assert numbers == list(range(len(numbers))) and len(written) > 20
    assert numbers[-1] >= written[-1]
    assert missing  # the file has no end


def test_full_disk_ends_the_record_and_not_the_run(tmp_path):
    record, summaries = tmp_path / "record", []
    for k, flags in enumerate(((), ("--record", record))):
        arguments = ("--policy", "max-pressure", "--end", 600, "--summary", tmp_path / f"{k}.json", *flags)
        log = finished(control(*arguments, prefix=WITH_SMALL_FILES))
        summaries.append(log.rpartition("960 decisions")[1])
    assert summaries[0] == summaries[1] == "960 decisions"
    (error,) = [line for line in log.splitlines() if "ERROR" in line]
    assert "the record ends, and control goes on without it" in error and "File too large" in error
    (path,) = record.glob("*.mcap")
    assert path.stat().st_size <= 40_000


def test_two_controllers_record_into_one_folder(tmp_path):
    for process in [control("--policy", "max-pressure", "--end", 300, "--record", tmp_path) for _ in range(2)]:
        finished(process)
    (first, steps, missing), (second, *others) = (read(path) for path in sorted(tmp_path.glob("*.mcap")))
    assert first.run != second.run and not missing and not others[1]
    assert [each.step.number for each in steps] == [each.step.number for each in others[0]] == list(range(61))


def test_record_has_the_phase_numbers_of_city_toml(tmp_path):
    city = write_city(tmp_path, ("[tl.SA101]", '[tl.SA101]\nphases = { "A1A0.70.00:left" = 11 }'))
    finished(control("--policy", "max-pressure", "--end", 10, "--city", city, "--record", tmp_path / "record"))
    (path,) = (tmp_path / "record").glob("*.mcap")
    assert json.loads(read(path)[0].phases) == {"SA101": {"A1A0.70.00:left": 11}}


def test_record_of_a_served_run_has_models_versions_and_scores(grid_server, tmp_path):
    # answers may be late if other tests run beside this one
    finished(control("--server", grid_server, "--end", 120, "--record", tmp_path, "--deadline-ms", 20_000))
    (path,) = tmp_path.glob("*.mcap")
    city, steps, missing = read(path)
    assert not missing and len(city.contracts) == 8 and city.driver == ""
    categorical = {
        contract.tl: contract.action.size for contract in city.contracts if contract.action.kind == "categorical"
    }
    decisions = [
        (tl, message.decision) for each in steps for tl, message in each.tls.items() if message.HasField("decision")
    ]
    assert len(decisions) > 100 and categorical and len(categorical) < 8
    for tl, decision in decisions:
        assert decision.version == 1 and decision.model == tl and len(decision.scores) == categorical.get(tl, 0)
        if tl in categorical:
            assert max(decision.scores) == decision.scores[int(decision.action[0])]
    assert all(later.publish_ns >= earlier.publish_ns for earlier, later in pairwise(steps))


def test_detectors_of_the_sumocfg_are_recorded_and_exported(tmp_path):
    assert detectors.main(["--city", CITY, "--out", str(tmp_path / "detectors.add.xml")]) == 0
    city = ("--city", copy_city(tmp_path, "detectors.add.xml"))
    log = finished(control("--policy", "max-pressure", "--end", 120, *city, "--record", tmp_path / "record"))
    assert "recording the vehicles on 216 detectors" in log
    assert record_command.main(["export", str(tmp_path / "record"), "--atspm", str(tmp_path / "atspm")], "record") == 0
    rows = (tmp_path / "atspm" / "events.csv").read_text().splitlines()
    assert {"43", "44", "81", "82"} <= {row.split(",")[2] for row in rows}
    assert len((tmp_path / "atspm" / "detectors.csv").read_text().splitlines()) == 217
