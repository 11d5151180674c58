"""The monitor: it reports every broken rule and nothing else; states under adversarial requests break none."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import network
from signals.safety import monitor as monitor_module
from signals.safety.monitor import MonitorRule, SignalMonitor
from signals.safety.safety_times import SafetyTimes, red_clearance_s, yellow_s_at
from signals.safety.signal_safety import SignalSafety
from tests.conftest import GRID

SPEEDS = ((0.0, 3), (13.89, 3), (14.02, 3), (14.03, 4), (16.8, 4), (16.81, 5), (19.58, 5), (19.59, 6), (36.0, 6))
"""(speed in m/s, yellow in s) on both sides of 50, 60 and 70 km/h, with the two decimals of networks."""

PATHS = ((13.9, 10.0, 1.0), (0.5, 2.0, 2.3), (20.0, 0.5, 51.2), (13.9, 30.0, 0.0), (0.0, 3.0, 0.0), (13.9, 0.0, 0.0))
"""(path in m, speed in m/s, red clearance in s); 0 m and 0 m/s are unknown."""

LIMITS = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=1)


def broken_rules(signal, shown, limits=LIMITS, greens=()):
    """Rules broken by (second, state) pairs."""
    monitor = SignalMonitor(signal, limits, greens)
    broken = []
    for (begin, state), (end, _) in itertools.pairwise([*shown, (shown[-1][0] + 1, "")]):
        broken += [(alarm.rule, alarm.at_s) for alarm in monitor.check_shown(state, begin, end)]
    return broken


GOOD = [(0, "GgGr"), (10, "yyyr"), (13, "rrrr"), (14, "rrrG"), (20, "rrry"), (23, "rrrr"), (24, "GgGr")]


def changed(at, *pair):
    return [*GOOD[:at], pair, *GOOD[at + 1 :]]


def rules(alarms):
    return [alarm.rule for alarm in alarms]


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (MonitorRule.CONFLICT, changed(3, 14, "GrrG")),
        (MonitorRule.CONFLICT, changed(6, 24, "GGGr")),
        (MonitorRule.CONFLICT, changed(6, 24, "rgrG")),
        (MonitorRule.YELLOW, [*GOOD[:1], *GOOD[2:]]),
        (MonitorRule.YELLOW, changed(2, 12, "rrrr")),
        (MonitorRule.YELLOW, [*GOOD[:2], (13, "GgGr")]),
        (MonitorRule.MIN_GREEN, changed(4, 18, "rrry")),
        (MonitorRule.CLEARANCE, [*GOOD[:2], *GOOD[3:]]),
        (MonitorRule.CLEARANCE, [*GOOD[:2], (13, "yrrr"), (14, "yrrG")]),
        (MonitorRule.INVALID_STATE, changed(2, 13, "OOOO")),
    ],
)
def test_each_broken_rule_is_reported(crossing, rule, shown):
    assert rule in {broken for broken, _ in broken_rules(crossing, shown)}


CLEARANCE = MonitorRule.CLEARANCE


@pytest.mark.parametrize(
    ("shown", "broken"),
    [
        pytest.param(GOOD, [], id="valid"),
        pytest.param(
            [(0, "GgGr"), (1, "yyyr"), (4, "rrrr"), (5, "rrrG")], [], id="what began before the monitor is not checked"
        ),
        # link 1 yields to link 2
        pytest.param([(0, "rgGr"), (10, "rgyr"), (13, "rgrr"), (14, "rGrr")], [], id="g becomes G with clear foes"),
        pytest.param([(0, "rgGr"), (10, "rgyr"), (13, "rGrr")], [(CLEARANCE, 13)], id="g becomes G too early"),
        pytest.param([(0, "rgGr"), (10, "rGyr"), (13, "rGrr")], [(CLEARANCE, 10)], id="g becomes G beside a yellow"),
        # but not to link 3
        pytest.param([(0, "rrrG"), (10, "rrry"), (13, "rgrr")], [(CLEARANCE, 13)], id="every foe of a g must be clear"),
        pytest.param(
            [(0, "GgGr"), (10, "YYYr"), (13, "rrrr")],
            [(MonitorRule.INVALID_STATE, 10)],
            id="an unknown yellow is an invalid state and a yellow",
        ),
        pytest.param(
            [(0, "GgGr"), (10, "G"), (11, "rrrG")],
            [(MonitorRule.INVALID_STATE, 10)],
            id="after a state of another length it begins anew",
        ),
        pytest.param(
            [(t, "GrrG") for t in range(5)], [(MonitorRule.CONFLICT, 0)], id="a conflict that lasts is reported once"
        ),
    ],
)
def test_broken_rules_of_a_sequence(crossing, shown, broken):
    assert broken_rules(crossing, shown) == broken


def test_own_program_is_not_checked(crossing):
    monitor = SignalMonitor(crossing, LIMITS)
    assert monitor.check_shown("GgGr", 0, 10) == []
    assert monitor.check_shown("yyyr", 10, 13) == []
    assert monitor.check_shown("rrrr", 13, 14) == []
    for begin, state in ((14, "rrrG"), (19, "GgGr"), (24, "rrrG")):
        assert monitor.follow_program(state, begin) == []
    assert monitor.check_shown("rrrG", 29, 34) == [] and monitor.check_shown("rrry", 34, 37) == []


def test_release_and_take_over_are_checked(crossing):
    monitor = SignalMonitor(crossing, LIMITS)
    assert monitor.check_shown("GgGr", 0, 10) == []
    assert rules(monitor.follow_program("rrrG", 10)) == [MonitorRule.YELLOW] * 3 + [CLEARANCE] * 3
    # of link 3, which the program showed green
    assert rules(monitor.check_shown("rrrr", 15, 20)) == [MonitorRule.YELLOW]
    assert monitor.follow_program("rrrG", 20) == []
    assert rules(monitor.check_shown("rrrr", 25, 30)) == [MonitorRule.YELLOW]


def test_link_of_vehicles_and_pedestrians_has_yellow_and_clearance(crossing):
    shared = _with(crossing, crossing_m=(0, 0, 0, 12.0), approach_mps=(10.0,) * 4)
    assert {rule for rule, _ in broken_rules(shared, [(0, "rrrG"), (10, "rrrr")])} == {MonitorRule.YELLOW}
    assert {rule for rule, _ in broken_rules(shared, [(0, "rrrG"), (10, "rrry"), (13, "rrrr"), (20, "Grrr")])} == {
        MonitorRule.CLEARANCE
    }
    safety = SignalSafety(shared, SafetyTimes(3, 5))
    safety.start_from("rrrG", 0)
    states = [safety.permit("Grrr", t)[0].state for t in range(30)]
    assert states == ["rrrG"] * 5 + ["rrry"] * 3 + ["rrrr"] * 10 + ["Grrr"] * 12


def test_max_red_is_reported_if_control_alternates_with_the_program(crossing):
    """Only waiting under this controller counts."""
    greens = ("GgGr", "rrrG")
    for controlled_s, served_s, is_reported in ((6, None, True), (6, 20, False), (0, None, False)):
        monitor = SignalMonitor(crossing, SafetyTimes(3, 5, 1, max_red_s=60), greens)
        alarms = []
        for t in range(2000):
            second = t % 36
            if second < controlled_s:
                alarms += monitor.check_shown("GgGr", t, t + 1)
            else:
                alarms += monitor.follow_program("rrrG" if second == served_s else "GgGr", t)
        assert [alarm.rule for alarm in alarms if alarm.rule is MonitorRule.MAX_RED_EXCEEDED] == [
            MonitorRule.MAX_RED_EXCEEDED
        ] * is_reported, (
            controlled_s,
            served_s,
        )
        assert all(400 < alarm.at_s < 700 for alarm in alarms if alarm.rule is MonitorRule.MAX_RED_EXCEEDED)


def _with(signal, **changes):
    """The signal with other values, and without lengths and speeds that are not given."""
    return replace(signal, **{"approach_mps": (), "crossing_m": (), "path_m": (), "slowest_mps": (), **changes})


def requests_of(kind, phases, rng):
    """A function from the number of a step to the requested state."""
    links = len(phases[0])
    return {
        "phases": lambda now: rng.choice(phases),
        "letters": lambda now: "".join(rng.choices("rygGsuO?", k=links)),
        "greens": lambda now: "".join(rng.choices("rgG", k=links)),
        "flipping": lambda now: phases[now % len(phases)],
        "constant": lambda now: phases[0],
        "all green": lambda now: "G" * links if now % 2 else "r" * links,
        "other lengths": lambda now: "G" * rng.randrange(3 * links),
    }[kind]


KINDS = ("phases", "letters", "greens", "flipping", "constant", "all green", "other lengths")
STREETS = ("grid", "cologne1", "cologne8", "ingolstadt7")
STATES = 100_000 // (len(KINDS) * len(STREETS)) + 1
"""States of each kind on each network: a hundred thousand in all, and ten times as many in the slow test."""


@pytest.mark.parametrize("times_as_many", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("street", STREETS)
@pytest.mark.parametrize("kind", KINDS)
def test_states_under_adversarial_requests_break_no_rule(kind, street, times_as_many, request):
    if street == "grid":
        path = GRID / "grid.sumocfg"
    else:
        path = request.getfixturevalue("shared") / "scenarios" / street / f"{street}.sumocfg"
    signals = [s for s in network.of_sumocfg(path).signals.values() if len(s.plan.greens) > 1]
    rng = random.Random(f"{kind} {street}")
    count = 0
    for k in itertools.count():
        signal = signals[k % len(signals)]
        all_red_s, max_red_s, step_s = (
            rng.choice([0, 1, 2]),
            rng.choice([45, 90, 180]),
            rng.choice([1.0, 1.0, 0.5, 0.1]),
        )
        own_s, protected_s = ([rng.choice([math.inf, 30, 60]) for _ in signal.links] for _ in range(2))
        times = SafetyTimes(3, rng.choice([4, 7]), all_red_s, max_red_s=max_red_s, movement_max_red_s=own_s)
        times = replace(times, max_unprotected_s=protected_s)
        phases = [phase.state for phase in signal.plan.phases]
        greens = [phases[i] for i in signal.plan.greens]
        safety = SignalSafety(signal, times, greens)
        monitor = SignalMonitor(signal, replace(times), greens)
        safety.start_from(phases[0], 0)
        request = requests_of(kind, phases, rng)
        for step in range(2000):
            now = round(step * step_s, 3)
            state = safety.permit(request(step), now)[0].state
            assert monitor.check_shown(state, now, round(now + step_s, 3)) == [], (signal.id, now, state)
        count += 2000
        if count >= times_as_many * STATES:
            return


def test_monitor_and_safety_rules_agree_on_every_state(crossing):
    rules = SignalSafety(crossing, SafetyTimes(3, 5)).rules
    for letters in itertools.product("rygG", repeat=4):
        state = "".join(letters)
        assert bool(SignalMonitor(crossing, LIMITS).check_shown(state, 0, 1)) == bool(rules.conflicts(state)), state
    assert np.array_equal(crossing.foes, crossing.foes.T)


@pytest.mark.parametrize(("program_state", "alarm_count"), [("oooo", 0), ("OOOO", 0), ("rrrr", 1)])
def test_signal_that_is_off_does_not_count_as_red(crossing, program_state, alarm_count):
    monitor = SignalMonitor(crossing, SafetyTimes(3, 5, 0, max_red_s=30), ["GgGr", "rrrG"])
    alarms = monitor.check_shown("GgGr", 0, 50)
    alarms += monitor.follow_program(program_state, 50)
    alarms += monitor.check_shown("GgGr", 60, 70)
    assert [alarm.rule for alarm in alarms if alarm.rule is MonitorRule.MAX_RED_EXCEEDED] == [
        MonitorRule.MAX_RED_EXCEEDED
    ] * alarm_count


@pytest.mark.parametrize(("mps", "yellow_s"), SPEEDS)
def test_yellow_of_the_approach_speed_is_checked(crossing, mps, yellow_s):
    fast = _with(crossing, approach_mps=(mps,) * 4)
    assert SignalSafety(fast, SafetyTimes(3, 5)).yellow_s == [yellow_s] * 4
    for seconds in (yellow_s - 0.1, yellow_s):
        broken = broken_rules(fast, [(0, "GgGr"), (10, "yyyr"), (10 + seconds, "rrrr")])
        assert broken == ([] if seconds == yellow_s else [(MonitorRule.YELLOW, 10 + seconds)] * 3)


def test_yellow_of_the_approach_speed_is_not_checked_without_yellow_by_speed(crossing):
    limits = SafetyTimes(yellow_s=0, min_green_s=5, all_red_s=0, yellow_by_speed=False)
    assert broken_rules(crossing, [(0, "GgGr"), (10, "yyyr"), (10.5, "rrrr")], limits) == []


@pytest.mark.parametrize(("path_m", "mps", "red_s"), PATHS)
def test_red_clearance_by_path_is_checked(crossing, path_m, mps, red_s):
    assert red_clearance_s(path_m, mps) == pytest.approx(red_s)
    signal = _with(crossing, path_m=(path_m,) * 4, slowest_mps=(mps,) * 4)
    limits = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=0, red_by_path=True)
    for seconds in (red_s - 0.05, red_s):
        shown = [(0, "Grrr"), (10, "yrrr"), (13, "rrrr"), (13 + seconds, "rrrG")] if seconds > 0 else []
        shown = shown or [(0, "Grrr"), (10, "yrrr"), (13, "rrrG")]
        is_too_short = seconds > 0 and seconds < red_s
        assert [rule for rule, _ in broken_rules(signal, shown, limits)] == [MonitorRule.CLEARANCE] * is_too_short


@pytest.mark.parametrize(
    ("shown", "rule"),
    [
        ([(0, "GgGr"), (10, "yyyr"), (14, "rrrr"), (16, "rrrG")], None),
        ([(0, "GgGr"), (10, "yyyr"), (13.9, "rrrr"), (16, "rrrG")], MonitorRule.YELLOW),
        ([(0, "GgGr"), (10, "yyyr"), (14, "rrrr"), (15.9, "rrrG")], MonitorRule.CLEARANCE),
        # the other green's yellow of 2 s is below the floor, and has no red after it
        ([(0, "rrrG"), (10, "rrry"), (13, "GgGr")], None),
        ([(0, "rrrG"), (10, "rrry"), (12.9, "GgGr")], MonitorRule.YELLOW),
    ],
)
def test_change_times_of_the_program_are_checked(crossing, shown, rule):
    phases = (("GgGr", 20), ("yyyr", 4), ("rrrr", 2), ("rrrG", 20), ("rrry", 2))
    program = replace(crossing.programs[0], phases=tuple(network.ProgramPhase(state, s, s, s) for state, s in phases))
    signal = _with(crossing, programs=(program,))
    limits = SafetyTimes(yellow_s=3, min_green_s=5, by_program=True)
    assert {broken for broken, _ in broken_rules(signal, shown, limits)} == (set() if rule is None else {rule})
    assert broken_rules(signal, [(0, "rrrG"), (10, "rrry"), (13, "GgGr")], replace(limits, by_program=False)) == []


@given(path_m=st.floats(0, 100), centimetres_per_s=st.integers(0, 6000))
def test_monitor_and_safety_rules_require_the_same_times(path_m, centimetres_per_s):
    mps = centimetres_per_s / 100
    assert monitor_module._required_yellow_s(3.6 * mps) == yellow_s_at(mps)
    assert max(monitor_module._required_red_s(path_m, mps), 0.0) == red_clearance_s(path_m, mps)


@pytest.mark.parametrize(
    ("crossing_m", "approach_mps", "is_crossing"), [(0.5, 0.0, True), (12.0, 0.5, False), (0.0, 0.0, False)]
)
def test_only_a_link_of_pedestrians_alone_goes_from_green_to_red(crossing, crossing_m, approach_mps, is_crossing):
    signal = _with(crossing, crossing_m=(0, 0, 0, crossing_m), approach_mps=(0, 0, 0, approach_mps))
    assert (broken_rules(signal, [(0, "rrrG"), (10, "rrrr")]) == []) is is_crossing
    safety = SignalSafety(signal, SafetyTimes(3, 5))
    safety.start_from("rrrG", 0)
    assert safety.permit("rrrr", 10)[0].state == ("rrrr" if is_crossing else "rrry")


def test_state_that_the_program_leaves_is_checked_when_control_begins(crossing):
    monitor = SignalMonitor(crossing, LIMITS)
    assert monitor.follow_program("GrrG", 0) == []
    assert [alarm.rule for alarm in monitor.check_shown("GrrG", 5, 6)] == [MonitorRule.CONFLICT]


def test_alarms_name_links_and_durations(crossing):
    monitor = SignalMonitor(crossing, LIMITS)
    shown = [(0, "rrrr"), (10, "Grrr"), (14, "yrrr"), (16, "rrrr"), (16.5, "rrrG"), (20, "GrrG")]
    messages = [alarm.message for t, state in shown for alarm in monitor.check_shown(state, t, t + 1)]
    assert messages == [
        "link 0 was green for 4 s",
        "link 0 was yellow for 2 of 3 s",
        "link 3 turned green 0.5 s after its foe link 0 turned red, not 1 s",
        "GrrG: link 0 and link 3 are foes",
    ]


GREENS = ("GgGr", "rrrG")
MAX_RED = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=1, max_red_s=60)
MAX_RED_AND_SERVICE_S = 60 + 3 * (5 + 3 + 1)
"""Max red, and for each of two phases and the one that is shown a min green, a yellow and an all-red."""


@pytest.fixture
def monitor(crossing):
    """A monitor with a max red."""
    return SignalMonitor(crossing, MAX_RED, GREENS)


def first_alarm_s(monitor, state, begin_s):
    """Seconds of `state` after which max red is reported."""
    for t in range(begin_s, begin_s + 1000):
        for alarm in monitor.check_shown(state, t, t + 1):
            assert alarm.rule is MonitorRule.MAX_RED_EXCEEDED
            return alarm.at_s - begin_s
    return None


PROTECTED = SafetyTimes(3, 5, 1, max_unprotected_s=(60,) * 4)
"""A bound on the protected greens of every link."""
SLOW = {"approach_mps": (10.0, 19.4, 10.0, 10.0), "crossing_m": (0, 0, 12.0, 0)}
"""70 km/h need 5 s of yellow, 12 m of crossing 10 s."""


@pytest.mark.parametrize(
    ("changes", "times", "greens", "state", "alarm_s"),
    [
        ({}, MAX_RED, GREENS, "GgGr", MAX_RED_AND_SERVICE_S + 1),
        (SLOW, MAX_RED, GREENS, "GgGr", 60 + 3 * (5 + 5 + 10) + 1),
        ({}, LIMITS, GREENS, "GgGr", None),
        ({}, MAX_RED, ["GgGr"], "GgGr", None),
        # protected greens are monitored where some phase has one and another has none
        ({}, PROTECTED, ["GgGr"], "GgGr", None),
        ({}, PROTECTED, ["rGrr"], "GgGr", None),
        ({}, PROTECTED, ["GgGr", "rrrG", "rgrr"], "rrrr", 60 + 4 * 9 + 1),
        ({}, PROTECTED, ["GgGr", "GGrr"], "GgGr", 60 + 3 * 9 + 1),
    ],
)
def test_a_bound_is_exceeded_after_the_time_to_serve_the_link(crossing, changes, times, greens, state, alarm_s):
    signal = _with(crossing, **changes) if changes else crossing
    assert first_alarm_s(SignalMonitor(signal, times, greens), state, 100) == alarm_s


def test_max_red_is_reported_once_until_the_link_is_served(monitor):
    assert first_alarm_s(monitor, "GgGr", 0) and first_alarm_s(monitor, "GgGr", 1000) is None
    for begin_s, state in ((2000, "rrrG"), (2010, "GgGr")):
        monitor.check_shown(state, begin_s, begin_s + 1)
    assert first_alarm_s(monitor, "GgGr", 2011) == MAX_RED_AND_SERVICE_S


def test_max_red_of_a_movement_is_exceeded_before_that_of_all_links(crossing):
    """Link 1 after 20 s and 3 changes of 9 s, the others after 60 s and these."""
    times = replace(MAX_RED, movement_max_red_s=(math.inf, 20, math.inf, math.inf))
    for end_s, links in ((47, []), (47.001, [1]), (87, [1]), (87.001, [0, 1, 2])):
        monitor = SignalMonitor(crossing, times, ["GgGr", "rrrG"])
        alarms = monitor.check_shown("rrrG", 0, end_s)
        assert [alarm.message.partition(" has")[0] for alarm in alarms] == [f"link {i}" for i in links]


def test_max_red_applies_to_links_with_permissive_green(monitor):
    messages = [alarm.message for t in range(100) for alarm in monitor.check_shown("rrrG", t, t + 1)]
    assert messages == [f"link {i} has been red for 88 s" for i in range(3)]


@pytest.mark.parametrize(
    ("controlled_s", "program", "state"),
    [
        (0, {0: "GgGr", 50: "rrrG", 100: "GgGr"}, "GgGr"),
        (0, {0: "GgGr"}, "GgGr"),
        (10, {10: "rrrG"}, "rrrG"),  # links 0 to 2 are green until the program shows their red
        (0, {0: "GgGr", 10: "rrrG"}, "rrrG"),
        (200, {1000: "GgGr", 1010: "rrrG", 1020: "GgGr"}, "GgGr"),  # the program serves a link that was reported
        (200, {1000: "", 1010: "GgGr"}, "GgGr"),  # a state of another length ends waiting
        (200, {1000: "Gg", 1010: "GgGr"}, "GgGr"),
        (200, {1000: "GgGrr", 1010: "GgGr"}, "GgGr"),
    ],
)
def test_red_of_the_program_does_not_count(monitor, controlled_s, program, state):
    for t in range(controlled_s):
        monitor.check_shown("GgGr", t, t + 1)
    for t, shown in program.items():
        monitor.follow_program(shown, t)
    assert first_alarm_s(monitor, state, 2000) == MAX_RED_AND_SERVICE_S + 1


def test_red_of_the_program_does_not_count_beside_a_link_that_waits(monitor):
    monitor.check_shown("GgGr", 0, 50)
    monitor.follow_program("rrrr", 50)
    messages = [alarm.message for t in range(150, 200) for alarm in monitor.check_shown("rrrr", t, t + 1)]
    assert messages == ["link 3 has been red for 88 s"]


def test_state_of_another_length_ends_waiting(monitor):
    assert monitor.check_shown("GgGr", 0, 50) == []
    monitor.follow_program("GgGr", 50)
    for begin_s, end_s, state in ((60, 61, "GgGr"), (61, 64, "yyyr"), (64, 65, "rrrr")):
        assert monitor.check_shown(state, begin_s, end_s) == []
    assert [alarm.rule for alarm in monitor.check_shown("G", 65, 66)] == [MonitorRule.INVALID_STATE]
    assert first_alarm_s(monitor, "rrrr", 66) == MAX_RED_AND_SERVICE_S + 1


def test_link_is_reported_again_after_a_state_of_another_length(monitor):
    assert first_alarm_s(monitor, "GgGr", 0) is not None
    monitor.check_shown("G", 1000, 1001)
    assert first_alarm_s(monitor, "GgGr", 1001) == MAX_RED_AND_SERVICE_S + 1


PROTECTED_GREENS = ("GgGr", "rGrr", "rrrG")
PROTECTED_AND_SERVICE_S = 60 + 4 * (5 + 3 + 1)


@pytest.fixture
def protecting(crossing):
    """A monitor with a bound on the protected greens of link 1, and one on those of link 0, which always has them."""
    times = SafetyTimes(3, 5, 1, max_unprotected_s=(60, 60, math.inf, math.inf))
    return SignalMonitor(crossing, times, PROTECTED_GREENS)


def test_link_without_protected_greens_is_reported_once_until_it_has_one(protecting):
    for _ in range(2):
        assert first_alarm_s(protecting, "GgGr", 0) == PROTECTED_AND_SERVICE_S + 1
        assert first_alarm_s(protecting, "GgGr", 0) is None
        protecting.check_shown("rGrr", 0, 1)
    (alarm,) = protecting.check_shown("GgGr", 0, 100)
    assert alarm.message == "link 1 has had no protected green for 100 s" and alarm.at_s == 100


@pytest.mark.parametrize(
    ("shown", "waits_on"), [("rGrr", 0), ("oooo", 0), ("OOOO", 0), ("Gg", 0), ("GgGr", 50), ("rrrr", 50)]
)
def test_time_under_the_program_does_not_count_and_its_protected_greens_do(protecting, shown, waits_on):
    assert protecting.check_shown("GgGr", 0, 50) == []
    protecting.follow_program(shown, 50)
    protecting.follow_program("GgGr", 150)
    assert first_alarm_s(protecting, "GgGr", 250) == PROTECTED_AND_SERVICE_S + 1 - waits_on


def test_state_of_another_length_begins_the_time_without_protected_greens_anew(protecting):
    assert protecting.check_shown("GgGr", 0, 50) == []
    protecting.check_shown("G", 50, 51)
    assert first_alarm_s(protecting, "GgGr", 51) == PROTECTED_AND_SERVICE_S + 1
