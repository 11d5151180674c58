"""Streets whose changes of greens take long: pedestrian crossings, fast roads."""

import pytest

from tests.end_to_end.generated_streets import LongestQueue, generate, run

GRID = ("--grid", "--grid.number", "2", "--grid.attach-length", "300", "--default.lanenumber", "2")
STREETS = {
    "crossings": ((*GRID, "--grid.length", "200", "--sidewalks.guess", "--crossings.guess"), 0.025),
    "100 km/h": ((*GRID, "--grid.length", "400", "--default.speed", "27.78"), 0.021),
}


@pytest.mark.parametrize("name", STREETS)
@pytest.mark.slow
def test_policy_with_short_changes_moves_as_many_vehicles_as_the_fixed_plan(name, tmp_path):
    options, cars_per_second = STREETS[name]
    street = generate(tmp_path, *options, cars_per_second=cars_per_second)
    fixed = run(street, 2400)
    controlled = run(street, 2400, LongestQueue, release_s=0)
    assert controlled.alarms == []
    assert controlled.arrived >= fixed.arrived
    assert controlled.overruled > 0.1 * controlled.decisions, "and it is counted how often the rules overrule it"
