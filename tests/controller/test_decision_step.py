"""Decision steps against a connection that stops only at its own loop."""

import itertools
import math
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from city.config import Controller
from controller.decision_step import NO_ANSWER, DecisionLoop
from controller.events import OperatorAction
from controller.sumo.connection import StepResult, SumoConnectionLost
from protos import policy_pb2 as pb
from signals.cycle_plans import PlanSequencer, cycle_plan
from signals.dialects.sumo_rl import SumoRlObserver
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.fallback.plan import FallbackSchedule
from signals.intersection import Intersection
from signals.movement_names import MovementNames
from signals.observation import Readings
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import Override, SignalSafety
from tests.controller.decision_events import Alarms, Events
from tests.signals.single_signal import GREENS, PLAN, one_signal


class SteppedConnection:
    """Stops as SUMO does: at the first step at or after the requested moment."""

    lanes = tuple("abcd")
    outflow_lanes = ()
    readings = Readings(np.zeros((2, 4)), np.zeros(4), np.zeros(4))

    def __init__(self, step_s):
        self.step_s, self.now, self.sent, self.state = step_s, 0.0, [], "GgGr"

    def set(self, commands):
        for command in commands:
            if hasattr(command, "state"):
                self.sent.append((self.now, command.state))
                self.state = command.state

    def advance(self, until_s):
        while self.now < until_s - 1e-9:
            self.now = round(self.now + self.step_s, 3)

    def read(self, due):
        return StepResult(self.now, [], {})

    def shown(self):
        return {"X": self.state}

    def programs(self, signals):
        return dict.fromkeys(signals, "0")


def always(action):
    return SimpleNamespace(ask=lambda observations, _: dict.fromkeys(observations, Answer(np.array([action]))))


def flipping(connection):
    """Policies that choose the other green every 10 s."""
    return SimpleNamespace(ask=lambda observations, _: always(int(connection.now / 10) % 2).ask(observations, None))


def loop_of(connection, tls, policies, subscribers=(), monitors=(), step_s=1.0, **more):
    return DecisionLoop(connection, tls, policies, np.full(4, 50.0), 0.0, step_s, subscribers, monitors, **more)


def monitored(crossing, subscribers=(), policies=None, connection=None):
    """A loop of one signal with its monitor."""
    monitor = SignalMonitor(crossing, SafetyTimes(3, 4, 0))
    tls = [one_signal(crossing)]
    return loop_of(connection or SteppedConnection(1.0), tls, policies or always(1), subscribers, [monitor])


def run(loop, end_s):
    while loop.now < end_s:
        loop.step(end_s)


def yellow_times(connection):
    """How long each yellow was sent, in s."""
    return [later[0] - now for (now, state), later in itertools.pairwise(connection.sent) if "y" in state]


def plan_signal(crossing):
    """A TL whose requested states change between its decisions: yellows begin in the middle of an exchange."""
    contract = pb.PolicyContract(tl="SA107", signal_ids=["X"], action=pb.Action(kind="offset", size=1))
    sequencer = PlanSequencer("offset", [cycle_plan(PLAN.program.phases, 0, 4, 60)], 2, 2, 2)
    safety = SignalSafety(crossing, SafetyTimes(3, 4), GREENS)
    x = Intersection(
        contract, SumoRlObserver(np.arange(4), 4, 2), sequencer, [safety], [FallbackSchedule(PLAN)], Controller()
    )
    x.start(0, ["GgGr"])
    return x


@pytest.mark.parametrize("step_s", [1.0, 0.5, 0.4, 0.7, 2.0])
@pytest.mark.parametrize("make", [one_signal, plan_signal])
def test_yellow_is_never_short_whatever_the_step_length(crossing, make, step_s):
    connection = SteppedConnection(step_s)
    run(loop_of(connection, [make(crossing)], flipping(connection), step_s=step_s), 400)
    yellows = yellow_times(connection)
    assert len(yellows) > 5 and min(yellows) >= 3.0 - 1e-9, yellows


@pytest.mark.parametrize("further_s", [0.0, 3.0])
def test_readings_are_of_the_moment_and_the_tls_that_decide(crossing, further_s):
    """Even if SUMO simulated further than requested, so that other TLs are due there than those it was read for."""
    connection = SteppedConnection(1.0)
    advance, read, reads = connection.advance, connection.read, []

    def advance_further(until_s):
        advance(until_s)
        connection.now += further_s

    def ask(observations, observed_s):
        assert reads[-1] == (connection.now, tuple(observations))
        return always(0).ask(observations, observed_s)

    connection.advance = advance_further
    connection.read = lambda due: reads.append((connection.now, due)) or read(due)
    other = one_signal(crossing)
    other.tl, other.state.next_decision_s = "SA102", 2.0
    loop = loop_of(connection, [one_signal(crossing), other], SimpleNamespace(ask=ask))
    while loop.now < 100:
        loop.step(loop.now + 2)
    assert loop.counters.decisions > 5 and not loop.counters.missing_answers
    assert len(reads) == len(set(reads)), "each only once"


def test_monitor_checks_what_sumo_shows(crossing):
    """SUMO shows other states than those it was sent: the monitor raises an alarm."""
    connection, events = SteppedConnection(1.0), Events()
    late = SimpleNamespace(ask=lambda observations, _: dict.fromkeys(observations, TimeoutError("late")))
    loop = monitored(crossing, [events], late, connection)
    for state, rules in (("GgGr", set()), ("GgGG", {"conflict"}), ("rrrr", {"yellow"})):
        connection.state = state
        events.clear()
        loop.step(400)
        loop.finish()
        found = {alarm.rule.value for event in events for alarm in event.alarms}
        assert rules <= found and bool(rules) == bool(found)
    assert sum(loop.counters.alarms.values()) > 1


def test_state_of_another_client_is_an_alarm_and_left_by_yellow(crossing):
    connection, alarms = SteppedConnection(1.0), Alarms()
    names = {"X": MovementNames(stated={"rrrG": "south"})}
    loop = loop_of(connection, [one_signal(crossing)], always(0), [alarms], names=names)
    run(loop, 20)
    assert connection.state == "GgGr" and alarms == []
    connection.state, set_at_s = "rrrG", connection.now
    run(loop, 60)
    (alarm,) = alarms
    assert (alarm.signal, alarm.rule.value) == ("X", "unexpected_state") and alarm.at_s - set_at_s <= 5
    assert "shows south (rrrG), but GgGr was set" in alarm.message
    assert loop.counters.unexpected_states == {"X": 1}
    states = [state for now, state in connection.sent if now >= set_at_s]
    assert states[0] == "rrrG" and states[1] == "rrry" and states[-1] == "GgGr", states
    yellow_s, red_s = [now for now, state in connection.sent if now >= set_at_s][1:3]
    assert red_s - yellow_s >= 3.0


def test_state_of_another_client_is_left_although_its_tl_is_not_due(crossing):
    connection, states = SteppedConnection(1.0), {"X": "GgGr", "Y": "GgGr"}
    connection.set = lambda commands: states.update((command.signal, command.state) for command in commands)
    connection.shown = lambda: dict(states)
    rare = plan_signal(replace(crossing, id="Y"))
    loop = loop_of(connection, [one_signal(crossing), rare], always(0))
    run(loop, 5)
    assert rare.state.next_decision_s > 60 and states["Y"] == "GgGr"
    states["Y"] = "rrrG"
    loop.step(20)
    assert loop.counters.unexpected_states == {"Y": 1} and states["Y"] == "rrry"


def test_monitor_does_not_check_a_signal_on_its_own_program(crossing):
    connection = SteppedConnection(1.0)
    loop = monitored(crossing, (), SimpleNamespace(ask=lambda observations, observed_s: {}), connection)
    run(loop, 60)
    assert all(x.is_released for x in loop.intersections.values())
    before = loop.counters.alarms.total()
    connection.state = "GGGG"
    run(loop, 80)
    loop.finish()
    assert loop.counters.alarms.total() == before


def test_rejected_handover_is_sent_again_and_the_signal_monitored(crossing):
    connection = SteppedConnection(1.0)
    read, original_set, handovers = connection.read, connection.set, []

    def rejecting(due):
        result = read(due)
        if len(handovers) != 1:
            return result
        connection.state = "GGGG"
        return result._replace(rejected={"X": "not now"})

    def set(commands):
        original_set(commands)
        handovers.extend(connection.now for command in commands if not hasattr(command, "state"))

    connection.read, connection.set = rejecting, set
    loop = monitored(crossing, (), always(0), connection)
    loop.step(400)
    loop.release(100)
    assert loop.unreleased() == [] and len(handovers) == 2 and loop.counters.rejections == 1
    assert handovers[1] - handovers[0] <= 1.0 and loop.now < 40
    assert loop.counters.alarms["conflict"] > 0  # meanwhile it was still under control


def test_monitor_checks_the_take_over_from_the_plan(crossing):
    connection, alarms, answers = SteppedConnection(1.0), Alarms(), {}
    loop = monitored(crossing, [alarms], SimpleNamespace(ask=lambda observations, observed_s: answers), connection)
    while not loop.intersections["SA101"].is_released:
        loop.step(400)
    answers["SA101"] = Answer(np.array([0]))
    connection.state = "rrrG"
    while loop.intersections["SA101"].state.is_on_fallback_plan:
        loop.step(400)
    alarms.clear()
    connection.set = lambda commands: None
    connection.state = "GgGr"  # from the plan's green to the policy's, without a yellow
    loop.step(loop.now + 1)
    loop.finish()
    assert "yellow" in {alarm.rule.value for alarm in alarms}


@pytest.mark.parametrize("observes_changes", [False, True])
def test_decisions_that_the_safety_rules_overrule_are_counted_by_tl(crossing, observes_changes):
    connection, slow = SteppedConnection(1.0), one_signal(crossing, times=SafetyTimes(yellow_s=6, min_green_s=4))
    slow.contract.signals.add(change_s=[0, 6, 6, 0] if observes_changes else [])
    slow.start(0, ["GgGr"])
    loop = loop_of(connection, [slow], flipping(connection))
    run(loop, 400)
    counters = loop.counters
    assert counters.decisions_by_tl == {"SA101": counters.decisions} and counters.overrides["yellow"] > 10
    if observes_changes:
        assert not counters.overruled_by_tl, "a policy that observes how long a change takes has chosen it"
    else:
        assert 0 < counters.overruled_by_tl["SA101"] <= min(counters.decisions, counters.overrides.total())


def test_overrides_outside_the_policys_control_do_not_count_as_overruled_decisions(crossing):
    x, override = one_signal(crossing), Override("X", OverrideReason.YELLOW, "GgGr", "rrry")
    commands = x.commands
    x.commands = lambda now: (commands(now)[0], [override])
    loop = loop_of(SteppedConnection(1.0), [x], always(0))
    loop.set_mode("SA101", OperatorMode.HOLD, "ada")
    run(loop, 30)
    assert loop.counters.overrides["yellow"] > 5 and not loop.counters.overruled_by_tl


def test_a_step_is_one_event_with_everything_that_is_known_of_it(crossing):
    connection, events = SteppedConnection(1.0), Events()
    loop = monitored(crossing, [events], connection=connection)
    run(loop, 60)
    loop.finish()
    assert [event.number for event in events] == list(range(len(events)))
    decisions = [decision for event in events for decision in event.decisions]
    assert len(decisions) == loop.counters.decisions > 5
    for decision in decisions:
        assert decision.tl == "SA101" and len(decision.observation) == 11 and decision.answer.action == [1]
        assert not decision.failure and decision.mode is ControlMode.POLICY
    commands = [(sent.at_s, command.state) for event in events for sent in event.sent for command in sent.commands]
    assert commands == connection.sent
    sent = [sent for event in events for sent in event.sent]
    changing = next(each for each in sent if "y" in each.states[0].permitted[0])
    assert changing.states[0].tl == "SA101" and changing.states[0].permitted == (dict(commands)[changing.at_s],)
    assert "y" in changing.states[0].requested[0]
    shown = [shown for event in events for shown in event.shown]
    assert shown[0].begin_s == 0 and shown[-1].end_s == 60
    assert all(later.begin_s == earlier.end_s for earlier, later in itertools.pairwise(shown))
    assert all((event.times is None) == (not event.decisions) for event in events)


def test_an_error_in_a_subscriber_ends_its_subscription_and_not_the_run(crossing, caplog):
    broken, events = Mock(add=Mock(side_effect=OSError("no space left"))), Events()
    loop = monitored(crossing, [broken, events])
    run(loop, 30)
    loop.close()
    assert broken.add.call_count == 1 and len(events) > 3 and loop.counters.decisions > 3
    (record,) = caplog.records
    assert "an error in Mock; it gets no more events" in record.getMessage()


def test_what_is_not_published_yet_is_published_at_the_end(crossing):
    connection, events, closed = SteppedConnection(1.0), Events(), []
    events.close = lambda: closed.append(len(events))
    loop = monitored(crossing, [events], connection=connection)
    loop.step(5)
    connection.advance = Mock(side_effect=SumoConnectionLost("SUMO has ended"))
    with pytest.raises(SumoConnectionLost):
        loop.step(10)
    loop.close()
    assert closed == [2] and [decision.tl for decision in events[1].decisions] == ["SA101"]


def test_observing_and_acting_apart_is_the_same_as_a_step(crossing):
    sent = []
    for is_apart in (False, True):
        connection, events = SteppedConnection(1.0), Events()
        policies = flipping(connection)
        loop = monitored(crossing, [events], policies, connection)
        while loop.now < 100:
            if is_apart:
                observations = loop.observe()
                assert loop.observe() is observations
                loop.act(policies.ask(observations, None), 100)
            else:
                loop.step(100)
        sent.append((connection.sent, [event.decisions[0].observation.tolist() for event in events if event.decisions]))
    assert sent[0] == sent[1]


def test_an_operators_command_is_followed_from_the_next_step_on_and_published(crossing):
    connection, events = SteppedConnection(1.0), Events()
    loop = monitored(crossing, [events], connection=connection)
    run(loop, 30)
    loop.set_mode("SA101", OperatorMode.FIXED, "ada", "roadworks")
    run(loop, 90)
    loop.close()
    ((at_s, command),) = [(event.at_s, command) for event in events for command in event.commands]
    assert at_s == 30 and command == (
        "SA101", OperatorMode.FIXED, "ada", ControlMode.POLICY, ControlMode.FIXED, "roadworks",
    )  # fmt: skip
    assert loop.intersections["SA101"].is_released and loop.counters.fallbacks == 0
    with pytest.raises(KeyError):
        loop.set_mode("SA999", OperatorMode.HOLD, "ada")


def test_an_operators_command_between_two_decisions_is_followed_at_once(crossing):
    connection = SteppedConnection(1.0)
    loop = monitored(crossing, [], always(0), connection)
    for until_s in (12, 40):
        run(loop, until_s)
        loop.set_mode("SA101", OperatorMode.FIXED, "ada")
    assert connection.sent == [(0, "GgGr"), (12, "yyyr"), (15, "rrrr")]


def test_a_command_in_the_second_of_the_release_is_followed_by_the_release(crossing):
    loop = monitored(crossing)
    run(loop, 30)
    loop.set_mode("SA101", OperatorMode.HOLD, "ada")
    loop.release(90)
    assert loop.intersections["SA101"].is_released


def commanded(crossing, mode, at_s, policies=None, subscribers=()):
    connection = SteppedConnection(1.0)
    loop = monitored(crossing, list(subscribers), policies, connection)
    for until_s, wanted in ((at_s, mode), (90, OperatorMode.POLICY), (120, None)):
        run(loop, until_s)
        if wanted is not None:
            loop.set_mode("SA101", wanted, "ada")
    loop.close()
    return connection, loop


def test_a_hold_before_the_first_decision_keeps_the_state_until_it_is_taken_back(crossing):
    connection, loop = commanded(crossing, OperatorMode.HOLD, 0)
    assert {state for now, state in connection.sent if now < 90} == {"GgGr"}
    assert loop.intersections["SA101"].mode is ControlMode.POLICY


@pytest.mark.parametrize("at_s", range(10, 20))
@pytest.mark.parametrize("mode", [OperatorMode.HOLD, OperatorMode.FIXED])
def test_a_command_in_the_second_of_a_fallback_counts_and_no_yellow_is_short(crossing, mode, at_s):
    """The policy fails from second 5 on, so that the TL holds, and falls back 10 s later."""
    events = Events()
    failing = SimpleNamespace(
        ask=lambda observations, observed_s: {
            tl: Answer(np.array([1])) if events == [] or events[-1].at_s < 5 else NO_ANSWER for tl in observations
        }
    )
    connection, loop = commanded(crossing, mode, at_s, failing, [events])
    modes = {decision.mode for event in events if at_s <= event.at_s < 90 for decision in event.decisions}
    assert modes == {ControlMode[mode.name]}
    # taken back, the policy still fails: the TL falls back again
    assert loop.intersections["SA101"].mode.name in ("HOLD", "FALLBACK")
    assert all(yellow_s >= 3.0 for yellow_s in yellow_times(connection))


def test_an_operators_action_is_part_of_the_next_event_alone(crossing):
    events = Events()
    loop = monitored(crossing, [events])
    loop.step(10)
    loop.note_action(OperatorAction("pause", "", "", "ada"))
    run(loop, 15)
    assert [event.actions for event in events] == [[], [("pause", "", "", "ada")], []]


def test_deadline_counts_from_the_arrival_of_the_readings_and_anew_after_a_wait(crossing, monkeypatch):
    wall_s, is_now, connection = [100.0], [], SteppedConnection(1.0)
    monkeypatch.setattr(time, "monotonic", lambda: wall_s[0])
    read = connection.read

    def read_slowly(due):
        wall_s[0] += 1
        return read(due)

    def ask(observations, observed_s):
        is_now.append(observed_s == wall_s[0])
        return always(0).ask(observations, observed_s)

    connection.read = read_slowly
    loop = monitored(crossing, (), SimpleNamespace(ask=ask), connection)
    run(loop, 30)
    wall_s[0] = 900.0
    loop.renew_readings()
    run(loop, 60)
    assert len(is_now) > 10 and all(is_now)


@pytest.mark.parametrize("paced_s", [1.0, 0.7, 3.0])
def test_steps_that_are_cut_short_change_no_state(crossing, paced_s):
    """A run at a speed advances second by second; its decisions are those of a run without one."""
    runs = []
    for max_step_s in (math.inf, paced_s):
        connection = SteppedConnection(1.0)
        loop = monitored(crossing, (), flipping(connection), connection)
        while loop.now < 200:
            loop.step(min(200, loop.now + max_step_s))
        runs.append((connection.sent, loop.counters.decisions))
    assert runs[0] == runs[1] and len(runs[0][0]) > 20
