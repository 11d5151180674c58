"""What a controller leaves with its guard comes back as it was, and clears a junction by the rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import network
from controller.fallback import Plan, PlanEntry
from controller.guard import will
from controller.safety import PermittedHandover, SignalSafety
from controller.safety_times import SafetyTimes
from tests.conftest import GRID

SIGNALS = network.of_sumocfg(GRID / "grid.sumocfg").signals


class OneSignal:
    def __init__(self, signal, times):
        self.safeties = [SignalSafety(signal, times, [])]
        self.plans = [Plan(signal.plan, timed=True)]


@pytest.mark.parametrize("name", sorted(SIGNALS))
def test_a_will_comes_back_as_it_was(name):
    x = OneSignal(SIGNALS[name], SafetyTimes(3, 5, 1.5, max_red_s=90))
    (bequest,) = will.read(will.of([x]))
    assert (bequest.signal, bequest.times, bequest.plan) == (name, x.safeties[0].times, x.plans[0])
    found = bequest.safety()
    assert (found.yellow_s, found.clearance_s) == (x.safeties[0].yellow_s, x.safeties[0].clearance_s)


@pytest.mark.parametrize("name", sorted(SIGNALS))
def test_the_guard_clears_by_yellow_and_red_and_then_the_plan(name):
    signal = SIGNALS[name]
    (bequest,) = will.read(will.of([OneSignal(signal, SafetyTimes(3, 5, 2))]))
    for phase in signal.plan.greens:
        safety = bequest.safety()
        green = signal.plan.phases[phase].state
        safety.adopt(green, 100.0)
        entry, shown = PlanEntry(safety, bequest.plan), []
        for now in range(100, 160):
            setting, _ = entry.next(float(now))
            if isinstance(setting, PermittedHandover):
                break
            shown.append(setting.state)
        yellow = "".join("y" if c in "Gg" else c for c in green)
        assert shown == [green] * 5 + [yellow] * 3 + ["r" * len(green)] * 2


@given(st.one_of(st.binary(max_size=60), st.just(b"[{}]"), st.just(b"[1]"), st.just(b'{"a": 1}')))
def test_garbage_is_no_will(content):
    if content in (b"[]", b"{}"):
        return
    try:
        found = will.read(content)
    except will.BadWill:
        return
    assert found == []
