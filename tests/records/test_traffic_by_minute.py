"""The traffic of the last record with the same plan: which record, which figures, and what cannot be read."""

import json
from datetime import date, timedelta

import numpy as np
import pytest

from controller.operator.page import live, panels
from controller.operator.tl_layout import TlLayout
from controller.recording.record_folder import file_name
from controller.recording.record_writer import NS
from controller.recording.run_start import encode, plan_digest
from controller.telemetry.traffic import TrafficMeter
from protos import record_pb2 as record
from records.traffic_by_minute import earlier_traffic, main, record_name
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
    name = record_name(date.fromtimestamp(BEGIN_UNIX_NS / NS), date.today())
    return {minute: [name, *figures] for minute, figures in minutes.items()}


def test_newest_run_of_the_plan_is_read_from_all_its_files(folder, plan, recorded_city):
    minutes = earlier_traffic(folder, plan, BEFORE)
    assert minutes == expected(recorded_city)
    assert len(minutes) > 3 and minutes[2][1] > minutes[2][2] > 0 and minutes[2][3] > 0


def test_minutes_that_the_newest_run_lacks_are_those_of_the_runs_before(folder, plan, recorded_city):
    recorded_city.write(folder / file_name(BEGIN_UNIX_NS + 30 * NS, "dd", 0), 40, 60, run="dd")
    minutes, of_whole_run = earlier_traffic(folder, plan, BEFORE), expected(recorded_city)
    assert minutes.keys() == of_whole_run.keys()
    differing = {minute for minute in minutes if minutes[minute] != of_whole_run[minute]}
    assert differing and len(differing) < len(minutes), "the newest run has some minutes"
    for k in range(2):
        run = f"e{k}"
        recorded_city.write(folder / file_name(BEGIN_UNIX_NS + (40 + k) * NS, run, 0), 0, 5, run=run)
    read = earlier_traffic(folder, plan, BEFORE).keys()
    assert {0} | differing <= read < minutes.keys() and differing != {0}, "three runs are read"


def test_the_page_of_a_running_controller_finds_the_record_of_its_plan(folder, recorded_city, monkeypatch, caplog):
    start = recorded_city.start
    layout = TlLayout(start.contracts, start.tracked_lanes().lanes)
    assert live._earlier_traffic(None, layout, start.start) is None
    earlier = live._earlier_traffic(folder, layout, start.start)
    earlier._thread.join()
    assert earlier.at(125)["vehicles"] == expected(recorded_city)[2][1] and earlier.at(1e6) is None
    monkeypatch.setattr("sys.executable", str(folder / "missing"))
    assert live._earlier_traffic(folder, layout, start.start) is None and "missing" in caplog.text


def test_a_run_that_begins_later_is_left_out(folder, plan):
    before = file_name(BEGIN_UNIX_NS, "0", 0)
    assert len(earlier_traffic(folder, plan, before)) == 2 < len(earlier_traffic(folder, plan, BEFORE))


def test_a_record_of_another_plan_is_none(folder, plan, recorded_city):
    city = encode(recorded_city.start, "", 0, 0)
    assert earlier_traffic(folder, "another", BEFORE) == {}
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


def test_a_record_that_cannot_be_read_is_named_and_the_next_one_is_taken(folder, plan, capsys):
    damaged = folder / file_name(BEGIN_UNIX_NS + NS, "dd", 0)
    damaged.write_bytes(b"no record")
    found = earlier_traffic(folder, plan, BEFORE)
    assert len(found) > 3 and capsys.readouterr().err.startswith(f"not read: {damaged}: ")


def test_readings_of_other_lanes_are_not_compared(plan, recorded_city, tmp_path, capsys):
    step = recorded_city.steps[0][0]
    counts = list(step.readings.vehicles)
    step.readings.vehicles.pop()
    recorded_city.write(tmp_path / file_name(BEGIN_UNIX_NS, "bb", 0), run="bb")
    step.readings.vehicles[:] = counts
    found = earlier_traffic(tmp_path, plan, BEFORE)
    assert found == {} and "has readings of other lanes" in capsys.readouterr().err


def test_reading_ends_in_time_with_what_was_read(folder, plan):
    assert len(earlier_traffic(folder, plan, BEFORE, max_read_s=0.0)) == 1


def test_the_program_prints_json_with_the_lowest_priority(folder, plan, capsys, monkeypatch):
    priorities = []
    monkeypatch.setattr("os.nice", priorities.append)
    assert main([str(folder), plan, BEFORE]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert priorities == [19] and len(printed["2"]) == 4


@pytest.mark.parametrize(
    ("days", "name"),
    [
        (0, "today's record"),
        (1, "Tuesday's record"),
        (6, "Thursday's record"),
        (7, "the record of 2026-11-18"),
        (-1, "the record of 2026-11-26"),
    ],
)
def test_a_record_is_named_by_its_day(days, name):
    today = date(2026, 11, 25)
    assert record_name(today - timedelta(days), today) == name
