"""Entries and exits of detectors, from readings after every step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sumo.tracked_detectors import DetectorChange, DetectorVehicle, TrackedDetectors, step_ends
from signals.simulation_time import round_to_ms

END_S = 12.0
PASSAGES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9_000), st.integers(0, 4_000)), max_size=12)
"""(detector, ms of the entry, ms on the detector)"""


def of_newest_step(passages, time_s, step_s):
    """Detections that SUMO reports at time_s."""
    vehicles_of = {}
    for vehicle, (detector, entry_ms, stay_ms) in enumerate(passages):
        entry_s, exit_s = entry_ms / 1000, (entry_ms + stay_ms) / 1000
        if entry_s <= time_s and exit_s > round_to_ms(time_s - step_s):
            reported = DetectorVehicle(str(vehicle), entry_s, exit_s if exit_s <= time_s else -1.0)
            vehicles_of.setdefault(detector, []).append(reported)
    return vehicles_of


def changes(tracked, time_s, vehicles_of):
    tracked.add(time_s, vehicles_of)
    return tracked.take_changes()


@given(PASSAGES, st.sampled_from([0.1, 0.5, 1.0]))
def test_every_entry_and_exit_is_found_once_and_in_order(passages, step_s):
    found, tracked = [], TrackedDetectors(("a",), 0.0, step_s)
    for time_s in tracked.advance(END_S):
        found += changes(tracked, time_s, of_newest_step(passages, time_s, step_s))
        # a second reading of the same moment adds nothing
        assert changes(tracked, time_s, of_newest_step(passages, time_s, step_s)) == []
    exits = [(detector, (entry + stay) / 1000) for detector, entry, stay in passages if entry + stay <= 1000 * END_S]
    expected = [DetectorChange(detector, entry / 1000, True) for detector, entry, _ in passages]
    expected += [DetectorChange(detector, exit_s, False) for detector, exit_s in exits]
    assert sorted(found) == sorted(expected)
    assert [change.time_s for change in found] == sorted(change.time_s for change in found)


def test_vehicle_that_is_there_at_first_has_entered_before():
    tracked = TrackedDetectors(("a",), 0.0, 1.0)
    assert changes(tracked, 60.0, {4: [DetectorVehicle("a", 12.5, -1.0)]}) == [DetectorChange(4, 12.5, True)]


def test_vehicle_that_sumo_no_longer_knows_has_left():
    tracked = TrackedDetectors(("a",), 0.0, 1.0)
    changes(tracked, 10.0, {0: [DetectorVehicle("a", 9.5, -1.0), DetectorVehicle("b", 9.8, -1.0)]})
    assert changes(tracked, 11.0, {0: [DetectorVehicle("b", 9.8, -1.0)]}) == [DetectorChange(0, 11.0, False)]
    assert changes(tracked, 12.0, {}) == [DetectorChange(0, 12.0, False)]
    assert changes(tracked, 13.0, {}) == []


@pytest.mark.parametrize(
    ("from_s", "until_s", "step_s", "ends"),
    [
        (0, 3, 1.0, [1, 2, 3]),
        (57600.2, 57600.5, 0.1, [57600.3, 57600.4, 57600.5]),
        (5, 6, 1.0, [6]),
        (5, 5, 1.0, [5]),
    ],
)
def test_segment_ends_with_its_last_step(from_s, until_s, step_s, ends):
    assert step_ends(from_s, until_s, step_s) == ends
