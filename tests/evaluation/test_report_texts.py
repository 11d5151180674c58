"""A report's sentence, its tables of movements and lane groups, the worst of them, and what is left out."""

from dataclasses import replace

import pytest

from evaluation import arms
from evaluation.lane_groups import LaneGroupTraffic
from evaluation.movement_service import MovementService
from evaluation.report_texts import (
    MAX_CHANGES,
    MAX_WORST,
    lane_group_rows,
    left_out,
    less_served,
    service_rows,
    verdict,
    worsened,
    worst_groups,
)
from tests.evaluation.outcomes import ZERO

BEFORE, AFTER = MovementService(157.4, 0.2, 90.0, 0.0), MovementService(5.0, 0.02, 312.0, 0.8)
TRAFFIC = LaneGroupTraffic(300.0, 600.0, False, 12.0, 20.0, 100.0)


def results_of(**delays_s):
    return {name: [replace(ZERO, arm=name, delay_s=delay_s) for delay_s in values] for name, values in delays_s.items()}


@pytest.mark.parametrize(
    ("candidate", "judgement", "text"),
    [
        ((20, 22, 21), "better",
            "In simulation, served control cuts the mean delay of fixed control by 33 %, from 31.3 to 21.0 s a trip (95 % interval of "
            "the reduction 8.9 to 11.8 s, 28 to 38 %; 3 simulations, each with other drivers, and in each the same "
            "vehicles for both)."),
        ((41, 42, 41), "worse",
            "In simulation, served control adds 10.0 s (32 %) to the mean delay of fixed control, from 31.3 to 41.3 s a trip (95 % "
            "interval of the increase 7.5 to 12.5 s, 24 to 40 %; 3 simulations, each with other drivers, and in each the "
            "same vehicles for both)."),
        ((20, 40, 21), "undecided",
            "In simulation, served control does not change the mean delay of fixed control clearly: it is 27.0 instead of 31.3 s a "
            "trip (95 % interval of the difference -28.7 to +20.0 s; 3 simulations, each with other drivers, and in "
            "each the same vehicles for both)."),
    ],
)  # fmt: skip
def test_sentence_says_better_worse_or_undecided_and_by_how_much(candidate, judgement, text):
    found = verdict("served", "fixed", results_of(served=candidate, fixed=(30, 33, 31)), False)
    assert (found.judgement, found.text) == (judgement, text)


def test_sentence_names_other_vehicles_one_simulation_and_a_lonely_arm():
    three, one = results_of(served=(20, 22, 21), fixed=(30, 33, 31)), results_of(served=(20,), fixed=(30,))
    assert (
        "3 simulations, each with other vehicles and drivers, and in each the same for both"
        in verdict("served", "fixed", three, True).text
    )
    single = verdict("served", "fixed", one, True)
    assert single.judgement == "undecided" and "one simulation, which has no interval" in single.text
    more = verdict("served", "fixed", results_of(served=(30, 53, 31), fixed=(30, 33, 31)), False)
    assert more.judgement == "undecided" and "it is 38.0 instead of 31.3 s" in more.text
    alone = verdict("served", None, three, False)
    assert alone.text == "In simulation, served control, compared with no other, has a mean delay of 21.0 s a trip."
    added = verdict("served", "fixed", results_of(served=(1, 1), fixed=(0, 0)), False).text
    assert "adds 1.0 s to the mean delay" in added


def test_worst_movements_are_by_level_then_by_delay():
    groups = {
        "few": replace(TRAFFIC, delay_s=70.0, volume_veh_h=10.0),
        "many": replace(TRAFFIC, delay_s=60.0),
        "good": TRAFFIC,
        "none": replace(TRAFFIC, volume_veh_h=0.0, delay_s=None),
        "unserved": replace(TRAFFIC, delay_s=None),
    }
    found = worst_groups({"A0": groups}, {"A0": {"good": replace(TRAFFIC, delay_s=1.0)}})
    assert [group.name for group in found] == ["A0 unserved", "A0 few", "A0 many", "A0 good"]
    assert found[-1].before.delay_s == 1.0 and found[0].before is None
    assert len(worst_groups({"A": {str(k): TRAFFIC for k in range(9)}}, {})) == MAX_WORST


def test_movements_that_got_worse_are_counted_and_the_largest_rise_is_named():
    def of(*delays_s):
        return {"A0": {str(k): replace(TRAFFIC, delay_s=delay_s) for k, delay_s in enumerate(delays_s)}}

    none = replace(TRAFFIC, volume_veh_h=0.0, delay_s=None)
    assert worsened(of(5.04, 4.0, None), of(5.0, 9.0, None)) == "No movement got worse."
    assert worsened(of(5.1, 30.0, 9.0), of(5.0, 10.0, 9.0)) == (
        "Worse than before: 2 of 3 movements; the largest rise is that of A0 1, from 10.0 s A to 30.0 s C."
    )
    assert "1 of 2 movements" in worsened(of(5.0, None), of(5.0, 200.0))
    assert "1 of 1 movements" in worsened(of(5.1, 50.0), {"A0": {**of(5.0)["A0"], "1": none}})
    assert worsened(of(50.0), {"A0": {"0": none}}) == worsened({"A0": {"0": none}}, of(5.0)) == "No movement got worse."


def test_what_is_left_out_is_what_was_not_simulated():
    given = left_out(arms.parse("served,fixed"), 10, {"varied_demand": False})
    assert given[0].startswith("Demand: one given demand; the 10 simulations differ in their drivers alone.")
    varied = left_out(arms.with_faults(arms.parse("served,fixed")), 10, {"varied_demand": True})
    assert varied[0].startswith("Demand: 10 samples of one given demand.")
    assert given[2] == "Detectors, communication and signals: without a fault."
    assert varied[2].endswith("without a fault, except in the arms with faults.")
    assert left_out(arms.parse("served"), 1, {})[0].startswith("Demand: one given demand. ")


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
