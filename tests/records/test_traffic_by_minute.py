"""The traffic of the last record with the same plan: which record, which figures, and what cannot be read."""

import json

import numpy as np
import pytest

from controller.operator.page import live, panels
from controller.operator.tl_layout import TlLayout
from controller.recording.record_folder import file_name
from controller.recording.record_writer import NS
from controller.recording.run_start import encode, plan_digest
from controller.telemetry.traffic import TrafficMeter
from protos import record_pb2 as record
from records.traffic_by_minute import earlier_traffic, main
from signals.observation import Readings
from tests.records.recorded_city import BEGIN_UNIX_NS

BEFORE = file_name(BEGIN_UNIX_NS + 3600 * NS, "0", 0)


@pytest.fixture
def folder(recorded_city, tmp_path):
    """A folder with a run of two files, and an older one of one file."""
    middle = len(recorded_city.steps) // 2
    recorded_city.write(tmp_path / file_name(BEGIN_UNIX_NS, "bb", 0), 0, middle, run="bb")
    later = file_name(BEGIN_UNIX_NS + 60 * NS, "bb", 1)
    recorded_city.write(tmp_path / later, middle, None, file_number=1, run="bb")
    recorded_city.write(tmp_path / file_name(BEGIN_UNIX_NS - 60 * NS, "cc", 0), 0, 20, run="cc")
    return tmp_path


@pytest.fixture
def plan(recorded_city):
    city = encode(recorded_city.start, "", 0, 0)
    return plan_digest(city.contracts, city.signals)


def expected(recorded_city):
    """By minute, the page's figures at its first decision."""
    start, lanes = recorded_city.start, recorded_city.start.tracked_lanes()
    meter = TrafficMeter(start.contracts, start.street)
    meter.track(lanes.lanes)
    counts, minutes = np.zeros((2, len(lanes.lanes))), {}
    for step, _, _ in recorded_city.steps:
        due = tuple(start.contracts[k].tl for k in step.due)
        if due:
            counts[:, lanes.rows_of(due)[1]] = step.readings.vehicles, step.readings.halting
            meter.add_readings(due, Readings(counts, counts[0], counts[0]), step.at_s)
            traffic = panels.traffic([c.tl for c in start.contracts], meter.recent())
            minutes.setdefault(int(step.at_s // 60), [traffic[key] for key in ("vehicles", "halting", "delay_s")])
    return minutes


def test_newest_run_of_the_plan_is_read_from_all_its_files(folder, plan, recorded_city):
    found = earlier_traffic(folder, plan, BEFORE)
    assert found == {"begin_unix_s": BEGIN_UNIX_NS / NS, "minutes": expected(recorded_city), "skipped": []}
    assert len(found["minutes"]) > 3 and found["minutes"][2][0] > found["minutes"][2][1] > 0
    assert found["minutes"][2][2] > 0


def test_the_page_of_a_running_controller_finds_the_record_of_its_plan(folder, recorded_city):
    start = recorded_city.start
    layout = TlLayout(start.contracts, start.tracked_lanes().lanes)
    assert live._earlier_traffic(None, layout, start.start) is None
    earlier = live._earlier_traffic(folder, layout, start.start)
    earlier._thread.join()
    assert earlier.at(125)["vehicles"] == expected(recorded_city)[2][0] and earlier.at(1e6) is None


def test_a_run_that_begins_later_is_left_out(folder, plan):
    before = file_name(BEGIN_UNIX_NS, "0", 0)
    assert (
        len(earlier_traffic(folder, plan, before)["minutes"])
        == 2
        < len(earlier_traffic(folder, plan, BEFORE)["minutes"])
    )


def test_a_record_of_another_plan_is_none(folder, plan, recorded_city):
    city = encode(recorded_city.start, "", 0, 0)
    assert earlier_traffic(folder, "another", BEFORE) == {"begin_unix_s": None, "minutes": {}, "skipped": []}
    changed = record.City()
    changed.CopyFrom(city)
    changed.signals[0].programs[0].phases[0].duration_s += 1
    assert plan_digest(changed.contracts, changed.signals) != plan
    changed.CopyFrom(city)
    changed.contracts[0].signals[0].lane_ids.pop()
    assert plan_digest(changed.contracts, changed.signals) != plan
    changed.CopyFrom(city)
    changed.signals[0].shown, changed.contracts[0].origin.model_number = "r", 99
    assert plan_digest(changed.contracts, changed.signals) == plan, "states and models may differ"


def test_a_record_that_cannot_be_read_is_named_and_the_next_one_is_taken(folder, plan):
    damaged = folder / file_name(BEGIN_UNIX_NS + NS, "dd", 0)
    damaged.write_bytes(b"no record")
    found = earlier_traffic(folder, plan, BEFORE)
    assert len(found["minutes"]) > 3 and len(found["skipped"]) == 1 and str(damaged) in found["skipped"][0]


def test_readings_of_other_lanes_are_not_compared(plan, recorded_city, tmp_path):
    step = recorded_city.steps[0][0]
    counts = list(step.readings.vehicles)
    step.readings.vehicles.pop()
    recorded_city.write(tmp_path / file_name(BEGIN_UNIX_NS, "bb", 0), run="bb")
    step.readings.vehicles[:] = counts
    found = earlier_traffic(tmp_path, plan, BEFORE)
    assert found["minutes"] == {} and "has readings of other lanes" in found["skipped"][0]


def test_reading_ends_in_time_with_what_was_read(folder, plan):
    assert len(earlier_traffic(folder, plan, BEFORE, max_read_s=0.0)["minutes"]) == 1


def test_the_program_prints_json_with_the_lowest_priority(folder, plan, capsys, monkeypatch):
    priorities = []
    monkeypatch.setattr("os.nice", priorities.append)
    assert main([str(folder), plan, BEFORE]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert priorities == [19] and printed["begin_unix_s"] == BEGIN_UNIX_NS / NS and "2" in printed["minutes"]
