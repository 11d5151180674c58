"""Figures of recorded runs: which decisions belong to which model, what is counted, and what is left out."""

import shutil

import pytest

from city.errors import InputError
from protos import record_pb2 as record
from records.record_reader import RecordReader
from rollout.record_figures import MAX_DAYS, MAX_GAP_S, RecordFigures, newest_days
from rollout.verdicts import total
from tests.records.test_replay import rewrite
from tests.records.update import path

ALWAYS = [(0, 1 << 62)]
TL, NUMBER = "SA104", 3
"""A TL of the recorded city that answers in every decision with this number."""


FILE = "20260101T000000Z-abc-0000.mcap"


@pytest.fixture
def folder(tmp_path):
    shutil.copy(path("sample-city"), tmp_path / FILE)
    return tmp_path


def changed(folder, change):
    """The folder's record with changed decisions; `change` gets a TlStep, its TL and its second."""

    def each(step):
        for tl, tl_step in step.tls.items():
            if tl_step.HasField("decision"):
                change(tl_step, tl, step.step.at_s)
        return step

    rewrite(path("sample-city"), folder / FILE, each)


def figures(folder, number=NUMBER, wanted=ALWAYS, stable=NUMBER):
    found = RecordFigures(folder, {TL: number}, {TL: stable}).figures({TL: wanted})[TL]
    return total(found.new), total(found.before)


def decisions():
    with RecordReader(path("sample-city")) as reader:
        return [step for step in reader.steps() if TL in step.tls and step.tls[TL].HasField("decision")]


def test_decisions_belong_to_the_model_that_answered(folder):
    new, before = figures(folder)
    assert new.decisions == len(decisions()) > 20 and before.decisions == 0
    new, before = figures(folder, number=4)
    assert new.decisions == 0 and before.decisions == len(decisions())
    assert figures(folder, number=4, stable=2)[1].decisions == 0, "of a third model"


def test_time_queue_and_vehicles_are_those_of_the_readings(folder):
    new, _ = figures(folder)
    steps = decisions()
    assert new.seconds == pytest.approx(steps[-1].step.at_s - steps[0].step.at_s)
    with RecordReader(path("sample-city")) as reader:
        (contract,) = [each for each in reader.city.contracts if each.tl == TL]
        lanes = sorted({lane for signal in contract.signals for lane in signal.lane_ids})
        all_lanes, tls = list(reader.city.lanes), [each.tl for each in reader.city.contracts]
        lanes_of = {
            each.tl: {lane for signal in each.signals for lane in signal.lane_ids} for each in reader.city.contracts
        }
    halting_s, last_s = 0.0, steps[0].step.at_s
    for step in steps:
        read = sorted({all_lanes.index(lane) for k in step.step.due for lane in lanes_of[tls[k]]})
        by_row = dict(zip(read, step.step.readings.halting, strict=True))
        halting_s += sum(by_row[all_lanes.index(lane)] for lane in lanes) * (step.step.at_s - last_s)
        last_s = step.step.at_s
    assert new.halting_s == pytest.approx(halting_s) and halting_s > 0
    assert 10 < new.vehicles < 200


def test_a_hole_of_the_record_is_no_time(folder):
    is_left_out = lambda step: 100 <= step.step.at_s < 200  # noqa: E731
    rewrite(path("sample-city"), folder / FILE, lambda step: None if is_left_out(step) else step)
    left_out = [step for step in decisions() if is_left_out(step)]
    hole_s = left_out[-1].step.at_s + 5 - (left_out[0].step.at_s - 5)
    assert figures(folder)[0].seconds == pytest.approx(295 - hole_s + MAX_GAP_S)


def no_answer(step, tl, at_s):
    if 100 <= at_s < 150 and tl == TL:
        step.decision.failure, step.decision.version = "no answer", 0


def server_is_down(step, tl, at_s):
    if 100 <= at_s < 150:
        step.decision.failure = "the server is down"


def server_is_not_reached(step, tl, at_s):
    if tl == TL:
        step.decision.failure, step.decision.error = "Unavailable: connection refused", "Unavailable"


def overridden(step, tl, at_s):
    if at_s >= 200:
        step.states.add(at_s=at_s).overrides.add(signal="B0")


def fixed(step, tl, at_s):
    if at_s >= 100:
        step.mode = step.decision.mode_before = record.TlStep.FIXED


@pytest.mark.parametrize(
    ("change", "attribute", "counts"),
    [
        (no_answer, "missing", lambda step: 100 <= step.step.at_s < 150),
        (server_is_down, "missing", lambda step: False),
        (server_is_not_reached, "missing", lambda step: False),
        (overridden, "overridden", lambda step: step.step.at_s >= 200 or any(s.overrides for s in step.tls[TL].states)),
        (fixed, "decisions", lambda step: step.step.at_s < 100),
    ],
)
def test_changed_decisions_are_counted(folder, change, attribute, counts):
    """An operator's time is left out, and what a server misses for all TLs is no model's fault."""
    changed(folder, change)
    assert getattr(figures(folder)[0], attribute) == sum(map(counts, decisions()))


def test_a_missing_answer_belongs_to_the_model_that_is_wanted(folder):
    changed(folder, no_answer)
    for wanted, missing in ((ALWAYS, (10, 0)), ([], (0, 10))):
        found = figures(folder, number=4, wanted=wanted)
        assert tuple(each.missing for each in found) == missing, "the new model has never answered"


def test_decisions_of_an_earlier_canary_are_left_out(folder):
    steps = decisions()
    begin_ns = steps[len(steps) // 2].publish_ns
    new, before = figures(folder, wanted=[(begin_ns, 1 << 62)])
    assert new.decisions == sum(step.publish_ns >= begin_ns for step in steps) and before.decisions == 0
    assert figures(folder, wanted=[])[0].decisions == 0


def test_a_record_that_grows_is_read_again(folder):
    (file,) = folder.iterdir()
    data = file.read_bytes()
    rewrite(path("sample-city"), file, lambda step: step if step.step.at_s < 150 else None)
    reader = RecordFigures(folder, {TL: NUMBER}, {TL: NUMBER})
    part = total(reader.figures({TL: ALWAYS})[TL].new).decisions
    file.write_bytes(data)
    assert 0 < part < total(reader.figures({TL: ALWAYS})[TL].new).decisions == len(decisions())
    (kept,) = reader.files()
    assert kept["bytes"] == len(data) and len(kept["sha256"]) == 64


def test_a_file_that_is_no_record_is_left_out(folder, caplog):
    (folder / "20260102T000000Z-abc-0000.mcap").write_bytes(b"nothing")
    assert figures(folder)[0].decisions == len(decisions())
    assert "20260102T000000Z-abc-0000.mcap is left out" in caplog.text


def test_files_of_the_newest_days_are_read(tmp_path):
    files = [tmp_path / f"202601{day:02}T000000Z-abc-0000.mcap" for day in (1, 2, 16)]
    assert MAX_DAYS == 14 and newest_days(files) == files[1:] and newest_days([]) == []


def test_a_folder_without_a_record_is_one_line(tmp_path):
    with pytest.raises(InputError, match="start the controller with --record"):
        RecordFigures(tmp_path / "none", {TL: NUMBER}, {TL: NUMBER})
