"""What the page keeps of a run."""

import numpy as np
import pytest

from controller.operator.page import feed as feed_module
from controller.operator.page.feed import Feed
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
