"""The comparison of a training's speed with our environment's: the same city, SUMO's start and trips in both."""

import pytest

from benchmarks.training_speed import ENVIRONMENT, ONE_WORKER, city_of, environment, measured_in_turn, report, training
from tests.conftest import GRID

SEVERAL = "greenserve train, 2 workers"


def test_report_has_the_medians_of_the_ratios_of_a_turn():
    measured = {
        ENVIRONMENT: [(0.9, 0.5), (1.8, 1.0), (0.9, 0.5)],
        ONE_WORKER: [(1.0, 0.5), (2.0, 1.0), (1.1, 0.5)],
        SEVERAL: [(0.5, 0.0), (1.0, 0.0), (0.5, 0.0)],
    }
    *times, to_environment, to_one = report(measured, 1200, SEVERAL)
    assert (
        times[0].startswith(ENVIRONMENT) and "0.90 s an episode" in times[0] and times[0].endswith("own steps 0.50 s")
    )
    assert to_environment.split()[-4:] == ["0.90", "(0.82", "to", "0.90)"]
    assert to_one.startswith("2 workers, times as fast as 1") and to_one.split()[-4] == "2.00"


@pytest.mark.slow
def test_sumos_steps_are_a_part_of_the_environments_time():
    city = city_of(GRID / "grid.sumocfg")
    with environment(city, 100) as episodes, training(city, 100, 1) as update:
        measured = measured_in_turn({ENVIRONMENT: episodes, ONE_WORKER: update}, 2)
    assert all(0 < in_sumo_s < episode_s for episode_s, in_sumo_s in measured[ENVIRONMENT])
    # a training's SUMO is another program, so its own time is not known
    assert all(episode_s > 0 and in_sumo_s == 0 for episode_s, in_sumo_s in measured[ONE_WORKER])
