"""Rewards of two signals in a line: what a queue between them costs each of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from city import network
from city.config import TL, City
from controller.sumo.connection import Traffic
from signals import contract
from simulation.rewards import DOWNSTREAM_SHARE, RewardedTls, Rewards
from tests.networks import netgenerate


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """Two signals, A0 and B0, with a road of two directions between them and others that end."""
    net = tmp_path_factory.mktemp("line") / "line.net.xml"
    options = "--grid --grid.x-number 2 --grid.y-number 1 --grid.attach-length 100 --no-turnarounds"
    return network.read(netgenerate(net, *options.split()))


def rewards_with(line, name, traffic):
    """The rewards of both signals from second 0 on. `traffic`: lanes -> what is on them now."""
    city = City(line.net_file)
    contracts = [contract.build(city, TL((signal,), "street", signal), line) for signal in ("A0", "B0")]
    return Rewards(RewardedTls(name, line, contracts), SimpleNamespace(traffic=traffic), 0.0)


def rewards_of(line, name, halting, pending=()):
    """By TL, the reward at second 5 with halting vehicles by lane, and vehicles that wait to depart on roads."""

    def traffic(lanes):
        return Traffic(np.array([halting.get(lane, 0) for lane in lanes]), np.zeros(len(lanes)), pending)

    measure = rewards_with(line, name, traffic)
    measure.sample(5.0)
    return dict(zip(("A0", "B0"), measure.since_last(["A0", "B0"], 5.0), strict=True))


def share_of_links(line, signal, road):
    exits = [out for link in line.signals[signal].links for _, out in link]
    return sum(out.rpartition("_")[0] == road for out in exits) / len(exits)


def test_queue_before_the_next_signal_is_charged_to_the_signal_that_feeds_it(line):
    queue = {"A0B0_0": 8}
    plain, charged = (rewards_of(line, name, queue) for name in ("delay", "delay-downstream"))
    assert plain == {"A0": 0, "B0": pytest.approx(-8 / 20)}
    share = share_of_links(line, "A0", "A0B0")
    assert 0 < share < 1
    assert charged == {"A0": pytest.approx(-DOWNSTREAM_SHARE * share * 8 / 20), "B0": pytest.approx(-8 / 20)}


def test_queue_that_no_signal_feeds_is_charged_to_the_next_signal_and_the_one_before(line):
    arms = sorted(lane for lane in line.signals["B0"].lanes if not lane.startswith("A0B0"))
    charged = rewards_of(line, "delay-downstream", {arms[0]: 4})
    # all that B0 loses counts for A0, which cannot tell its own vehicles from others
    share = share_of_links(line, "A0", "A0B0")
    assert charged == {"A0": pytest.approx(-DOWNSTREAM_SHARE * share * 4 / 20), "B0": pytest.approx(-4 / 20)}


def test_vehicles_that_wait_to_depart_are_charged(line):
    charged = rewards_of(line, "delay-downstream", {}, ["B0A0"])
    share = share_of_links(line, "B0", "B0A0")
    assert charged == {"A0": pytest.approx(-1 / 20), "B0": pytest.approx(-DOWNSTREAM_SHARE * share / 20)}


def test_queue_behind_the_last_signal_is_charged_to_nobody(line):
    behind = {out for link in line.signals["B0"].links for _, out in link if not out.startswith("B0A0")}
    assert rewards_of(line, "delay-downstream", dict.fromkeys(behind, 9)) == {"A0": 0, "B0": 0}


def test_only_the_due_tl_is_rewarded(line):
    asked = []

    def traffic(lanes):
        asked.extend(lanes)
        return Traffic(np.full(len(lanes), 2), np.zeros(len(lanes)), ())

    (reward,) = rewards_with(line, "delay-downstream", traffic).since_last(["A0"], 3.0)
    assert reward < 0 and any(lane.startswith("A0B0") for lane in asked), "what the next signal loses is measured, too"
