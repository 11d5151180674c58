"""The loop against a street that stops at its own steps only."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
from controller.action import plan_of
from controller.signal_timing import PlanSequencer

from city.config import Controller
from controller.decision_step import DecisionSteps, Events
from controller.intersection import Intersection
from controller.observation import Readings, SumoRlObserver
from controller.safety.monitor import Limits, SignalMonitor
from controller.safety.safety_times import SafetyTimes
from controller.safety.signal_safety import SignalSafety
from controller.sumo.link import StepResult
from protos import policy_pb2 as pb
from tests.controller.test_intersection import GREENS, PLAN, one_signal


class SteppedLink:
    """Stops where SUMO would: at the first step at or after the moment asked for."""

    lanes = tuple("abcd")
    readings = Readings(np.zeros((2, 4)), np.zeros(4), np.zeros(4))

    def __init__(self, step_s):
        self.step_s, self.now, self.set_at, self.state = step_s, 0.0, [], "GgGr"

    def set(self, settings):
        self.set_at += [(self.now, setting.state) for setting in settings if hasattr(setting, "state")]

    def go(self, until_s):
        while self.now < until_s - 1e-9:
            self.now = round(self.now + self.step_s, 3)

    def read(self, due):
        return StepResult(self.now, [], {})

    def shown(self):
        return {"X": self.state}


def plan_signal(crossing):
    """A TL whose wishes change between its decisions: yellows begin in the middle of an exchange."""
    policy = pb.PolicyContract(tl="SA107", signal_ids=["X"], action=pb.Action(kind="offset", size=1))
    timing = PlanSequencer("offset", [plan_of(PLAN.program.phases, 0, 4, 60)], 2, 2, 2)
    safety = SignalSafety(crossing, SafetyTimes(3, 4), GREENS)
    x = Intersection(policy, SumoRlObserver(np.arange(4), 4, 2), timing, [safety], [PLAN], Controller())
    x.start(0, ["GgGr"])
    return x


@pytest.mark.parametrize("step_s", [1.0, 0.5, 0.4, 0.7, 2.0])
@pytest.mark.parametrize("made", [one_signal, plan_signal])
def test_a_yellow_is_never_short_whatever_the_step_length(crossing, made, step_s):
    link = SteppedLink(step_s)
    flipping = SimpleNamespace(
        ask=lambda observations, observed_s: {tl: np.array([int(link.now / 10) % 2]) for tl in observations}
    )
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    steps = DecisionSteps(link, [made(crossing)], flipping, street, Events(), 0.0, step_s)
    while steps.now < 400:
        steps.step(400)
    yellows = [later[0] - now for (now, state), later in itertools.pairwise(link.set_at) if "y" in state]
    assert len(yellows) > 5 and min(yellows) >= 3.0 - 1e-9, yellows


@pytest.mark.parametrize("further_s", [0.0, 3.0])
def test_who_decides_has_been_read_for_once_and_at_that_moment(crossing, further_s):
    """Even where SUMO has come further than it was sent, so that others are due there than those it was read for."""
    link = SteppedLink(1.0)
    go, read, reads = link.go, link.read, []

    def going(until_s):
        go(until_s)
        link.now += further_s

    def reading(due):
        reads.append((link.now, due))
        return read(due)

    def ask(observations, observed_s):
        assert reads[-1] == (link.now, tuple(observations))
        return {tl: np.array([0]) for tl in observations}

    link.go, link.read = going, reading
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    other = one_signal(crossing)
    other.tl, other.next_decision_s = "SA102", 2.0
    steps = DecisionSteps(link, [one_signal(crossing), other], SimpleNamespace(ask=ask), street, Events(), 0.0, 1.0)
    while steps.now < 100:
        steps.step(steps.now + 2)
    assert steps.counters.decisions > 5 and not steps.counters.missing_answers
    assert len(reads) == len(set(reads)), "once"


def test_what_sumo_shows_is_watched_and_not_what_was_asked_for(crossing):
    """A SUMO that shows other states than those it was told: the monitor raises the alarm."""
    link = SteppedLink(1.0)
    alarms = []
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    monitor = SignalMonitor(crossing, Limits(3, 4, 0))
    constant = SimpleNamespace(ask=lambda observations, observed_s: {tl: np.array([0]) for tl in observations})
    events = Events(alarm=alarms.append)
    steps = DecisionSteps(link, [one_signal(crossing)], constant, street, events, 0.0, 1.0, [monitor])
    for state, rules in (("GgGr", set()), ("GgGG", {"conflict"}), ("rrrr", {"yellow"})):
        link.state = state
        alarms.clear()
        steps.step(400)
        steps.feed_monitors()
        assert rules <= {alarm.rule.value for alarm in alarms} and bool(rules) == bool(alarms)
    assert sum(steps.counters.alarms.values()) > 1


def test_a_signal_on_its_own_plan_is_not_watched(crossing):
    link = SteppedLink(1.0)
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    monitor = SignalMonitor(crossing, Limits(3, 4, 0))
    silent = SimpleNamespace(ask=lambda observations, observed_s: {})
    steps = DecisionSteps(link, [one_signal(crossing)], silent, street, Events(), 0.0, 1.0, [monitor])
    while not all(x.is_released for x in steps.intersections.values()):
        steps.step(400)
    steps.feed_monitors()
    before = steps.counters.alarms.total()
    link.state = "GGGG"
    steps.step(steps.now + 20)
    steps.feed_monitors()
    assert steps.counters.alarms.total() == before


def test_a_handover_that_sumo_refuses_is_tried_again_and_the_signal_stays_watched(crossing):
    link = SteppedLink(1.0)
    read, handovers = link.read, []

    def refusing(due):
        moment = read(due)
        if len(handovers) != 1:
            return moment
        link.state = "GGGG"
        return moment._replace(refusals={"X": "not now"})

    def set(settings):
        handovers.extend(link.now for setting in settings if not hasattr(setting, "state"))

    link.read, link.set = refusing, set
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    constant = SimpleNamespace(ask=lambda observations, observed_s: {tl: np.array([0]) for tl in observations})
    monitor = SignalMonitor(crossing, Limits(3, 4, 0))
    steps = DecisionSteps(link, [one_signal(crossing)], constant, street, Events(), 0.0, 1.0, [monitor])
    steps.step(400)
    steps.release(100)
    assert steps.unreleased() == [] and len(handovers) == 2 and steps.counters.rejections == 1
    assert handovers[1] - handovers[0] <= 1.0 and steps.now < 40
    assert steps.counters.alarms["conflict"] > 0  # what it showed meanwhile was still ours


def test_how_a_signal_comes_back_from_its_plan_is_watched(crossing):
    link = SteppedLink(1.0)
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    answers = {}
    mute = SimpleNamespace(ask=lambda observations, observed_s: answers)
    alarms = []
    monitor = SignalMonitor(crossing, Limits(3, 4, 0))
    events = Events(alarm=alarms.append)
    steps = DecisionSteps(link, [one_signal(crossing)], mute, street, events, 0.0, 1.0, [monitor])
    while not steps.intersections["SA101"].is_released:
        steps.step(400)
    answers["SA101"] = np.array([0])
    link.state = "rrrG"
    while steps.intersections["SA101"].on_plan:
        steps.step(400)
    alarms.clear()
    link.state = "GgGr"  # from the plan's green to ours, without a yellow
    steps.step(steps.now + 1)
    steps.feed_monitors()
    assert "yellow" in {alarm.rule.value for alarm in alarms}


def test_the_deadline_counts_from_the_moment_the_readings_came(crossing):
    link = SteppedLink(1.0)
    read, times = link.read, []

    def noting(due):
        moment = read(due)
        times.append(time.monotonic())
        return moment

    def ask(observations, observed_s):
        times.extend((observed_s, time.monotonic()))
        return {tl: np.array([0]) for tl in observations}

    link.read = noting
    street = SimpleNamespace(lane_length_m=dict.fromkeys("abcd", 50.0))
    steps = DecisionSteps(link, [one_signal(crossing)], SimpleNamespace(ask=ask), street, Events(), 0.0, 1.0)
    for _ in range(5):
        steps.step(400)
    for came, observed, asked in zip(*[iter(times[:15])] * 3, strict=True):
        assert came <= observed <= asked
