"""What the page keeps of a run, and when it reads vehicles."""

import numpy as np
import pytest

from city.street_shapes import JunctionShape
from controller.operator.page import feed as feed_module
from controller.operator.page.feed import Feed
from controller.operator.page.vehicles import COLLECT_SHARE, MIN_INTERVAL_S, VehicleCollector
from protos import policy_pb2 as pb
from signals.fallback.control_mode import ControlMode
from tests.controller.decision_events import decision, event

CONTRACTS = [pb.PolicyContract(tl=tl, signal_ids=[f"signal_{tl}"]) for tl in ("SA101", "SA102")]


@pytest.fixture
def feed():
    made = Feed(CONTRACTS)
    made.track(["a_0", "b_0"])
    return made


def test_nobody_is_woken_while_nobody_watches(feed):
    woken = []
    feed.wake = lambda: woken.append(feed.newest.sequence)
    feed.add(event(1))
    feed.wanted_view = (0, 0, 1, 1)
    feed.add(event(2))
    feed.wanted_view = None
    feed.add(event(3))
    feed.close()
    assert woken == [2]


def test_modes_follow_decisions(feed):
    feed.add(event(1, [decision("SA102", "x: y", ControlMode.POLICY, ControlMode.HOLD)]))
    assert feed.newest.modes == bytes([0, 1])
    feed.add(event(2, [decision("SA102", "", ControlMode.HOLD, ControlMode.POLICY)]))
    assert feed.newest.modes == bytes([0, 0])


def test_history_is_bounded_in_time(feed):
    for second in range(0, 2000, 10):
        feed.add(event(second, states=[(second - 10, second, ("r", "G"))]))
    kept = list(feed.since(0))
    assert kept[-1].at_s == 1990 and kept[0].at_s == 1990 - feed_module.HISTORY_S
    assert [step.number for step in feed.since(kept[-2].number)] == [kept[-1].number]


def test_history_is_bounded_in_size(feed, monkeypatch):
    monkeypatch.setattr(feed_module, "MAX_KEPT", 30)
    for second in range(100):
        feed.add(event(second, [decision("SA101")], states=[(second - 1, second, ("r", "G"))]))
    assert sum(step.weight for step in feed.since(0)) <= 30
    assert list(feed.since(0))[-1].at_s == 99


def test_kept_queues_do_not_change_with_the_next_reading(feed):
    made = event(1, [decision("SA101")])
    readings = made.readings.__class__(np.ones((2, 2)), np.zeros(2), np.zeros(2))
    feed.add(made.__class__(*(readings if name == "readings" else getattr(made, name) for name in made.__slots__)))
    readings.counts[:] = 7
    assert list(feed.newest.halting) == [1, 1]
    assert [list(step.halting) for step in feed.since(0)] == [[1, 1]]


class Source:
    """A connection that has vehicles, and takes some time."""

    def __init__(self, took_s=0.0):
        self.now, self.took_s, self.requests = 100.0, took_s, []

    def clock(self):
        return self.now

    def vehicles_near(self, junction, radius_m):
        self.requests.append((junction, radius_m))
        self.now += self.took_s
        return np.array([[1.0, 2.0, 90.0, 5.0]])


JUNCTIONS = [JunctionShape("J", 0, 0, ()), JunctionShape("K", 100, 0, ())]


def test_nothing_is_read_while_nobody_watches(feed):
    source = Source()
    assert not VehicleCollector(feed, JUNCTIONS, source.clock).collect(source, 1.0)
    assert source.requests == []


def test_the_circle_around_the_nearest_junction_covers_the_view(feed):
    source = Source()
    feed.wanted_view = (80, -30, 140, 50)
    assert VehicleCollector(feed, JUNCTIONS, source.clock).collect(source, 1.0)
    assert source.requests == [("K", pytest.approx(np.hypot(40, 50)))]
    assert (feed.collected.at_s, float(feed.collected.vehicles.speed_mps[0])) == (1.0, 5.0)


def test_reading_takes_at_most_its_share_of_the_wall_time(feed):
    source = Source(took_s=0.03)
    collector = VehicleCollector(feed, JUNCTIONS, source.clock)
    feed.wanted_view = (0, 0, 10, 10)
    begin, second = source.now, 0
    while source.now < begin + 60:
        second += 1
        collector.collect(source, second)
        source.now += 0.01
    assert len(source.requests) * 0.03 <= COLLECT_SHARE * 60 * 1.05
    assert collector.interval_s == pytest.approx(0.03 / COLLECT_SHARE)


def test_a_second_is_read_again_only_for_another_view(feed):
    source = Source()
    collector = VehicleCollector(feed, JUNCTIONS, source.clock)
    feed.wanted_view = (0, 0, 10, 10)
    assert collector.collect(source, 1.0)
    source.now += 10
    assert not collector.collect(source, 1.0)
    feed.wanted_view = (0, 0, 20, 10)
    assert collector.collect(source, 1.0)
    assert not collector.collect(source, 2.0)  # too early
    source.now += MIN_INTERVAL_S
    assert collector.collect(source, 2.0)
