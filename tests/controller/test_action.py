"""sappo's numbers against vectors that the seed system computed."""

import json

import pytest

from city.errors import InputError
from city.network import Phase
from controller import action


@pytest.fixture(scope="module")
def vectors(shared):
    return json.loads((shared / "vectors" / "sappo.json").read_text())


def test_green_split_changes_are_the_seed_systems(vectors):
    for key, expected in vectors["green_splits"].items():
        p, m = map(int, key.split(","))
        assert [list(change) for change in action.green_split_changes(p, m)] == expected, key


def test_offset_shifts_are_the_seed_systems(vectors):
    for v in vectors["offset"]:
        assert action.offset_shift_s(v["a"], v["cycle"], v["offset_range"]) == v["shift_s"], v


def test_gr_indices_are_the_seed_systems(vectors):
    for v in vectors["gr_index"]:
        assert action.gr_index(v["a"], v["n"]) == v["index"], v


def phases(*durations, low=None, high=None):
    return [
        Phase(s, d, d if low is None or "y" in s else low, d if high is None or "y" in s else high)
        for s, d in zip(("Gr", "yr", "rG", "ry"), durations, strict=True)
    ]


def test_six_variable_greens_are_listed_without_exhausting_memory():
    changes = action.green_split_changes(9, 0)
    assert all(sum(change) == 0 for change in changes) and len(set(changes)) == len(changes)


def test_a_change_keeps_the_cycle_and_the_bounds():
    plan = action.plan_of(phases(20, 3, 10, 3, low=8, high=24), 0, 5, 60)
    changes = action.permitted_changes(plan, 2)
    assert changes == ((0, 0), (1, -1), (-1, 1), (-2, 2))  # (2, -2) would leave the second green 6 s
    for change in changes:
        assert len(action.phase_by_second(plan, change, 2, 0)) == 36


def test_without_durations_of_its_own_the_greens_vary_within_the_citys_bounds():
    plan = action.plan_of(phases(20, 3, 10, 3), 0, 9, 21)
    assert plan.variable == (0, 2)
    assert action.permitted_changes(plan, 2) == ((0, 0), (-1, 1), (-2, 2))
    wider = action.plan_of(phases(20, 3, 10, 3), 0, 8, 22)
    assert action.permitted_changes(wider, 2) == ((0, 0), (1, -1), (-1, 1), (-2, 2))


def test_the_plan_is_rolled_forward_by_its_offset():
    plan = action.plan_of(phases(4, 1, 2, 1), 3, 1, 60)
    assert action.phase_by_second(plan, (), 2, 0) == (2, 2, 3, 0, 0, 0, 0, 1)
    assert action.phase_by_second(plan, (), 2, 1) == (1, 2, 2, 3, 0, 0, 0, 0)


def test_a_plan_of_too_many_phases_is_refused_where_its_splits_are_looked_through():
    plan = action.plan_of([Phase("G", 10, 5, 20)] * 11, 0, 4, 60)
    with pytest.raises(InputError, match="11 variable phases"):
        action.permitted_changes(plan, 2)
