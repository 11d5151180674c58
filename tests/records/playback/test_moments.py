"""A moment of a record: what signals showed, modes, queues and vehicles, against a record that is read from its
beginning."""

import numpy as np
import pytest

from city.street_shapes import LaneShape, StreetShapes
from records.playback.moments import LanePositions
from records.record_reader import RecordReader
from signals.fallback.control_mode import ControlMode
from tests.records.playback.played_records import SAMPLE_CITY, Played
from tests.records.recorded_city import SILENT_TL, STREET_TL


@pytest.fixture(scope="module")
def played(recorded_city, tmp_path_factory):
    return Played(recorded_city.write(tmp_path_factory.mktemp("played") / "run.mcap"))


def seconds(played):
    timeline = played.page.moments.timeline
    return np.arange(timeline.first_s, timeline.last_s + 0.1, 1.5).tolist()


def test_signals_show_at_each_second_what_sumo_showed(played):
    segments = [shown for recorded in played.recorded for shown in recorded.step.shown]
    with RecordReader(played.page.overview._reader.files[0].path) as reader:
        first = tuple(signal.shown for signal in reader.city.signals)
    changes = set()
    for at_s in seconds(played):
        expected = next((tuple(s.states) for s in segments if s.begin_s < at_s <= s.end_s), first)
        shown = played.page.moments.moment(at_s).shown
        assert shown == expected, at_s
        changes.add(shown)
    assert len(changes) > 50


def test_modes_are_those_of_the_newest_decision_of_each_tl(played):
    tls, seen = played.page.moments.tls, set()
    for at_s in seconds(played):
        expected = dict.fromkeys(tls, 0)
        for recorded in played.recorded:
            if recorded.step.at_s <= at_s:
                expected.update((tl, step.mode) for tl, step in recorded.tls.items())
        assert list(played.page.moments.moment(at_s).modes) == list(expected.values())
        seen.add(expected[SILENT_TL])
    assert {
        ControlMode.POLICY.value,
        ControlMode.HOLD.value,
        ControlMode.FALLBACK.value,
        ControlMode.RECOVERING.value,
    } <= seen


def test_queues_are_those_of_the_newest_decision_of_each_lanes_tl(played):
    moments, total = played.page.moments, 0
    values = np.zeros(len(moments._lanes.lanes))
    for recorded in played.recorded:
        tls = moments.tls_of(recorded.step)
        if tls:
            names, rows = moments._lanes.rows_of(tls)
            assert len(names) == len(recorded.step.readings.halting)
            values[rows] = recorded.step.readings.halting
        following = next((r for r in played.recorded if r.step.number == recorded.step.number + 1), None)
        if following is None or following.step.at_s > recorded.step.at_s:
            assert moments.moment(recorded.step.at_s).counts[1].tolist() == values.tolist()
            total += values.sum()
    assert total > 0


def test_vehicles_are_drawn_on_the_lanes_that_the_record_has_them_on(played):
    moments = played.page.moments
    shapes = {
        lane: np.array(line.at)
        for lane, line in zip(moments._lanes.lanes, moments._positions._lines, strict=True)
        if line
    }
    lanes = moments._lanes.vehicle_lanes_of[STREET_TL]
    most = 0
    for recorded in played.recorded[:-1]:
        if STREET_TL not in moments.tls_of(recorded.step):
            continue
        vehicles = moments.moment(recorded.step.at_s).vehicles
        readings = recorded.step.readings
        assert len(vehicles.x) == len(readings.vehicle_lane)
        assert sorted(vehicles.speed_mps.tolist()) == sorted(np.array(readings.speed_mps, np.float32).tolist())
        for x, y in zip(vehicles.x, vehicles.y, strict=True):
            assert min(distance(shapes[lane], x, y) for lane in lanes) < 0.1
        most = max(most, len(vehicles.x))
    assert most > 5


def distance(line, x, y):
    begin, step = line[:-1], np.diff(line, axis=0)
    share = (((np.array([x, y]) - begin) * step).sum(1) / (step**2).sum(1)).clip(0, 1)
    return np.hypot(*(begin + share[:, None] * step - [x, y]).T).min()


def test_persons_before_a_crossing_are_not_drawn_as_vehicles():
    points = ((0.0, 0.0), (10.0, 0.0))
    lanes = (LaneShape("a_0", 3.2, points), LaneShape(":J_c0_0", 4.0, points, is_crossing=True))
    positions = LanePositions(StreetShapes(lanes, ()), ["a_0", ":J_c0_0"], {"a_0": 10.0, ":J_c0_0": 10.0})
    drawn = positions.at(np.array([0, 1]), np.array([5.0, -3.0]), np.ones(2))
    assert drawn.x.tolist() == [5.0]


def test_a_record_without_single_vehicles_has_none():
    played = Played(SAMPLE_CITY)
    timeline = played.page.moments.timeline
    assert len(played.page.moments.moment((timeline.first_s + timeline.last_s) / 2).vehicles.x) == 0


def test_a_hole_is_named_and_shows_nothing_that_is_not_known(recorded_city, tmp_path):
    before = recorded_city.write(tmp_path / "a.mcap", 0, 30, 0)
    after = recorded_city.write(tmp_path / "b.mcap", 60, None, 2)
    played = Played(before, after)
    steps = [step for step, _, _ in recorded_city.steps]
    middle = (steps[30].at_s + steps[59].at_s) / 2
    moment = played.page.moments.moment(middle)
    assert moment.hole.startswith("steps 30 to 59 are missing, between 00:0")
    assert set(moment.shown) == {""} and not moment.counts.any() and not len(moment.vehicles.x)
    assert played.page.moments.moment(steps[29].at_s).hole == ""
    assert played.page.moments.moment(steps[60].at_s).hole == ""
    assert played.frame(middle).panel["city"]["hole"] == moment.hole
    assert "file 1 is missing before b.mcap" in played.page.overview.as_json()["missing"]


def test_a_record_whose_first_file_is_gone_begins_where_it_begins(recorded_city, tmp_path):
    played = Played(recorded_city.write(tmp_path / "b.mcap", 60, None, 1))
    step, _, _ = recorded_city.steps[60]
    assert played.page.moments.timeline.first_s == step.at_s
    moment = played.page.moments.moment(step.at_s)
    assert moment.number == step.number and moment.shown == tuple(step.shown[-1].states)


def test_malformed_readings_are_named_and_the_rest_is_shown(recorded_city, tmp_path):
    number = next(step.number for step, _, _ in recorded_city.steps if step.due and step.at_s > 100)
    step, tls, ns = recorded_city.steps[number]
    changed = type(step).FromString(step.SerializeToString())
    changed.readings.halting.append(3)
    steps = [*recorded_city.steps[:number], (changed, tls, ns), *recorded_city.steps[number + 1 :]]
    played = Played(type(recorded_city)(recorded_city.start, steps).write(tmp_path / "changed.mcap"))
    assert any(played.page.moments.moment(step.at_s).shown)
    assert f"step {number} has readings of other lanes" in played.frame(step.at_s).panel["city"]["damage"]
