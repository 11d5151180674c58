"""The greens that each movement got: how many, how long, the longest red, and skipped cycles."""

from dataclasses import replace

import pytest

from city import network
from evaluation.movement_service import MovementService, cycle_begins_s, green_share, movement_service
from evaluation.signal_recording import SignalBand
from signals.movement_names import movement_names
from tests.signals.test_movement_names import NORTH, approach, crossing, junction

SIGNAL = junction(*approach("n", NORTH, "sl"), crossing(90.0, "Main Street", "n"))
"""Links: through, left, a crossing."""


def with_plan(*phases, kind="static", offset_s=0):
    """The signal with a program of (state, seconds)."""
    own = tuple(network.ProgramPhase(state, s, s, s) for state, s in phases)
    return replace(SIGNAL, programs=(network.Program("0", kind, offset_s, own),))


PLAN = with_plan(("Ggr", 20), ("yyr", 5), ("rGr", 15), ("rrG", 20))
"""A cycle of 60 s."""


def band(*states, end_s):
    return SignalBand("J", 0.0, 0.0, states, end_s)


def test_greens_share_longest_red_and_skipped_cycles():
    shown = band((0.0, "Ggr"), (20.0, "yyr"), (30.0, "rGr"), (50.0, "rrG"), (150.0, "Ggr"), end_s=200.0)
    found = movement_service(PLAN, movement_names(PLAN), shown)
    assert found == {
        # cycles from 0, 60 and 120 s; the last one is not over
        "northbound through": MovementService(36.0, 70 / 200, 130.0, pytest.approx(1 / 3)),
        "northbound left": MovementService(54.0, 90 / 200, 100.0, pytest.approx(1 / 3)),
        "northbound left (protected)": MovementService(18.0, 20 / 200, 150.0, pytest.approx(2 / 3)),
        "pedestrians across Main Street": MovementService(18.0, 100 / 200, 50.0, 0.0),
    }


def test_a_left_has_a_row_of_protected_greens_if_the_plan_has_both_kinds():
    rows = {}
    for state in ("Ggr", "GGr"):
        own = with_plan((state, 20), ("rGr", 20))
        rows[state] = list(movement_service(own, movement_names(own), band((0.0, state), end_s=90.0)))
    assert "northbound left (protected)" in rows["Ggr"] and len(rows["GGr"]) == len(rows["Ggr"]) - 1


def test_a_movement_that_is_never_green_is_red_for_all_the_time():
    found = movement_service(PLAN, movement_names(PLAN), band((0.0, "Ggr"), (40.0, "yyr"), end_s=120.0))
    assert found["pedestrians across Main Street"] == MovementService(0.0, 0.0, 120.0, 1.0)


@pytest.mark.parametrize(
    ("offset_s", "begins_s"), [(0, [60, 120, 180]), (10, [70, 130, 190]), (-20, [40, 100, 160]), (45, [45, 105, 165])]
)
def test_cycles_are_aligned_with_the_plan_and_whole(offset_s, begins_s):
    plan = with_plan(("Ggr", 30), ("rrG", 30), offset_s=offset_s)
    assert cycle_begins_s(plan, band((40.0, "Ggr"), end_s=190.0 if offset_s == 10 else 219.0)).tolist() == begins_s


@pytest.mark.parametrize("kind", ["NEMA", "static"])
def test_a_program_whose_phases_do_not_follow_one_another_has_no_cycle(kind):
    plan = with_plan(("Ggr", 30), ("rrG", 30), kind=kind)
    found = movement_service(plan, movement_names(plan), band((0.0, "Ggr"), end_s=130.0))
    assert {own.skipped_share for own in found.values()} == ({None} if kind == "NEMA" else {0.0, 1.0})


def test_a_signal_that_is_off_or_recorded_for_less_than_a_cycle_skips_none():
    off = replace(PLAN, active_program="off")
    for own, end_s in ((off, 200.0), (PLAN, 59.0)):
        found = movement_service(own, movement_names(own), band((0.0, "Ggr"), end_s=end_s))
        assert {each.skipped_share for each in found.values()} == {None}


@pytest.mark.parametrize(("begin_s", "end_s"), [(50.0, 70.0), (20.0, 21.0)], ids=["in two cycles", "short"])
def test_a_cycle_with_a_part_of_a_green_is_not_skipped(begin_s, end_s):
    shown = band((0.0, "rrG"), (begin_s, "Ggr"), (end_s, "rrG"), end_s=60.0 if end_s < 60 else 120.0)
    assert movement_service(PLAN, movement_names(PLAN), shown)["northbound through"].skipped_share == 0.0


def test_links_are_green_while_one_of_them_is():
    shown = band((0.0, "Grr"), (10.0, "rgr"), (40.0, "rrG"), end_s=100.0)
    assert green_share(shown, (0, 1)) == 0.4 and green_share(shown, (0,)) == 0.1
