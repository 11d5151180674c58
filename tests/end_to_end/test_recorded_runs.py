"""Recorded runs: killed, with scores of a model server, with detectors."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from controller.__main__ import main as control
from records import command as record_command
from records.atspm import detectors
from tests.conftest import ROOT
from tests.end_to_end.programs import CITY
from tests.records.replayed_city import read
from tests.sample_city import copy_city

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


def record(folder, *flags):
    """Record two minutes of control; (what was recorded of the city, the steps, what is missing)."""
    flags = ("--libsumo", "--seed", "1", "--end", "120", "--record", str(folder), *flags)
    assert control(["--city", CITY, *flags]) == 0
    (path,) = folder.glob("*.mcap")
    return read(path)


def test_killed_controller_loses_a_second_at_most(tmp_path):
    command = [sys.executable, "-c", PACED, CITY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True) as process:
        reported = [process.stdout.readline().split()]
        end_s = time.monotonic() + 3.0
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


def test_record_of_a_served_run_has_models_versions_and_scores(grid_server, tmp_path):
    # answers may be late if other tests run beside this one
    city, steps, missing = record(tmp_path, "--server", grid_server, "--deadline-ms", "20000")
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


def test_detectors_of_the_sumocfg_and_phase_numbers_of_city_toml_are_recorded(tmp_path, caplog):
    caplog.set_level("INFO", "controller")
    assert detectors.main(["--city", CITY, "--out", str(tmp_path / "detectors.add.xml")]) == 0
    path = Path(copy_city(tmp_path, "detectors.add.xml"))
    path.write_text(path.read_text().replace("[tl.SA101]", '[tl.SA101]\nphases = { "A1A0.70.00:left" = 11 }'))
    city, _, _ = record(tmp_path / "record", "--policy", "max-pressure", "--city", str(path))
    assert json.loads(city.phases) == {"SA101": {"A1A0.70.00:left": 11}}
    assert "recording the vehicles on 216 detectors" in caplog.text
    assert record_command.main(["export", str(tmp_path / "record"), "--atspm", str(tmp_path / "atspm")], "record") == 0
    rows = (tmp_path / "atspm" / "events.csv").read_text().splitlines()
    assert {"43", "44", "81", "82"} <= {row.split(",")[2] for row in rows}
    assert len((tmp_path / "atspm" / "detectors.csv").read_text().splitlines()) == 217
