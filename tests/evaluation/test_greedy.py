"""The greedy baseline in the real SUMO, beside other arms."""

import pytest

from city import config, network
from controller.assembly import ControlledTls, assemble
from controller.policies.no_policies import NoPolicies, contracts_of_city
from evaluation.arms import Arm
from evaluation.simulation import ArmSimulator, EvaluationTask
from simulation.demand import Demand
from simulation.street_simulation import simulated
from tests.networks import netgenerate

ROADS = {"left0A0": "A0right0", "bottom0A0": "A0top0"}
"""Incoming -> outgoing road, straight across the signal A0."""


@pytest.fixture
def city_of(tmp_path):
    """A function: the city of one junction, with vehicles that stand before the stop line: road -> their number."""

    def write(queues):
        netgenerate(tmp_path / "a.net.xml", "--grid", "--grid.number", "1", "--grid.attach-length", "200")
        vehicles = "".join(
            f'<vehicle id="{road}{k}" depart="0" departPos="{180 - 8 * k}"><route edges="{road} '
            f'{ROADS[road]}"/></vehicle>'
            for road, count in queues.items()
            for k in range(count)
        )
        (tmp_path / "a.rou.xml").write_text(f"<routes>{vehicles}</routes>")
        (tmp_path / "a.sumocfg").write_text(
            '<configuration><input><net-file value="a.net.xml"/><route-files value="a.rou.xml"/></input>'
            '<time><end value="120"/></time></configuration>'
        )
        (tmp_path / "city.toml").write_text(
            '[network]\nsumocfg = "a.sumocfg"\n[tl.A0]\nsignals = ["A0"]\ndialect = "sumo-rl"\n'
        )
        return config.load(tmp_path / "city.toml")

    return write


@pytest.mark.parametrize("longer", ROADS)
def test_greedy_serves_the_longer_queue_first(longer, city_of, tmp_path):
    city = city_of({road: 12 if road == longer else 2 for road in ROADS})
    street = network.of_city(city)
    contracts = list(contracts_of_city(city, tuple(city.tls), street).values())
    with simulated(city, Demand(1), tmp_path / "trips.xml") as connection:
        tls = ControlledTls(street, contracts, city.safety, city.controller, "greedy")
        loop = assemble(connection, tls, NoPolicies())
        assert [x.control_name for x in loop.intersections.values()] == ["GREEDY"]
        while loop.now < 20:
            loop.step(20)
        shown = connection.api.trafficlight.getRedYellowGreenState("A0")
    served = {lane for c, link in zip(shown, street.signals["A0"].links, strict=True) if c in "Gg" for lane, _ in link}
    assert f"{longer}_0" in served and not any(f"{road}_0" in served for road in ROADS if road != longer)


def test_greedy_serves_both_queues_and_is_repeatable(city_of):
    city = city_of(dict.fromkeys(ROADS, 5))
    task = EvaluationTask(city, tuple(city.tls))
    first, second = (ArmSimulator(task).run(Arm("greedy", "greedy"), Demand(1)) for _ in range(2))
    assert first == second and first.finished == first.total == 10
