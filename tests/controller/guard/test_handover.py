"""What a controller leaves with its guard comes back as it was, and clears a junction by the rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import network
from controller.fallback.plan import Plan, PlanEntry
from controller.guard import handover
from controller.safety.safety_times import SafetyTimes
from controller.safety.signal_safety import PermittedHandover, SignalSafety
from tests.conftest import GRID

SIGNALS = network.of_sumocfg(GRID / "grid.sumocfg").signals


class OneSignal:
    def __init__(self, signal, times):
        self.safeties = [SignalSafety(signal, times, [])]
        self.plans = [Plan(signal.plan, is_synchronised=True)]


@pytest.mark.parametrize("name", sorted(SIGNALS))
def test_a_will_comes_back_as_it_was(name):
    x = OneSignal(SIGNALS[name], SafetyTimes(3, 5, 1.5, max_red_s=90))
    (handover,) = handover.read(handover.of([x]))
    assert (handover.signal, handover.times, handover.plan) == (name, x.safeties[0].times, x.plans[0])
    found = handover.safety()
    assert (found.yellow_s, found.clearance_s) == (x.safeties[0].yellow_s, x.safeties[0].clearance_s)


@pytest.mark.parametrize("name", sorted(SIGNALS))
def test_the_guard_clears_by_yellow_and_red_and_then_the_plan(name):
    signal = SIGNALS[name]
    (handover,) = handover.read(handover.of([OneSignal(signal, SafetyTimes(3, 5, 2))]))
    for phase in signal.plan.greens:
        safety = handover.safety()
        green = signal.plan.phases[phase].state
        safety.adopt(green, 100.0)
        entry, shown = PlanEntry(safety, handover.plan), []
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
        found = handover.read(content)
    except handover.MalformedHandover:
        return
    assert found == []
