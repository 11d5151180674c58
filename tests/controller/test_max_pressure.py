"""Max-pressure: the green with the most to gain, entered and left through safe transitions."""

import numpy as np
import pytest

from city.config import Controller
from controller.failover import Rung
from controller.intersection import Intersection
from controller.max_pressure import MaxPressure, lanes_of
from controller.monitor import Limits, SignalMonitor
from controller.observation import Readings, SumoRlObserver
from controller.safety import PermittedState, SafetyTimes, SignalSafety
from controller.signal_timing import SumoRlTiming
from protos import policy_pb2 as pb
from tests.controller.test_intersection import GREENS, PLAN

LANES = [f"{way}{i}_0" for way in ("in", "out") for i in range(4)]
ROW = {lane: k for k, lane in enumerate(LANES)}
LENGTH_M = np.full(8, 100.0)


def readings(**vehicles):
    counts = np.array([vehicles.get(lane.removesuffix("_0"), 0) for lane in LANES], float)
    return Readings(counts, counts, counts, counts)


def chooser(crossing, length_m=LENGTH_M):
    made = MaxPressure([crossing], [GREENS], ROW, length_m, 3, 5)
    made.enter(0, ["GgGr"])
    return made


def chosen(made, now, **vehicles):
    made.decide(now, readings(**vehicles))
    return made.wishes(now + 3)[0]


def test_it_reads_the_lanes_in_and_out(crossing):
    assert lanes_of(crossing) == LANES


@pytest.mark.parametrize(
    ("vehicles", "green"),
    [
        ({"in3": 1}, "rrrG"),
        ({"in0": 5, "in3": 4}, "GgGr"),
        ({"in0": 5, "out0": 5, "in3": 1}, "rrrG"),  # those who cannot leave press nobody
        ({"in0": 2, "in1": 2, "in2": 2, "in3": 5}, "GgGr"),
        ({}, "GgGr"),  # nobody waits: no change
        ({"in0": 3, "in3": 3}, "GgGr"),
    ],
)
def test_the_green_with_the_greatest_pressure_is_chosen(crossing, vehicles, green):
    assert chosen(chooser(crossing), 20, **vehicles) == green


def test_a_long_lane_counts_for_what_it_holds(crossing):
    length_m = np.array([1000.0, 1000, 1000, 50, 100, 100, 100, 100])
    assert chosen(chooser(crossing, length_m), 20, in0=10, in3=2) == "rrrG"


def test_min_green_is_kept(crossing):
    made = chooser(crossing)
    assert chosen(made, 5, in3=9) == "GgGr"
    assert chosen(made, 10, in3=9) == "rrrG"


def pressed(crossing, hold_s=10):
    policy = pb.Policy(tl="SA101", signal_ids=["X"], action=pb.Action(kind="categorical", size=2))
    safety = SignalSafety(crossing, SafetyTimes(3, 5), GREENS)
    timing = SumoRlTiming(GREENS, 5, 3, 5)
    pressure = MaxPressure([crossing], [GREENS], ROW, LENGTH_M, 3, 5)
    x = Intersection(policy, SumoRlObserver(np.arange(4), 8, 2), timing, [safety], [PLAN], Controller(hold_s=hold_s), pressure)
    x.start(0, ["GgGr"])
    return x


def play(x, until_s, answer, seen, begin_s=0, release_s=None):
    found, now = [], begin_s
    while now < until_s:
        if release_s is not None and now >= release_s and not x.on_plan:
            x.release()
        if x.next_decision_s <= now:
            x.take(answer(now), now, ["GgGr"], seen(now))
        found += [(now, setting) for setting in x.settings(now)[0]]
        x.confirm(())
        now = min(x.next_due_s(now), until_s, np.floor(now) + 1)
    return found


def test_a_tl_without_its_policy_is_controlled_by_pressure_and_comes_back(crossing):
    x = pressed(crossing)
    late = lambda now: TimeoutError("late") if now < 100 else np.array([0])  # noqa: E731
    waiting = lambda now: readings(in3=9) if now % 60 < 30 else readings(in0=9)  # noqa: E731
    found = play(x, 160, late, waiting)
    assert all(isinstance(setting, PermittedState) for _, setting in found), "the own program never runs"
    shown = [(now, setting.state) for now, setting in found]
    assert {"GgGr", "rrrG"} <= {state for now, state in shown if 15 < now < 100}
    assert x.ladder.rung is Rung.SERVED and shown[-1][1] == "GgGr"
    monitor = SignalMonitor(crossing, Limits(3, 5, 0))
    ends = [*(now for now, _ in shown[1:]), 160]
    assert [alarm for (begin, state), end in zip(shown, ends, strict=True) for alarm in monitor.see(state, begin, end)] == []


def test_it_is_released_to_its_own_program_all_the_same(crossing):
    x = pressed(crossing)
    play(x, 90, lambda now: TimeoutError("late"), lambda now: readings(in3=9), release_s=60)
    assert x.released
