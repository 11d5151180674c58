"""Rewards of two signals in a line: what a queue between them costs each of them."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from city import network
from city.config import TL, City
from city.errors import InputError
from controller.sumo.connection import Person, Traffic
from signals import contract
from simulation.rewards import DOWNSTREAM_SHARE, RewardedTls, Rewards
from tests.networks import netgenerate


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """Two signals, A0 and B0, with a road of two directions between them and others that end."""
    net = tmp_path_factory.mktemp("line") / "line.net.xml"
    options = "--grid --grid.x-number 2 --grid.y-number 1 --grid.attach-length 100 --no-turnarounds"
    return network.read(netgenerate(net, *options.split()))


def on_lanes(lanes, halting, pending=()):
    return Traffic(np.array([halting.get(lane, 0) for lane in lanes]), np.zeros(len(lanes)), pending)


def rewards_with(line, name, traffic):
    """The rewards of both signals from second 0 on. `traffic`: lanes -> what is on them now."""
    city = City(line.net_file)
    contracts = [contract.build(city, TL((signal,), "street", signal), line) for signal in ("A0", "B0")]
    return Rewards(RewardedTls(name, line, contracts), SimpleNamespace(traffic=traffic), 0.0)


def rewards_of(line, name, halting, pending=()):
    """By TL, the reward at second 5 with halting vehicles by lane, and vehicles that wait to depart on roads."""
    measure = rewards_with(line, name, lambda lanes: on_lanes(lanes, halting, pending))
    measure.sample(5.0)
    return dict(zip(("A0", "B0"), measure.since_last(["A0", "B0"], 5.0), strict=True))


@pytest.mark.parametrize("name", ["delay", "delay-downstream"])
def test_a_person_who_stands_before_a_crossing_loses_time_as_a_vehicle_does(name, crossroads_net):
    street = network.read(crossroads_net)
    built = contract.build(City(crossroads_net), TL(("J",), "street", "J"), street)
    persons = [Person(":J_c0", 0.0, 9.0), Person(":J_c1", 0.05, 0.0), Person(":J_c2", 1.3, 0.0), Person("JN", 0.0, 9.0)]
    read_persons = Mock(return_value=persons)
    connection = SimpleNamespace(traffic=lambda lanes: on_lanes(lanes, {}), persons=read_persons)
    measure = Rewards(RewardedTls(name, street, [built]), connection, 0.0)
    measure.sample(5.0)
    assert measure.since_last(["J"], 5.0) == [pytest.approx(-2 / 20)]
    assert sorted(read_persons.call_args.args[0]) == [":J_w0", ":J_w1", ":J_w2", ":J_w3"]


def share_of_links(line, signal, road):
    exits = [out for link in line.signals[signal].links for _, out in link]
    return sum(out.rpartition("_")[0] == road for out in exits) / len(exits)


def test_queue_before_the_next_signal_is_charged_to_the_signal_that_feeds_it(line):
    assert rewards_of(line, "delay", {"A0B0_0": 8}) == {"A0": 0, "B0": pytest.approx(-8 / 20)}
    fed_by_a, fed_by_b = (DOWNSTREAM_SHARE * share_of_links(line, *road) for road in (("A0", "A0B0"), ("B0", "B0A0")))
    assert 0 < fed_by_a < DOWNSTREAM_SHARE
    other = min(lane for lane in line.signals["B0"].lanes if not lane.startswith("A0B0"))
    behind = {out for link in line.signals["B0"].links for _, out in link if not out.startswith("B0A0")}
    for halting, pending, charged in (
        ({"A0B0_0": 8}, [], (-fed_by_a * 8 / 20, -8 / 20)),
        # all that B0 loses counts for A0, which cannot tell its own vehicles from others
        ({other: 4}, [], (-fed_by_a * 4 / 20, -4 / 20)),
        # a vehicle waits to depart
        ({}, ["B0A0"], (-1 / 20, -fed_by_b / 20)),
        # no signal is ahead
        (dict.fromkeys(behind, 9), [], (0, 0)),
    ):
        found = rewards_of(line, "delay-downstream", halting, pending)
        assert tuple(found.values()) == pytest.approx(charged), halting


def test_only_the_due_tl_is_rewarded(line):
    traffic = Mock(side_effect=lambda lanes: on_lanes(lanes, dict.fromkeys(lanes, 2)))
    (reward,) = rewards_with(line, "delay-downstream", traffic).since_last(["A0"], 3.0)
    ((lanes,), _) = traffic.call_args
    assert reward < 0 and any(lane.startswith("A0B0") for lane in lanes), "what the next signal loses is measured, too"


@pytest.mark.parametrize(("value", "reason"), [(None, "not a number"), (float("nan"), "which is not finite")])
def test_function_that_gives_no_finite_number_is_named(line, value, reason):
    def mine(tl):
        return value

    with pytest.raises(InputError, match=f"^reward: mine gave {value} for A0, {reason}"):
        rewards_with(line, mine, None).since_last(["A0"], 5.0)
