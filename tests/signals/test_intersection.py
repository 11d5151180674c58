"""A TL from answers to signal commands, without a simulator."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from city.config import Controller
from city.network import Program, ProgramPhase, ProgramSwitch
from protos import policy_pb2 as pb
from signals.cycle_plans import PlanSequencer, cycle_plan
from signals.dialects.sappo import KeepChangeSequencer
from signals.dialects.sumo_rl import SumoRlObserver
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.green_phases import GreenPhaseSequencer
from signals.intersection import Intersection
from signals.policy import Answer
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import PermittedRelease, PermittedState, SignalSafety
from tests.signals.single_signal import GREENS, PLAN, one_signal, play


def states(sent):
    return [(now, s.state) for now, s in sent if isinstance(s, PermittedState)]


def test_missing_answers_lead_to_hold_then_fallback_then_recovery(crossing):
    x = one_signal(crossing)
    sent = play(x, 100, lambda now: Answer(np.array([0])) if now < 20 or now >= 60 else TimeoutError("late"))
    # HOLD from 20 on, FALLBACK from 30 on: yellow, red, then the program from its green
    assert states(sent)[:3] == [(0, "GgGr"), (30, "yyyr"), (33, "rrrr")]
    assert [(now, s.program, s.phase) for now, s in sent if isinstance(s, PermittedRelease)] == [(34, "0", 0)]
    # two valid answers in a row, then the policy's green again, taken over as shown
    assert x.mode is ControlMode.POLICY
    assert states(sent)[3:] == [(62, "GgGr")]


def test_recovery_starts_from_what_the_plan_shows(crossing):
    x = one_signal(crossing)
    play(x, 60, lambda now: TimeoutError("late"))
    assert x.is_released and x.state.is_on_fallback_plan
    after = states(play(x, 100, lambda now: Answer(np.array([0])), shown=("rrrG",), begin_s=60))
    assert after[0][1] == "rrrG", "the shown green continues first"
    assert [s for _, s in after] == ["rrrG", "rrry", "GgGr"]


def test_policy_that_returns_during_the_transition_continues_from_there(crossing):
    x = one_signal(crossing, hold_s=0)
    x.apply_answer(TimeoutError("late"), 10, None)
    x.commands(10)
    assert x.state.is_on_fallback_plan and not x.is_released
    for now in (11, 12):
        x.commands(now)
    x.apply_answer(Answer(np.array([0])), 15, None)
    x.apply_answer(Answer(np.array([0])), 20, None)
    assert x.mode is ControlMode.POLICY and not x.state.is_on_fallback_plan
    assert x.safeties[0].shown == "yyyr"
    later = [command.state for now in range(21, 40) for command in x.commands(now)[0]]
    assert later[-1] == "GgGr"


@pytest.mark.parametrize("failed_s", [100, 100.5, 101, 101.8])
def test_tls_in_fallback_ask_their_policies_at_the_same_moments(crossing, failed_s):
    x = one_signal(crossing, hold_s=4)
    asked = []
    while len(asked) < 6:
        x.apply_answer(TimeoutError("late") if failed_s <= 106 else Answer(np.array([0])), failed_s, ["GgGr"])
        failed_s = x.state.next_decision_s
        asked.append(failed_s)
    assert asked == [102, 104, 106, 108, 110, 115], "the second valid answer restores the policy's own moments"


@pytest.mark.parametrize(("period_s", "good_s"), [(40, 20), (36, 6), (30, 4)])
@pytest.mark.parametrize("hold_s", [0, 10])
def test_intermittent_policy_keeps_max_red(crossing, hold_s, period_s, good_s):
    """The policy always requests the first green, and the plan begins with it each time the policy is missing."""
    x = one_signal(crossing, hold_s, SafetyTimes(3, 5, max_red_s=60))
    sent = play(x, 400, lambda now: Answer(np.array([0])) if now % period_s < good_s else TimeoutError("late"))
    assert sum(isinstance(command, PermittedRelease) for _, command in sent) > 5
    served = [0, *(now for now, state in states(sent) if state == "rrrG"), 400]
    assert len(served) > 4 and max(b - a for a, b in itertools.pairwise(served)) <= 60 + period_s + 15


def test_max_green_that_no_link_waits_for_does_not_delay_decisions(crossing):
    greens = ("Grrr", "rrGr")
    times = SafetyTimes(3, 5, max_green_s=20)
    x = one_signal(crossing, times=times, greens=greens, sequencer=GreenPhaseSequencer(greens, 5.5, 3, 5))
    asked = []
    play(x, 60, lambda now: asked.append(now) or Answer(np.array([0])))
    assert asked == [5.5 * k for k in range(11)]


def test_max_red_service_does_not_delay_the_plan_for_ever(crossing):
    """With a max red that cannot be kept, some link always exceeds it."""
    greens = ("GrGr", "rGrr", "rrrG")
    x = one_signal(crossing, 30, SafetyTimes(3, 5, max_red_s=4), greens=greens)
    sent = play(x, 100, lambda now: Answer(np.array([0])) if now < 20 else TimeoutError("late"))
    assert sum(state in greens[1:] for _, state in states(sent)) > 4, "links beyond max red are served again and again"
    assert [now for now, command in sent if isinstance(command, PermittedRelease)]


def test_links_that_the_plan_served_have_not_waited(crossing):
    x = one_signal(crossing, 0, SafetyTimes(3, 5, max_red_s=60))
    x.apply_answer(TimeoutError("late"), 0, ("GgGr",))
    sent = play(x, 100, lambda now: TimeoutError("late"), shown=("GgGr",), begin_s=2)
    x.apply_answer(TimeoutError("late"), 100, ("rrrG",))
    assert isinstance(sent[-1][1], PermittedRelease)
    sent = play(x, 160, lambda now: Answer(np.array([0])), shown=("GgGr",), begin_s=102)
    assert {state for _, state in states(sent)} == {"GgGr"}, "60 s have not passed yet"
    sent = play(x, 180, lambda now: Answer(np.array([0])), begin_s=160)
    assert [state for _, state in states(sent)][:2] == ["yyyr", "rrrG"]


def test_tl_in_transition_asks_its_policy_with_the_others(crossing):
    x = one_signal(crossing, 0)
    x.apply_answer(TimeoutError("late"), 101.8, ("GgGr",))
    x.commands(101.8)
    assert x.next_due_s(101.8) == x.state.next_decision_s == 102


@pytest.mark.parametrize("action", [np.array([7]), np.array([np.nan]), "green", None, np.zeros(3)])
def test_invalid_action_of_any_kind_means_hold_not_an_exception(crossing, action):
    x = one_signal(crossing)
    assert x.apply_answer(Answer(action), 0, None) != ""
    assert x.mode is ControlMode.HOLD
    x.commands(0)


def released(x, begin_s=7, until_s=20, rejected=()):
    sent = []
    for now in range(begin_s, until_s):
        sent += x.commands(now)[0]
        x.confirm_sent(rejected)
    return sent


@pytest.fixture
def releasing(crossing):
    x = one_signal(crossing)
    x.commands(0)
    x.release()
    return x


def test_state_is_sent_again_each_time_another_client_replaces_it(crossing):
    x = one_signal(crossing)
    play(x, 20, lambda now: Answer(np.array([0])))
    sent = []
    for begin_s in (20, 40, 60):
        assert x.correct({"X": "rrrr"}, begin_s) == [("X", "GgGr", "rrrr")]
        sent.append(states(play(x, begin_s + 20, lambda now: Answer(np.array([0])), begin_s=begin_s)))
    assert [[state for _, state in each][-1:] for each in sent] == [["GgGr"]] * 3


@pytest.mark.parametrize(
    ("times", "red_s"),
    [
        ({}, 1),
        ({"max_red_s": 120}, 1),
        ({"all_red_s": 2}, 2),
        ({"all_red_s": 2, "max_red_s": 120}, 2),
        # of 3 s and less than 1e-9 s, by float rounding
        ({"red_by_path": True, "max_red_s": 120}, 3),
    ],
)
def test_release_is_sent_a_second_after_the_signal_is_cleared(crossing, times, red_s):
    x = one_signal(replace(crossing, path_m=(38.34,) * 4, slowest_mps=(11.11,) * 4), times=SafetyTimes(3, 5, **times))
    assert "red_by_path" not in times or 3.0 < x.safeties[0].clearance_s[0] < 3.0 + 1e-9
    x.commands(0)
    x.release()
    sent = play(x, 200, None, begin_s=7)
    assert states(sent) == [(7, "yyyr"), (10, "rrrr")]
    assert [now for now, command in sent if isinstance(command, PermittedRelease)] == [10 + red_s]


def test_released_signal_is_cleared_and_released_again(releasing):
    released(releasing)
    assert releasing.released_signals == ["X"]
    releasing.release_again("X", "GGGG", 50)
    assert releasing.released_signals == [] and not releasing.is_released
    sent = released(releasing, 50, 70)
    assert [s.state for s in sent[:-1]] == ["GGGG", "yyyy", "rrrr"] and isinstance(sent[-1], PermittedRelease)
    assert releasing.is_released


def test_plan_follows_the_schedule_from_the_start_of_control():
    day, night = (FallbackPlan(Program(name, "static", 0, PLAN.program.phases), False) for name in ("day", "night"))
    switches = (ProgramSwitch(99, "day"), ProgramSwitch(200, "night"), ProgramSwitch(300, "day", 200))
    schedule = FallbackSchedule(PLAN, 100, switches, {"day": day, "night": night})
    programs = {now: schedule.at(now).program.id for now in (100, 199, 200, 299, 300, 499, 500)}
    assert programs == {100: "0", 199: "0", 200: "night", 299: "night", 300: "day", 499: "day", 500: "day"}


def test_rejected_handover_is_sent_again(releasing):
    sent = released(releasing, rejected={"X"})
    assert sum(isinstance(command, PermittedRelease) for command in sent) > 3
    assert not releasing.is_released and releasing.unreleased(0) == [("X", "0")]
    released(releasing, 20, 21)
    assert releasing.is_released and releasing.unreleased(0) == []


def test_unconfirmed_handover_counts_as_not_released(releasing):
    for now in range(7, 20):
        releasing.commands(now)
    assert releasing.awaits_confirmation and releasing.unreleased(0) == [("X", "0")]


def test_action_outside_the_signals_greens_is_a_failure(crossing):
    x = one_signal(crossing, actions=7)  # a contract that contradicts its signal's two greens
    assert "cannot be applied" in x.apply_answer(Answer(np.array([6])), 20, None)


def test_plan_actions_are_taken_only_at_multiples_of_the_control_cycle(crossing):
    sequencer = PlanSequencer("offset", [cycle_plan(PLAN.program.phases, 0, 4, 60)], 2, 2, 2)
    x = one_signal(crossing, sequencer=sequencer, kind="offset", actions=1)
    x.apply_answer(Answer(np.array([0.0])), 0, None)
    x.apply_answer(TimeoutError("late"), 72, None)
    assert x.state.next_decision_s == 74, "the policy is asked again soon"
    before = [sequencer.phase_state(t).phases for t in range(100, 136)]
    x.apply_answer(Answer(np.array([1.0])), 74, None)
    assert x.mode is ControlMode.POLICY and x.state.next_decision_s == 144
    assert [sequencer.phase_state(t).phases for t in range(100, 136)] == before, "decides only at multiples"
    x.apply_answer(Answer(np.array([1.0])), 144, None)
    assert [sequencer.phase_state(t).phases for t in range(172, 208)] != before


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (0, (0, 20)),
        (12, (0, 8)),
        (16, (2, 17)),  # 4 s of the first green are less than min green: the next green, early, until its end at 33
        (20, (2, 13)),
        (30, (0, 26)),
        (36 + 12, (0, 8)),
    ],
)
def test_synchronised_plan_is_entered_in_step(now, expected):
    assert FallbackPlan(PLAN.program, is_synchronised=True).entry_phase(now, min_green_s=5) == expected
    later = FallbackPlan(Program("0", "static", 7, PLAN.program.phases), is_synchronised=True)
    assert later.entry_phase(now + 7, min_green_s=5) == expected


@pytest.mark.parametrize(
    ("now", "expected"), [(2, (2, 1)), (7.5, (7, 0.5)), (8, (8, 1)), (8.5, (13, 5.5)), (14, (14, 1))]
)
def test_logged_plan_of_steps_of_a_second_is_entered_while_its_links_stay_green(now, expected):
    # link 0 is green from 0 to 12 s, with link 1 from 6 s on; then link 2 until 24 s
    states = ["Grr"] * 6 + ["GGr"] * 6 + ["yyr"] + ["rrG"] * 11
    program = Program("logged", "static", 0, tuple(ProgramPhase(state, 1, 1, 1) for state in states))
    assert FallbackPlan(program, is_synchronised=True).entry_phase(now, min_green_s=4) == expected


def test_unsynchronised_plan_begins_with_its_first_green():
    assert PLAN.entry_phase(16, 5) == (0, None)


@pytest.fixture
def two_signals(crossing):
    phases, plans = PLAN.program.phases, (replace(PLAN.program, offset_s=offset_s) for offset_s in (0, 10))
    x = Intersection(
        pb.PolicyContract(tl="SA108", signal_ids=["A", "B"], action=pb.Action(kind="kc", size=2)),
        SumoRlObserver(np.arange(4), 4, 2),
        KeepChangeSequencer([phases, phases], 15, 0.2),
        [SignalSafety(replace(crossing, id=name), SafetyTimes(3, 5), GREENS) for name in "AB"],
        [FallbackSchedule(FallbackPlan(plan, is_synchronised=True)) for plan in plans],
        Controller(hold_s=0),
    )
    x.start(0, GREENS)
    return x


def test_each_signal_of_a_group_follows_its_own_number(two_signals, monkeypatch):
    reported = []
    monkeypatch.setattr(two_signals._policy_sequencer, "note_shown", lambda now, signal: reported.append((now, signal)))
    sent = play(two_signals, 20, lambda now: Answer(np.array([1.0 if now == 15 else -1.0, -1.0])), GREENS)
    assert [(now, s.signal, s.state) for now, s in sent] == [
        (0, "A", "GgGr"), (0, "B", "rrrG"), (15, "A", "yyyr"), (18, "A", "rrrG"),
    ]  # fmt: skip
    assert [each for each in reported if each[0] < 15] == [(0, 0), (0, 1)]


def test_all_signals_of_a_group_enter_their_plans(two_signals):
    sent = play(two_signals, 40, lambda now: TimeoutError("late"), GREENS)
    assert {s.signal for _, s in sent if isinstance(s, PermittedRelease)} == {"A", "B"} and two_signals.is_released


def test_operator_hands_a_tl_to_its_program_and_back_through_safe_transitions(crossing):
    x = one_signal(crossing)
    answer = Answer(np.array([0]))
    play(x, 20, lambda now: answer)
    x.set_mode(OperatorMode.FIXED, 20)
    sent = play(x, 60, lambda now: answer, begin_s=20)
    assert states(sent)[:2] == [(20, "yyyr"), (23, "rrrr")], "yellow, then red, before the program's first green"
    assert x.is_released and x.mode is ControlMode.FIXED, "valid answers do not bring the policy back"
    x.set_mode(OperatorMode.POLICY, 60)
    assert x.mode is ControlMode.RECOVERING
    sent = play(x, 100, lambda now: answer, begin_s=60)
    assert x.mode is ControlMode.POLICY and states(sent)[-1][1] == "GgGr"


def test_operators_hold_keeps_the_green_whatever_the_policy_answers(crossing):
    x = one_signal(crossing)
    play(x, 20, lambda now: Answer(np.array([0])))
    x.set_mode(OperatorMode.HOLD, 20)
    changing = lambda now: Answer(np.array([1])) if now % 7 else TimeoutError("late")  # noqa: E731
    assert play(x, 200, changing, begin_s=20) == [] and x.mode is ControlMode.HOLD
    x.set_mode(OperatorMode.POLICY, 200)
    sent = play(x, 230, lambda now: Answer(np.array([1])), begin_s=200)
    assert states(sent)[-1][1] == "rrrG" and x.mode is ControlMode.POLICY


def test_operator_holds_a_tl_that_ran_its_program_in_the_state_that_it_shows(crossing):
    x = one_signal(crossing)
    play(x, 60, lambda now: TimeoutError("late"))
    assert x.is_released
    x.set_mode(OperatorMode.HOLD, 60)
    sent = play(x, 100, lambda now: Answer(np.array([0])), shown=("rrrG",), begin_s=60)
    assert states(sent)[0] == (60, "rrrG") and x.mode is ControlMode.HOLD and not x.state.is_on_fallback_plan


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(OperatorMode), st.integers(1, 30), st.booleans()), min_size=1, max_size=12))
def test_operators_commands_at_any_moment_never_show_a_short_yellow_or_leave_a_tl_without_control(crossing, commands):
    x, now, sent = one_signal(crossing), 0, []
    for wanted, duration_s, answers in commands:
        answer = (lambda now: Answer(np.array([now // 10 % 2]))) if answers else (lambda now: TimeoutError("late"))
        x.set_mode(wanted, now)
        sent += play(x, now + duration_s, answer, shown=("GgGr",), begin_s=now)
        now += duration_s
    shown = states(sent)
    yellows = [later - now for (now, state), (later, _) in itertools.pairwise(shown) if "y" in state]
    assert all(yellow_s >= 3 for yellow_s in yellows)
    x.set_mode(OperatorMode.POLICY, now)
    play(x, now + 100, lambda now: Answer(np.array([0])), shown=("GgGr",), begin_s=now)
    assert x.mode is ControlMode.POLICY
