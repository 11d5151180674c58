"""A TL from decision to settings, without a simulator: a small street is played by hand."""

import itertools

import numpy as np
import pytest
from controller.signal_timing import GreenPhaseSequencer, KeepChangeSequencer, PlanSequencer

from city.config import Controller
from city.network import Phase, Program, SignalNetwork
from controller import action
from controller.fallback.control_mode import ControlMode
from controller.fallback.plan import Plan
from controller.intersection import Intersection
from controller.observation import SumoRlObserver
from controller.policies.policy import ActionSpace
from controller.safety.safety_times import SafetyTimes
from controller.safety.signal_safety import PermittedHandover, PermittedState, SignalSafety
from protos import policy_pb2 as pb

GREENS = ["GgGr", "rrrG"]
PLAN = Plan(
    Program("0", "static", 0, tuple(Phase(s, d, d, d) for s, d in (("GgGr", 20), ("yyyr", 3), ("rrrG", 10), ("rrry", 3)))), False
)
HOLD_S = 10


def one_signal(crossing, hold_s=HOLD_S, times=SafetyTimes(3, 5)):  # noqa: B008 - it does not change
    policy = pb.PolicyContract(tl="SA101", signal_ids=["X"], action=pb.Action(kind="categorical", size=2))
    safety = SignalSafety(crossing, times, GREENS)
    timing = GreenPhaseSequencer(GREENS, 5, 3, 5)
    x = Intersection(policy, SumoRlObserver(np.arange(4), 4, 2), timing, [safety], [PLAN], Controller(hold_s=hold_s, recovery_answers=2))
    x.start(0, ["GgGr"])
    return x


def play(x, until_s, answer, shown=("GgGr",), begin_s=0):
    """(second, setting) of everything set while `answer(second)` answers; steps as a decision loop would."""
    found, now = [], begin_s
    while now < until_s:
        if x.next_decision_s <= now:
            x.take(answer(now), now, shown)
        found += [(now, setting) for setting in x.commands(now)[0]]
        x.confirm(())
        now = min(x.next_due_s(now), until_s)
    return found


def states(found):
    return [(now, s.state) for now, s in found if isinstance(s, PermittedState)]


def test_the_first_setting_takes_control_and_a_change_goes_through_yellow(crossing):
    x = one_signal(crossing)
    found = play(x, 30, lambda now: np.array([0 if now < 10 else 1]))
    assert states(found) == [(0, "GgGr"), (10, "yyyr"), (13, "rrrG")]


def test_nothing_is_set_twice(crossing):
    x = one_signal(crossing)
    assert len(play(x, 100, lambda now: np.array([0]))) == 1


def test_a_late_answer_holds_the_signal_then_the_is_fallback_and_then_the_policy_returns(crossing):
    x = one_signal(crossing)
    found = play(x, 100, lambda now: np.array([0]) if now < 20 or now >= 60 else TimeoutError("late"))
    # held from 20 on, plan from 30 on: yellow, red, then the program from its green
    assert states(found)[:3] == [(0, "GgGr"), (30, "yyyr"), (33, "rrrr")]
    handed = [(now, s.program, s.phase) for now, s in found if isinstance(s, PermittedHandover)]
    assert handed == [(33, "0", 0)] or handed == [(34, "0", 0)]
    # two good answers in a row, then the policy's green again, taken over as shown
    assert x.mode is ControlMode.POLICY
    assert states(found)[3:] == [(62, "GgGr")]


def test_coming_back_starts_from_what_the_plan_shows(crossing):
    x = one_signal(crossing)
    play(x, 60, lambda now: TimeoutError("late"))
    assert x.is_released and x.on_plan
    found = play(x, 100, lambda now: np.array([0]), shown=("rrrG",), begin_s=60)
    after = states(found)
    assert after[0][1] == "rrrG", "the shown green goes on first"
    assert [s for _, s in after] in (["rrrG", "rrry", "rrrr", "GgGr"], ["rrrG", "rrry", "GgGr"])


def test_a_policy_that_returns_during_the_way_to_the_plan_goes_on_from_the_state_reached(crossing):
    x = one_signal(crossing, hold_s=0)
    x.take(TimeoutError("late"), 10, None)
    x.commands(10)
    assert x.on_plan and not x.is_released
    for now in (11, 12):
        x.commands(now)
    x.take(np.array([0]), 15, None)
    x.take(np.array([0]), 20, None)
    assert x.mode is ControlMode.POLICY and not x.on_plan
    assert x.safeties[0].shown in ("rrrr", "yyyr")
    later = [setting.state for now in range(21, 40) for setting in x.commands(now)[0]]
    assert later[-1] == "GgGr"


@pytest.mark.parametrize("failed_s", [100, 100.5, 101, 101.8])
def test_tls_without_their_policies_ask_at_the_same_moments_whenever_they_lost_them(crossing, failed_s):
    x = one_signal(crossing, hold_s=4)
    asked = []
    while len(asked) < 6:
        x.take(TimeoutError("late") if failed_s <= 106 else np.array([0]), failed_s, ["GgGr"])
        failed_s = x.next_decision_s
        asked.append(failed_s)
    assert asked == [102, 104, 106, 108, 110, 115], "the second good answer gives the policy its own moments again"


@pytest.mark.parametrize(("period_s", "good_s"), [(40, 20), (36, 6), (30, 4)])
@pytest.mark.parametrize("hold_s", [0, 10])
def test_a_policy_that_comes_and_goes_starves_nobody(crossing, hold_s, period_s, good_s):
    """It wants the first green for ever; each time it is gone the plan begins with that green as well, and never gets far."""
    x = one_signal(crossing, hold_s, SafetyTimes(3, 5, max_red_s=60))
    found = play(x, 400, lambda now: np.array([0]) if now % period_s < good_s else TimeoutError("late"))
    assert sum(isinstance(setting, PermittedHandover) for _, setting in found) > 5
    served = [0, *(now for now, state in states(found) if state == "rrrG"), 400]
    assert len(served) > 4 and max(b - a for a, b in itertools.pairwise(served)) <= 60 + period_s + 15


def test_whoever_waits_does_not_keep_a_tl_from_its_plan_for_ever(crossing):
    """With bounds that nobody can keep somebody is always served for having waited too long."""
    greens = ("GrGr", "rGrr", "rrrG")
    policy = pb.PolicyContract(tl="SA101", signal_ids=["X"], action=pb.Action(kind="categorical", size=3))
    safety = SignalSafety(crossing, SafetyTimes(3, 5, max_red_s=4), greens)
    observer, timing = SumoRlObserver(np.arange(4), 4, 2), GreenPhaseSequencer(greens, 5, 3, 5)
    x = Intersection(policy, observer, timing, [safety], [PLAN], Controller(hold_s=30, recovery_answers=2))
    x.start(0, ["GrGr"])
    found = play(x, 100, lambda now: np.array([0]) if now < 20 else TimeoutError("late"))
    assert sum(state in greens[1:] for _, state in states(found)) > 4, "somebody is served again and again"
    assert [now for now, setting in found if isinstance(setting, PermittedHandover)]


def test_what_a_program_that_is_switched_off_shows_is_no_red(crossing):
    x = one_signal(crossing, 0, SafetyTimes(3, 5, max_red_s=60))
    for begin, until, answer, shown in [
        (0, 20, TimeoutError("late"), "GgGr"),
        (20, 100, TimeoutError("late"), "oooo"),
        (100, 150, np.array([0]), "GgGr"),
    ]:
        found = play(x, until, lambda now, answer=answer: answer, (shown,), begin)
    assert x.mode is ControlMode.POLICY and {state for _, state in states(found)} == {"GgGr"}


def test_a_tl_on_its_way_to_its_plan_is_asked_with_the_others(crossing):
    x = one_signal(crossing, 0)
    x.take(TimeoutError("late"), 101.8, ("GgGr",))
    x.commands(101.8)
    assert x.next_due_s(101.8) == x.next_decision_s == 102


def test_a_yellow_lasts_no_longer_because_a_tl_comes_and_goes(crossing):
    x = one_signal(crossing, 0, SafetyTimes(7, 5))
    found = play(x, 30, lambda now: TimeoutError("late") if now >= 10 and x.mode is ControlMode.POLICY else np.array([1]))
    assert states(found)[1:4] == [(10, "yyyr"), (14, "yyyr"), (17, "rrrr")]


def test_what_the_plan_serves_has_not_waited_when_the_policy_returns(crossing):
    x = one_signal(crossing, 0, SafetyTimes(3, 5, max_red_s=60))
    x.take(TimeoutError("late"), 0, ("GgGr",))
    found = play(x, 100, lambda now: TimeoutError("late"), shown=("GgGr",), begin_s=2)
    x.take(TimeoutError("late"), 100, ("rrrG",))
    assert isinstance(found[-1][1], PermittedHandover)
    found = play(x, 160, lambda now: np.array([0]), shown=("GgGr",), begin_s=102)
    assert {state for _, state in states(found)} == {"GgGr"}, "60 s have not passed yet"
    found = play(x, 180, lambda now: np.array([0]), begin_s=160)
    assert [state for _, state in states(found)][:2] == ["yyyr", "rrrG"]


@pytest.mark.parametrize("answer", [np.array([7]), np.array([np.nan]), "green", None, np.zeros(3), RuntimeError("x")])
def test_no_answer_whatever_raises(crossing, answer):
    x = one_signal(crossing)
    assert x.take(answer, 0, None) != ""
    assert x.mode is ControlMode.HOLD
    x.commands(0)


def test_release_hands_every_signal_back_once_it_is_cleared(crossing):
    x = one_signal(crossing)
    x.commands(0)
    x.release()
    found = []
    for now in range(7, 20):
        found += x.commands(now)[0]
        x.confirm(())
    assert isinstance(found[-1], PermittedHandover) and x.is_released and x.unreleased() == []
    assert [s.state for s in found[:-1]] == ["yyyr", "rrrr"]


def test_a_handover_that_sumo_refuses_is_not_done_and_is_tried_again(crossing):
    x = one_signal(crossing)
    x.commands(0)
    x.release()
    tried = 0
    for now in range(7, 20):
        tried += sum(isinstance(setting, PermittedHandover) for setting in x.commands(now)[0])
        x.confirm({"X"})
        assert not x.is_released and x.unreleased() == [("X", "0")]
    assert tried > 3
    x.commands(20)
    x.confirm(())
    assert x.is_released and x.unreleased() == []


def test_what_was_sent_but_not_confirmed_counts_as_not_released(crossing):
    x = one_signal(crossing)
    x.release()
    for now in range(7, 20):
        x.commands(now)
    assert x.awaits_confirmation and x.unreleased() == [("X", "0")]


def test_an_action_that_cannot_be_taken_is_a_failure_not_a_crash(crossing):
    x = one_signal(crossing)
    x.policy.action.size = 7  # a contract that contradicts its signal's two greens
    x._space = ActionSpace(x.policy)
    assert "cannot be taken" in x.take(np.array([6]), 20, None)


def test_a_plan_is_decided_at_its_own_moments_only(crossing):
    phases = [Phase(s, d, d, d) for s, d in (("GgGr", 20), ("yyyr", 3), ("rrrG", 10), ("rrry", 3))]
    policy = pb.PolicyContract(tl="SA107", signal_ids=["X"], action=pb.Action(kind="offset", size=1))
    timing = PlanSequencer("offset", [action.plan_of(phases, 0, 4, 60)], 2, 2, 2)
    safety = SignalSafety(crossing, SafetyTimes(3, 5), GREENS)
    x = Intersection(policy, SumoRlObserver(np.arange(4), 4, 2), timing, [safety], [PLAN], Controller())
    x.start(0, ["GgGr"])
    x.take(np.array([0.0]), 0, None)
    x.take(TimeoutError("late"), 72, None)
    assert x.next_decision_s == 74, "the policy is asked again soon"
    before = [timing.phases(t) for t in range(100, 136)]
    x.take(np.array([1.0]), 74, None)
    assert x.mode is ControlMode.POLICY and x.next_decision_s == 144
    assert [timing.phases(t) for t in range(100, 136)] == before, "but decides at the multiples of its cycles"
    x.take(np.array([1.0]), 144, None)
    assert [timing.phases(t) for t in range(172, 208)] != before


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (0, (0, 20)),
        (12, (0, 8)),
        (16, (2, 17)),  # 4 s of the first green are too few: the next one, early, to its own end at 33
        (20, (2, 13)),
        (30, (0, 26)),
        (36 + 12, (0, 8)),
    ],
)
def test_a_plan_that_keeps_to_the_clock_is_entered_in_step(now, expected):
    timed = Plan(PLAN.program, is_synchronised=True)
    assert timed.entry(now, min_green_s=5) == expected
    later = Plan(Program("0", "static", 7, PLAN.program.phases), is_synchronised=True)
    assert later.entry(now + 7, min_green_s=5) == expected


def test_a_plan_without_a_clock_begins_with_its_first_green():
    assert PLAN.entry(16, 5) == (0, None)


def two_signals():
    none = np.zeros((2, 2), bool)
    foes = np.array([[False, True], [True, False]])
    phases = [Phase(s, 10, 10, 10) for s in ("Gr", "yr", "rG", "ry")]
    networks = [
        SignalNetwork(
            name, ((("a", "b"),), (("c", "d"),)), ("a", "c"), (Program("p", "static", 0, tuple(phases)),), "p", foes, none
        )
        for name in "AB"
    ]
    policy = pb.PolicyContract(tl="SA108", signal_ids=["A", "B"], action=pb.Action(kind="kc", size=2))
    safeties = [SignalSafety(network, SafetyTimes(3, 4), ["Gr", "rG"]) for network in networks]
    timing = KeepChangeSequencer([phases, phases], 15, 0.2)
    x = Intersection(
        policy,
        SumoRlObserver(np.arange(2), 2, 2),
        timing,
        safeties,
        [Plan(Program("p", "static", offset, tuple(phases)), is_synchronised=True) for offset in (0, 10)],
        Controller(hold_s=0),
    )
    x.start(0, ["Gr", "rG"])
    return x


def test_the_signals_of_a_group_change_each_by_its_own_number():
    x = two_signals()
    found = play(x, 20, lambda now: np.array([1.0, -1.0]) if now == 15 else np.array([-1.0, -1.0]), shown=("Gr", "rG"))
    assert [(now, s.signal, s.state) for now, s in found] == [
        (0, "A", "Gr"), (0, "B", "rG"), (15, "A", "yr"), (18, "A", "rG"),
    ]  # fmt: skip


def test_the_signals_of_a_group_go_on_their_plans_together_and_report_each():
    x = two_signals()
    found = play(x, 40, lambda now: TimeoutError("late"), shown=("Gr", "rG"))
    handed = {s.signal: s.phase for _, s in found if isinstance(s, PermittedHandover)}
    assert set(handed) == {"A", "B"} and x.is_released
