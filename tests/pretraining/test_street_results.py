"""Simulations of synthetic streets: the same again, whatever the process has simulated before."""

from city import network
from pretraining.street_results import control_of, simulate
from pretraining.streets import RandomTraffic, city_of
from pretraining.synthetic.streets import generate

SEED = 1000050
"""Of a street with conflicts in junctions that SUMO decides by the addresses of its objects."""


def simulated(street_folder, seconds, scratch):
    city = city_of(street_folder)
    street = network.of_city(city)
    scratch.mkdir()
    return simulate(
        city,
        street,
        RandomTraffic(street.net_file, 50, 200.0, seconds),
        control_of(city, street, None, "max-pressure"),
        scratch,
    )


def test_a_simulation_is_the_same_again_after_others_in_the_same_process(tmp_path):
    congested, other = (generate(tmp_path, seed) for seed in (SEED, 3))
    found = []
    for k in range(5):
        found.append(simulated(congested, 400.0, tmp_path / f"congested_{k}"))
        simulated(other, 50.0 * (k + 1), tmp_path / f"other_{k}")
    assert found == 5 * found[:1] and found[0].finished > 50
