"""Handover plans: encoding, and clearing a junction with them."""

import contextlib
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import network
from city.network import OFF_PROGRAM, ProgramSwitch
from controller.guard.handover import MalformedHandover, decode, encode, handovers_of
from signals.fallback.plan import FallbackPlan, FallbackSchedule, PlanTransition
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import PermittedRelease, SignalSafety
from tests.conftest import GRID

SIGNALS = network.of_sumocfg(GRID / "grid.sumocfg").signals


def one_signal(signal, times):
    """The part of an Intersection that handover plans are made from."""
    plans = {"off": FallbackPlan(OFF_PROGRAM, is_synchronised=False)}
    schedule = FallbackSchedule(FallbackPlan(signal.plan, True), 20.0, (ProgramSwitch(3600.0, "off"),), plans)
    return SimpleNamespace(safeties=[SignalSafety(signal, times, [])], plans=[schedule])


@pytest.mark.parametrize("name", sorted(SIGNALS))
def test_handover_plan_survives_encoding(name):
    x = one_signal(SIGNALS[name], SafetyTimes(3, 5, 0.5, max_red_s=90, red_by_path=True))
    (handover,) = decode(encode(handovers_of([x])))
    assert (handover.signal, handover.times, handover.plans) == (name, x.safeties[0].times, x.plans[0])
    safety = handover.safety()
    assert (safety.yellow_s, safety.clearance_s) == (x.safeties[0].yellow_s, x.safeties[0].clearance_s)


@pytest.mark.parametrize("name", sorted(SIGNALS))
def test_guard_clears_by_yellow_and_red_before_the_plan(name):
    signal = SIGNALS[name]
    (handover,) = decode(encode(handovers_of([one_signal(signal, SafetyTimes(3, 5, 2))])))
    for phase in signal.plan.greens:
        safety = handover.safety()
        green = signal.plan.phases[phase].state
        safety.start_from(green, 100.0)
        entry, shown = PlanTransition(safety, handover.plans), []
        for now in range(100, 160):
            command, _ = entry.next(float(now))
            if isinstance(command, PermittedRelease):
                break
            shown.append(command.state)
        assert shown == [green] * 5 + ["".join("y" if c in "Gg" else c for c in green)] * 3 + ["r" * len(green)] * 2


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"[{}]", b"[1]", b'{"a": 1}', b"[" * 100_000])))
def test_malformed_handover_plans_are_refused(content):
    with contextlib.suppress(MalformedHandover):
        assert decode(content) == []


def replaced(value, number, by):
    """(the value with its part of this number, counted depth first, replaced; the number that is left)."""
    if number == 0:
        return by, -1
    number -= 1
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in list(items):
            if number >= 0:
                value[key], number = replaced(part, number, by)
    return value, number


@given(st.integers(0, 200), st.sampled_from([[], {}, None, 5, -1.5, "x", True, [[]], [None], {"a": []}]))
def test_handover_plan_with_a_wrong_part_is_read_or_refused(number, by):
    plan = json.loads(encode(handovers_of([one_signal(SIGNALS[min(SIGNALS)], SafetyTimes(3, 5, 0.5))])))
    with contextlib.suppress(MalformedHandover):
        decode(json.dumps(replaced(plan, number, by)[0]).encode())
