"""The monitor: every broken rule is seen, and nothing else; a million states of adversarial wishes break none."""

import itertools
import random

import numpy as np
import pytest

from city import network
from city.network import SignalNetwork
from controller.safety.monitor import Limits, Rule, SignalMonitor
from controller.safety.safety_times import SafetyTimes
from controller.safety.signal_safety import SignalSafety
from tests.conftest import GRID

LIMITS = Limits(yellow_s=3, min_green_s=5, all_red_s=1)


def watch(signal, shown, limits=LIMITS, greens=()):
    """Rules broken by (second, state) pairs."""
    monitor = SignalMonitor(signal, limits, greens)
    broken = []
    for (begin, state), (end, _) in itertools.pairwise([*shown, (shown[-1][0] + 1, "")]):
        broken += [(alarm.rule, alarm.at_s) for alarm in monitor.see(state, begin, end)]
    return broken


GOOD = [(0, "GgGr"), (10, "yyyr"), (13, "rrrr"), (14, "rrrG"), (20, "rrry"), (23, "rrrr"), (24, "GgGr")]


def changed(at, *pair):
    return [*GOOD[:at], pair, *GOOD[at + 1 :]]


def test_a_good_sequence_breaks_nothing(crossing):
    assert watch(crossing, GOOD) == []


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (Rule.CONFLICT, changed(3, 14, "GrrG")),
        (Rule.CONFLICT, changed(6, 24, "GGGr")),
        (Rule.CONFLICT, changed(6, 24, "rgrG")),
        (Rule.YELLOW, [*GOOD[:1], *GOOD[2:]]),
        (Rule.YELLOW, changed(2, 12, "rrrr")),
        (Rule.YELLOW, [*GOOD[:2], (13, "GgGr")]),
        (Rule.MIN_GREEN, changed(4, 18, "rrry")),
        (Rule.CLEARANCE, [*GOOD[:2], *GOOD[3:]]),
        (Rule.CLEARANCE, [*GOOD[:2], (13, "yrrr"), (14, "yrrG")]),
        (Rule.INVALID_STATE, changed(2, 13, "OOOO")),
    ],
)
def test_each_broken_rule_is_seen(crossing, rule, shown):
    assert rule in {found for found, _ in watch(crossing, shown)}


def test_what_was_shown_before_the_watch_began_is_not_judged(crossing):
    assert watch(crossing, [(0, "GgGr"), (1, "yyyr"), (4, "rrrr"), (5, "rrrG")]) == []


def test_what_its_own_program_does_is_not_judged(crossing):
    monitor = SignalMonitor(crossing, LIMITS)
    assert monitor.see("GgGr", 0, 10) == []
    assert monitor.see("yyyr", 10, 13) == []
    assert monitor.see("rrrr", 13, 14) == []
    for begin, state in ((14, "rrrG"), (19, "GgGr"), (24, "rrrG")):
        assert monitor.see_program(state, begin) == []
    assert monitor.see("rrrG", 29, 34) == [] and monitor.see("rrry", 34, 37) == []


def test_how_a_signal_is_handed_over_and_taken_over_is_judged(crossing):
    monitor = SignalMonitor(crossing, LIMITS)
    assert monitor.see("GgGr", 0, 10) == []
    assert [alarm.rule for alarm in monitor.see_program("rrrG", 10)] == [Rule.YELLOW] * 3 + [Rule.CLEARANCE] * 3
    assert [alarm.rule for alarm in monitor.see("rrrr", 15, 20)] == [Rule.YELLOW]  # link 3's, which its program showed green
    assert monitor.see_program("rrrG", 20) == []
    assert [alarm.rule for alarm in monitor.see("rrrr", 25, 30)] == [Rule.YELLOW]


def test_a_permissive_green_becomes_protected_only_beside_clear_foes(crossing):
    # link 1 yields to link 2
    assert watch(crossing, [(0, "rgGr"), (10, "rgyr"), (13, "rgrr"), (14, "rGrr")]) == []
    assert watch(crossing, [(0, "rgGr"), (10, "rgyr"), (13, "rGrr")]) == [(Rule.CLEARANCE, 13)]
    assert watch(crossing, [(0, "rgGr"), (10, "rGyr"), (13, "rGrr")]) == [(Rule.CLEARANCE, 10)]


def test_a_link_of_vehicles_and_pedestrians_has_a_yellow_and_is_walked_clear(crossing):
    shared = _with(crossing, crossing_m=(0, 0, 0, 12.0), approach_mps=(10.0,) * 4)
    assert {rule for rule, _ in watch(shared, [(0, "rrrG"), (10, "rrrr")])} == {Rule.YELLOW}
    assert {rule for rule, _ in watch(shared, [(0, "rrrG"), (10, "rrry"), (13, "rrrr"), (20, "Grrr")])} == {Rule.CLEARANCE}
    watched = SignalSafety(shared, SafetyTimes(3, 5))
    watched.adopt("rrrG", 0)
    states = [watched.permit("Grrr", t)[0].state for t in range(30)]
    assert states == ["rrrG"] * 5 + ["rrry"] * 3 + ["rrrr"] * 10 + ["Grrr"] * 12


def test_a_starved_link_is_told_once_until_it_is_served(crossing):
    greens = ("GgGr", "rrrG")
    monitor = SignalMonitor(crossing, Limits(3, 5, 1, max_red_s=60), greens)
    told = [alarm for t in range(400) for alarm in monitor.see("GgGr", t, t + 1)]
    assert [alarm.rule for alarm in told] == [Rule.MAX_RED_EXCEEDED] and 60 < told[0].at_s < 100
    served = [(400, "yyyr"), (403, "rrrr"), (404, "rrrG"), (410, "rrry"), (413, "rrrr"), (414, "GgGr")]
    assert not [alarm for t, state in served for alarm in monitor.see(state, t, t + 1)]
    again = [alarm for t in range(415, 800) for alarm in monitor.see("GgGr", t, t + 1)]
    assert [alarm.rule for alarm in again] == [Rule.MAX_RED_EXCEEDED], "a link that was served may starve again"


def test_a_link_that_starves_while_its_signal_comes_and_goes_is_seen(crossing):
    """Only what it waits under this controller counts: what a program does is its own."""
    greens = ("GgGr", "rrrG")
    for ours_s, served_s, is_seen in ((6, None, True), (6, 20, False), (0, None, False)):
        monitor = SignalMonitor(crossing, Limits(3, 5, 1, max_red_s=60), greens)
        told = []
        for t in range(2000):
            second = t % 36
            if second < ours_s:
                told += monitor.see("GgGr", t, t + 1)
            else:
                told += monitor.see_program("rrrG" if second == served_s else "GgGr", t)
        assert [alarm.rule for alarm in told if alarm.rule is Rule.MAX_RED_EXCEEDED] == [Rule.MAX_RED_EXCEEDED] * is_seen, (
            ours_s,
            served_s,
        )
        assert all(400 < alarm.at_s < 700 for alarm in told if alarm.rule is Rule.MAX_RED_EXCEEDED)


def test_a_fast_approach_needs_more_yellow(crossing):
    for kmh, yellow_s in ((50, 3), (51, 4), (60, 4), (70, 5), (80, 6)):
        fast = _with(crossing, approach_mps=(kmh / 3.6,) * 4)
        for seconds in (yellow_s - 1, yellow_s):
            shown = [(0, "GgGr"), (10, "yyyr"), (10 + seconds, "rrrr")]
            assert (Rule.YELLOW in {rule for rule, _ in watch(fast, shown)}) == (seconds < yellow_s), (kmh, seconds)
        watched = SignalSafety(fast, SafetyTimes(3, 5))
        assert watched.yellow_s == [yellow_s] * 4


def test_a_crossing_goes_from_green_to_red_and_is_walked_clear(crossing):
    walked = _with(crossing, crossing_m=(0, 0, 0, 12.0))
    shown = [(0, "rrrG"), (10, "rrrr")]
    for seconds in (9, 10):
        broken = watch(walked, [*shown, (10 + seconds, "Grrr")])
        assert broken == ([(Rule.CLEARANCE, 19)] if seconds == 9 else [])
    watched = SignalSafety(walked, SafetyTimes(3, 5))
    watched.adopt("rrrG", 0)
    states = [watched.permit("Grrr", t)[0].state for t in range(30)]
    assert states == ["rrrG"] * 5 + ["rrrr"] * 10 + ["Grrr"] * 15


def _with(signal, **changes):
    values = {name: getattr(signal, name) for name in ("id", "links", "lanes", "programs", "active_program", "foes", "yields")}
    return SignalNetwork(**{**values, **changes})


def wishes_of(kind, phases, rng):
    links = len(phases[0])
    match kind:
        case "phases":
            return lambda now: rng.choice(phases)
        case "letters":
            return lambda now: "".join(rng.choices("rygGsuO?", k=links))
        case "greens":
            return lambda now: "".join(rng.choices("rgG", k=links))
        case "flipping":
            return lambda now: phases[now % len(phases)]
        case "constant":
            return lambda now: phases[0]
        case "all green":
            return lambda now: "G" * links if now % 2 else "r" * links
        case "other lengths":
            return lambda now: "G" * rng.randrange(3 * links)


KINDS = ("phases", "letters", "greens", "flipping", "constant", "all green", "other lengths")
STREETS = ("grid", "cologne1", "cologne8", "ingolstadt7")
STATES = 1_000_000 // (len(KINDS) * len(STREETS)) + 1
"""Of each kind on each street: a million in all."""


@pytest.mark.parametrize("street", STREETS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_states_of_adversarial_wishes_break_no_rule(kind, street, request):
    if street == "grid":
        path = GRID / "grid.sumocfg"
    else:
        path = request.getfixturevalue("shared") / "scenarios" / street / f"{street}.sumocfg"
    signals = [s for s in network.of_sumocfg(path).signals.values() if len(s.plan.greens) > 1]
    rng = random.Random(f"{kind} {street}")
    seen = 0
    for k in itertools.count():
        signal = signals[k % len(signals)]
        all_red_s, max_red_s, step_s = rng.choice([0, 1, 2]), rng.choice([45, 90, 180]), rng.choice([1.0, 1.0, 0.5, 0.1])
        times = SafetyTimes(3, rng.choice([4, 7]), all_red_s, max_red_s=max_red_s)
        phases = [phase.state for phase in signal.plan.phases]
        greens = [phases[i] for i in signal.plan.greens]
        watched = SignalSafety(signal, times, greens)
        monitor = SignalMonitor(signal, Limits(3, times.min_green_s, all_red_s, max_red_s), greens)
        watched.adopt(phases[0], 0)
        wish = wishes_of(kind, phases, rng)
        for step in range(2000):
            now = round(step * step_s, 3)
            state = watched.permit(wish(step), now)[0].state
            assert monitor.see(state, now, round(now + step_s, 3)) == [], (signal.id, now, state)
        seen += 2000
        if seen >= STATES:
            return


def test_every_phase_of_the_streets_own_programs_is_free_of_conflicts(shared):
    paths = [GRID / "grid.sumocfg", *sorted((shared / "scenarios").glob("*/*.sumocfg"))]
    phases = 0
    for path in paths:
        for signal in network.of_sumocfg(path).signals.values():
            rules = SignalSafety(signal, SafetyTimes(3, 5)).rules
            for program in signal.programs:
                for phase in program.phases:
                    phases += 1
                    assert rules.objection(phase.state) is None, (path.name, signal.id, phase.state, rules.conflicts(phase.state))
                    monitor = SignalMonitor(signal, LIMITS)
                    assert monitor.see(phase.state, 0, 1) == []
    assert phases > 100 and len(paths) == 4


def test_the_monitor_and_the_rules_agree_on_every_state_of_a_small_junction(crossing):
    rules = SignalSafety(crossing, SafetyTimes(3, 5)).rules
    for letters in itertools.product("rygG", repeat=4):
        state = "".join(letters)
        broken = SignalMonitor(crossing, LIMITS).see(state, 0, 1)
        assert bool(broken) == bool(rules.conflicts(state)), state
    assert np.array_equal(crossing.foes, crossing.foes.T)


@pytest.mark.parametrize(("plan", "starved"), [("oooo", 0), ("rrrr", 1)])
def test_a_signal_that_is_off_keeps_nobody_waiting(crossing, plan, starved):
    monitor = SignalMonitor(crossing, Limits(3, 5, 0, max_red_s=30), ["GgGr", "rrrG"])
    alarms = monitor.see("GgGr", 0, 50)
    alarms += monitor.see_program(plan, 50)
    alarms += monitor.see("GgGr", 60, 70)
    assert [alarm.rule for alarm in alarms if alarm.rule is Rule.MAX_RED_EXCEEDED] == [Rule.MAX_RED_EXCEEDED] * starved
