"""Traffic by minute beside the record: what a run writes, what the next one reads, and what cannot be read."""

import logging
from datetime import date, timedelta

import pytest
from prometheus_client import CollectorRegistry

from controller.operator.page import live
from controller.operator.tl_layout import TlLayout
from controller.recording import traffic_minutes
from controller.recording.record_folder import RecordFolder
from controller.recording.recorder import Recorder
from controller.recording.run_start import encode, plan_digest
from controller.recording.traffic_minutes import append, path_of, read, record_name
from controller.telemetry.metrics import RecordMetrics
from controller.telemetry.traffic import TrafficMeter
from protos import record_pb2 as record
from tests.records.replayed_city import run_city

TUESDAY, WEDNESDAY = date(2026, 11, 24), date(2026, 11, 25)
FIGURES = {"vehicles": 298.0, "halting": 21.0, "delay_s": 3600.0}


class Totals:
    """A subscriber that keeps the traffic at the first decision of each simulated minute."""

    def __init__(self, meter):
        self.meter, self.minutes = meter, {}

    def add(self, event):
        if event.decisions:
            self.minutes.setdefault(int(event.at_s // 60), self.meter.recent().totals())

    def close(self):
        pass


@pytest.fixture
def recorded(grid_city, tmp_path):
    """(Start, expected traffic by minute) of a run that was recorded into tmp_path."""
    kept = []

    def subscribers(run):
        meter = TrafficMeter(run.contracts, run.street)
        meter.track(run.tracked_lanes().lanes)
        totals = Totals(meter)
        recorder = Recorder(RecordFolder(tmp_path, 10**10), run, RecordMetrics(CollectorRegistry()), traffic=meter)
        kept.extend((run, totals.minutes))
        return [meter, totals, recorder]

    run_city(grid_city, 200, "--seed", "1", subscribe=subscribers, releases_until_s=None)
    return kept


def test_next_run_of_the_plan_compares_with_the_minutes_of_the_record(recorded, tmp_path, caplog):
    caplog.set_level(logging.INFO, "controller")
    run, expected = recorded
    layout = TlLayout(run.contracts, run.tracked_lanes().lanes)
    minutes = live._earlier_traffic(tmp_path, layout, run.start)
    assert minutes == {minute: {"of": "today's record", **totals} for minute, totals in expected.items()}
    assert minutes.keys() >= {0, 1, 2} and minutes[2]["vehicles"] > minutes[2]["halting"] > 0
    assert minutes[2]["delay_s"] > 0
    assert caplog.messages[-1] == "the page compares traffic with today's record"
    assert live._earlier_traffic(None, layout, run.start) == {}
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text("no figures\n")
    assert live._earlier_traffic(tmp_path, layout, run.start) == {}
    assert caplog.messages[-1].endswith(f"no earlier record ({path}: 1 lines are damaged and left out)")
    path.unlink()
    path.mkdir()
    assert live._earlier_traffic(tmp_path, layout, run.start) == {} and "Is a directory" in caplog.messages[-1]


def test_a_file_that_cannot_be_written_costs_one_line_and_the_record_goes_on(grid_city, tmp_path, caplog):
    def subscribers(run):
        city = encode(run, "", 0, 0)
        path_of(tmp_path, plan_digest(city.contracts, city.signals)).mkdir()
        meter = TrafficMeter(run.contracts, run.street)
        meter.track(run.tracked_lanes().lanes)
        return [meter, Recorder(RecordFolder(tmp_path, 10**10), run, RecordMetrics(CollectorRegistry()), traffic=meter)]

    caplog.set_level(logging.INFO, "controller")
    run_city(grid_city, 150, "--seed", "1", subscribe=subscribers, releases_until_s=None)
    assert sum("cannot compare their traffic" in line for line in caplog.messages) == 1
    assert caplog.messages[-1].startswith("recorded ")


def test_plan_is_of_lanes_and_programs_and_not_of_states_and_models(recorded):
    city = encode(recorded[0], "", 0, 0)
    plan = plan_digest(city.contracts, city.signals)
    changed = record.City()
    changed.CopyFrom(city)
    changed.signals[0].programs[0].phases[0].duration_s += 1
    assert plan_digest(changed.contracts, changed.signals) != plan
    changed.CopyFrom(city)
    changed.contracts[0].signals[0].lane_ids.pop()
    assert plan_digest(changed.contracts, changed.signals) != plan
    changed.CopyFrom(city)
    changed.signals[0].shown, changed.contracts[0].origin.model_number = "r", 99
    assert plan_digest(changed.contracts, changed.signals) == plan


def test_newest_run_that_has_a_minute_gives_its_figures(tmp_path):
    path = tmp_path / "traffic.jsonl"
    assert read(path, WEDNESDAY) == ({}, 0)
    append(path, TUESDAY, 480, FIGURES)
    append(path, TUESDAY, 481, FIGURES)
    append(path, WEDNESDAY, 481, {"vehicles": 1.0, "halting": 0.0, "delay_s": None})
    assert read(path, WEDNESDAY)[0] == {
        480: {"of": "Tuesday's record", **FIGURES},
        481: {"of": "today's record", "vehicles": 1.0, "halting": 0.0, "delay_s": None},
    }


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"began": "2026-11-24"}',
        '{"began": 1, "minute": 1, "vehicles": 1, "halting": 1, "delay_s": 1}',
        '{"began": "2026-11-24", "minute": 1e999, "vehicles": 1, "halting": 1, "delay_s": 1}',
        "\0",
    ],
)
def test_a_damaged_line_is_counted_and_left_out(tmp_path, line):
    path = tmp_path / "traffic.jsonl"
    append(path, TUESDAY, 480, FIGURES)
    path.write_text(path.read_text() + line + "\n")
    append(path, TUESDAY, 481, FIGURES)
    minutes, invalid = read(path, WEDNESDAY)
    assert minutes.keys() == {480, 481} and invalid == 1


def test_a_long_file_keeps_its_newest_half(tmp_path, monkeypatch):
    path = tmp_path / "traffic.jsonl"
    append(path, TUESDAY, 0, FIGURES)
    monkeypatch.setattr(traffic_minutes, "MAX_BYTES", 10 * path.stat().st_size)
    for minute in range(1, 12):
        append(path, TUESDAY, minute, FIGURES)
    minutes, invalid = read(path, WEDNESDAY)
    assert list(minutes) == list(range(7, 12)) and not invalid


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
    assert record_name(WEDNESDAY - timedelta(days), WEDNESDAY) == name
