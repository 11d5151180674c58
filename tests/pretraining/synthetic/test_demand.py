"""Random demand: sorted, of the wanted volume, with trucks, buses, pedestrians and platoons."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from city.errors import InputError
from pretraining.synthetic import demand
from pretraining.synthetic.demand import RandomDemand
from tests.conftest import GRID
from tests.networks import netgenerate

SECONDS = 1200.0


@pytest.fixture(scope="module")
def grid():
    return RandomDemand(GRID / "grid.net.xml")


def written(street, path, seed=1, per_lane_h=200.0):
    """(number that `write` returns, the route file's root)."""
    number = street.write(path, np.random.default_rng(seed), per_lane_h, SECONDS)
    return number, ET.parse(path).getroot()


def test_vehicles_are_sorted_by_departure_and_the_same_again(grid, tmp_path):
    number, root = written(grid, tmp_path / "a")
    times = [float(each.get("depart")) for each in root.iter("vehicle")]
    assert len(times) == number and times == sorted(times) and times[0] >= 0 and times[-1] <= SECONDS
    written(grid, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_volume_is_that_of_the_source_lanes(grid, tmp_path):
    numbers = [written(grid, tmp_path / "a", seed)[0] for seed in range(30)]
    expected = 200 * grid.source_lanes * SECONDS / 3600
    # a vehicle that would go back to its origin's side is left out
    assert 0.75 * expected < np.mean(numbers) < 1.05 * expected


def test_some_vehicles_are_trucks_and_buses_and_some_depart_inside(grid, tmp_path):
    _, root = written(grid, tmp_path / "a", per_lane_h=2000)
    types = [each.get("type") for each in root.iter("vehicle")]
    assert np.mean([name == "truck" for name in types]) == pytest.approx(demand.TRUCK_SHARE, abs=0.015)
    assert np.mean([name == "bus" for name in types]) == pytest.approx(demand.BUS_SHARE, abs=0.01)
    sources = {edge.getID() for edge in grid._sources}
    inside = [each.get("edges").split()[0] not in sources for each in root.iter("route")]
    assert 0.03 < np.mean(inside) < 0.09


@pytest.mark.slow
def test_a_tenth_of_the_demands_comes_in_platoons(grid, tmp_path):
    def unevenness(seed):
        """Of the headways at the busiest source: 1 if vehicles come independently."""
        _, root = written(grid, tmp_path / "a", seed, per_lane_h=600)
        times = {}
        for vehicle in root.iter("vehicle"):
            times.setdefault(vehicle.find("route").get("edges").split()[0], []).append(float(vehicle.get("depart")))
        headways = np.diff(max(times.values(), key=len))
        return np.std(headways) / np.mean(headways)

    uneven = np.mean([unevenness(seed) > 1.5 for seed in range(120)])
    assert 0.03 < uneven < 0.2


def test_people_walk_over_crossings(tmp_path):
    options = ("--grid", "--grid.number", "2", "--grid.length", "100", "--grid.attach-length", "100")
    with_crossings = ("--sidewalks.guess", "--sidewalks.guess.max-speed", "40", "--crossings.guess")
    _, root = written(RandomDemand(netgenerate(tmp_path / "a.net.xml", *options, *with_crossings)), tmp_path / "a")
    departures = [float(each.get("depart")) for each in root if each.tag in ("vehicle", "person")]
    assert departures == sorted(departures)
    walks = [walk.get("edges").split() for walk in root.iter("walk")]
    assert len(walks) > 3 and all(2 <= len(walk) <= 4 for walk in walks)
    _, root = written(RandomDemand(netgenerate(tmp_path / "b.net.xml", *options)), tmp_path / "b")
    assert not list(root.iter("person"))


def test_a_network_without_outer_ends_has_demand_between_all_edges(tmp_path):
    options = ["--grid", "--grid.number", "3", "--grid.length", "100", "--no-turnarounds"]
    assert written(RandomDemand(netgenerate(tmp_path / "a.net.xml", *options)), tmp_path / "a")[0] > 0


def test_a_route_file_that_cannot_be_written_is_wrong_input(grid, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        written(grid, tmp_path / "missing" / "a.rou.xml")
