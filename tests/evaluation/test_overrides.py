"""What the safety rules replaced in an arm, and the price of a longest red by movement."""

from dataclasses import replace

import pytest

from evaluation.arms import parse
from evaluation.simulation import ArmSimulator, EvaluationTask, describe_overrides
from simulation.demand import Demand
from tests.evaluation.outcomes import ZERO


def test_overrides_are_named_by_reason_for_each_arm_that_has_some():
    outcomes = [replace(ZERO, overrides_by_reason=each) for each in ({"max_red": 4, "yellow": 1}, {"max_red": 5})]
    results = {"served": outcomes, "greedy": [ZERO, ZERO]}
    assert describe_overrides(parse("served,greedy"), results) == [
        "overrides in a simulation: served: 4.5 max_red, 0.5 yellow"
    ]


@pytest.mark.parametrize("key", ["left", "protected left"])
def test_max_red_of_a_movement_holds_in_an_evaluation(key, grid_city):
    safety = replace(grid_city.safety, max_red_s_of_signal={"A0": {key: 20.0}})
    overrides = [
        ArmSimulator(EvaluationTask(city, ("SA101",), 120.0)).run(*parse("max-pressure"), Demand(1)).overrides_by_reason
        for city in (grid_city, replace(grid_city, safety=safety))
    ]
    assert "max_red" not in overrides[0] and overrides[1]["max_red"] > 0
