"""Handover plans: encoding, and clearing a junction with them."""

import contextlib
import functools
import json
import operator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import network
from city.network import OFF_PROGRAM, ProgramSwitch
from controller.guard.handover import MalformedHandover, decode, encode, hand_back, handovers_of
from controller.sumo.connection import ONLINE, CommandRejected
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


class Simulation:
    """SUMO with one signal, whose release it accepts or rejects."""

    def __init__(self, shown, program, accepts):
        """`program`: that runs; without one, SUMO does not know the signal."""
        self._shown, self._program, self._accepts = shown, program, accepts
        self.now, self.sent, self.switched, self.owned = 100.0, [], {}, ["A0"]

    def read(self, tls):
        released = any(isinstance(command, PermittedRelease) for command in self.sent)
        return SimpleNamespace(time_s=self.now, rejected={} if self._accepts or not released else {"A0": "no"})

    def programs(self, signals):
        if not self._program:
            raise CommandRejected("unknown")
        return dict.fromkeys(signals, self._program)

    def signal_states(self, links_of):
        return [self._shown]

    def set(self, commands):
        self.sent += commands

    def advance(self, until_s):
        self.now = until_s

    def switch_program(self, signal, program):
        self.switched[signal] = (self.now, program)

    def mark_controlled(self, signals, owner):
        self.owned = [owner] * len(signals)


@pytest.mark.parametrize(
    ("program", "accepts", "sends", "switched_s"),
    [
        (ONLINE, True, True, None),
        (ONLINE, False, True, 100 + 5 + 3 + 2 + 10),  # min green, yellow, red and the margin
        ("", True, False, 100.0),
        ("0", True, False, None),  # it runs its own program
    ],
)
def test_a_signal_that_cannot_be_cleared_is_switched_to_its_program(program, accepts, sends, switched_s):
    signal = SIGNALS["A0"]
    simulation = Simulation(signal.plan.phases[signal.plan.greens[0]].state, program, accepts)
    hand_back(simulation, decode(encode(handovers_of([one_signal(signal, SafetyTimes(3, 5, 2))]))), 1.0)
    assert bool(simulation.sent) == sends and simulation.owned == [""]
    assert simulation.switched == ({} if switched_s is None else {"A0": (switched_s, signal.plan.id)})


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"[{}]", b"[1]", b'{"a": 1}', b"[" * 100_000])))
def test_malformed_handover_plans_are_refused(content):
    with contextlib.suppress(MalformedHandover):
        assert decode(content) == []


FIRST = (0, "plans", "first")
PARTS = [
    (0,), (0, "signal"), (0, "path_m"), (0, "path_m", 0), (0, "times"), (0, "times", "yellow_s"), (0, "plans"), FIRST,
    (0, "plans", "since_s"), (0, "plans", "switches"), (0, "plans", "switches", 0), (0, "plans", "later"),
    (0, "plans", "later", "off"), (*FIRST, "program"), (*FIRST, "program", "phases"), (*FIRST, "program", "phases", 0),
    (*FIRST, "program", "offset_s"), (*FIRST, "is_synchronised"),
]  # fmt: skip


@given(st.sampled_from(PARTS), st.sampled_from([[], {}, None, 5, -1.5, "x", True, [[]], [None], {"a": []}]))
def test_handover_plan_with_a_wrong_part_is_read_or_refused(part, by):
    plan = json.loads(encode(handovers_of([one_signal(SIGNALS[min(SIGNALS)], SafetyTimes(3, 5, 0.5))])))
    functools.reduce(operator.getitem, part[:-1], plan)[part[-1]] = by
    with contextlib.suppress(MalformedHandover):
        decode(json.dumps(plan).encode())
