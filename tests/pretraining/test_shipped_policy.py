"""The shipped policy on two synthetic streets that it gridlocked with earlier rules."""

import pytest

from city import network
from export import pretrained
from pretraining.street_results import control_of, simulate
from pretraining.streets import RandomTraffic, city_of
from pretraining.synthetic.streets import generate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "vehicles_per_lane_h"),
    [
        # a vehicle that waits for its left-turn arrow blocks a lane whose straight link is green
        pytest.param(78, 240.0, id="links of a lane with different greens"),
        # lanes of 21 m between junctions: the first vehicle is headed for a full exit, others are free
        pytest.param(71, 238.3, id="short lanes between junctions"),
    ],
)
def test_the_shipped_policy_has_less_delay_than_max_pressure_without_a_gridlock(seed, vehicles_per_lane_h, tmp_path):
    folder = generate(tmp_path, seed)
    city = city_of(folder)
    street = network.of_city(city)
    traffic = RandomTraffic(street.net_file, 50_000 + seed, vehicles_per_lane_h, 1200.0)
    found = []
    for policy, driver in ((pretrained.policy(), None), (None, "max-pressure")):
        results = tmp_path / str(driver)
        results.mkdir()
        found.append(simulate(city, street, traffic, control_of(city, street, policy, driver), results))
    assert found[0].finished >= 0.95 * found[1].finished and found[0].delay_s < found[1].delay_s
