"""Tables of movements and lane groups, before and after."""

from dataclasses import replace

import pytest

from evaluation.lane_groups import LaneGroupTraffic
from evaluation.movement_service import MovementService
from evaluation.movement_tables import MAX_CHANGES, lane_group_rows, less_served, service_rows

BEFORE, AFTER = MovementService(157.4, 0.2, 90.0, 0.0), MovementService(5.0, 0.02, 312.0, 0.8)
TRAFFIC = LaneGroupTraffic(300.0, 600.0, False, 12.0, 20.0, 100.0)


def test_movements_that_are_skipped_are_named_with_their_greens():
    after = {"A0": {"northbound left": AFTER, "southbound left": AFTER, "through": BEFORE}}
    before = {"A0": dict.fromkeys(after["A0"], BEFORE)}
    assert less_served(after, before) == [
        (
            "A0 northbound left, southbound left",
            "5 greens an hour instead of 157; longest red 312 s instead of 90 s; skipped in 80 % of the plan's cycles "
            "instead of 0 %",
        )
    ]
    assert less_served(before, after) == []


@pytest.mark.parametrize(
    ("after", "is_listed"),
    [
        (replace(BEFORE, longest_red_s=91.0), False),
        (replace(BEFORE, longest_red_s=92.0), True),
        (replace(BEFORE, skipped_share=0.004), False),
        (replace(BEFORE, skipped_share=0.006), True),
        (replace(BEFORE, greens_per_h=1.0), False),
        (replace(BEFORE, longest_red_s=120.0, skipped_share=None), True),
    ],
)
def test_a_movement_is_listed_if_it_is_skipped_more_often_or_red_for_longer(after, is_listed):
    assert bool(less_served({"A": {"x": after}}, {"A": {"x": BEFORE}})) is is_listed


def test_a_longer_red_is_not_listed_if_fewer_cycles_are_skipped():
    before = {"A": {"x": replace(BEFORE, skipped_share=0.5)}}
    for skipped, listed in ((0.4, 0), (0.496, 1), (0.5, 1)):
        after = {"A": {"x": replace(BEFORE, skipped_share=skipped, longest_red_s=200.0)}}
        assert len(less_served(after, before)) == listed


def test_the_largest_changes_come_first_and_are_few():
    after = {f"S{k}": {"x": replace(BEFORE, skipped_share=0.02 * k, longest_red_s=500.0 - k)} for k in range(1, 20)}
    found = [name for name, _ in less_served(after, {signal: {"x": BEFORE} for signal in after})]
    assert found == [f"S{k} x" for k in range(19, 19 - MAX_CHANGES, -1)]


def test_rows_have_before_and_after_or_one_value_if_they_are_equal():
    after = replace(AFTER, skipped_share=None)
    rows = service_rows([{"x": BEFORE, "y": BEFORE}, {"x": after, "y": BEFORE}])
    assert rows[0] == ["x", "157 → 5", "20 % → 2 %", "90 s → 312 s", "0 % → -"]
    assert rows[1] == ["y", "157", "20 %", "90 s", "0 %"]


def test_lane_groups_show_bounds_and_what_is_missing():
    unserved = replace(TRAFFIC, capacity_veh_h=0.0, delay_s=None, is_permissive=True, queue_m=100.0)
    permissive = replace(TRAFFIC, is_permissive=True)
    rows = lane_group_rows([{"x": TRAFFIC, "y": permissive}, {"x": unserved, "y": replace(TRAFFIC, volume_veh_h=0.0)}])
    assert rows[0] == ["x", "300", "0.50 → no green", "12.0 s B → none passed F", "20 m → 100 m of 100 m"]
    assert rows[1] == ["y", "300 → 0", "at least 0.50 → 0.00", "12.0 s B → no vehicle", "20 m of 100 m"]
