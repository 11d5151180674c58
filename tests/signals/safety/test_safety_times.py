"""The stricter of a contract's times and the city's, or the contract's alone."""

import math
from dataclasses import replace

import pytest

from city.config import Safety
from city.network import OFF_PROGRAM, Program, ProgramPhase, ProgramSwitch
from protos import policy_pb2 as pb
from signals.safety.safety_times import (
    SafetyTimes,
    movement_max_reds_s,
    program_times,
    times_for,
)
from signals.safety.signal_safety import SignalSafety
from tests.signals.test_movement_names import approach, junction
from tests.signals.test_movement_names import crossing as crossing_of

CONTRACT = pb.PolicyContract(timing=pb.Timing(yellow_s=2, min_green_s=5, all_red_s=1, max_green_s=50))


BOUNDS = dict(max_red_s=90, walking_speed_mps=1.1)


@pytest.mark.parametrize(
    ("city", "times"),
    [
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=4, all_red_s=0.5, max_green_s=60, **BOUNDS),
            SafetyTimes(3, 5, 1, 50, 90, 1.1, yellow_by_speed=True, red_by_path=False),
            id="the stricter of both",
        ),
        pytest.param(
            Safety(min_yellow_s=1, min_green_s=6, all_red_s=2.5, max_green_s=40, **BOUNDS),
            SafetyTimes(2, 6, 2.5, 40, 90, 1.1, yellow_by_speed=True, red_by_path=False),
            id="the stricter of both, the other way round",
        ),
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=4, max_green_s=60, **BOUNDS),
            SafetyTimes(3, 5, 1, 50, 90, 1.1, yellow_by_speed=True, by_program=True),
            id="yellow and red are the program's if the city sets no all-red",
        ),
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=4, max_green_s=60, all_red_s="computed", **BOUNDS),
            SafetyTimes(3, 5, 1, 50, 90, 1.1, yellow_by_speed=True, red_by_path=True),
            id="red clearance is by path if it is computed",
        ),
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=4, all_red_s=0),
            SafetyTimes(3, 5, 1, 50, yellow_by_speed=True),
            id="no red but the contract's",
        ),
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=9, all_red_s=2, max_green_s=20, floors="dialect", **BOUNDS),
            SafetyTimes(2, 5, 1, 50, math.inf, math.inf, yellow_by_speed=False, red_by_path=False),
            id="floors of the dialect are the contract's times alone",
        ),
    ],
)
def test_times_of_a_signal(city, times):
    assert times_for(CONTRACT, city, False) == times


INF = math.inf
SIGNAL = junction(*approach("n", 0.0, "srl"), *approach("s", 180.0, "sl"), crossing_of(270.0, "", "x"))


@pytest.mark.parametrize(
    ("stated", "floors", "reds_s", "unprotected_s"),
    [
        ({"left": 90.0}, "street", [INF, INF, 90.0, INF, 90.0, INF], []),
        ({"left": 90.0, "n:left": 60.0, "n": 80.0}, "street", [80.0, INF, 60.0, INF, 90.0, INF], []),
        ({"left": 60.0, "n:left": 90.0}, "street", [INF, INF, 60.0, INF, 60.0, INF], []),
        ({"right": 50.0, "x:crossing": 70.0, "s": 9.0}, "street", [INF, 50.0, INF, 9.0, INF, 70.0], []),
        ({"crossing": 70.0, "of another signal": 9.0}, "street", [*[INF] * 5, 70.0], []),
        ({"left": 90.0, "protected left": 90.0}, "dialect", [], []),
        ({}, "street", [], []),
        # turns have a bound on the time without a protected green too
        ({"protected left": 90.0}, "street", [], [INF, INF, 90.0, INF, 90.0, INF]),
        ({"protected left": 90.0, "n:protected left": 60.0}, "street", [], [INF, INF, 60.0, INF, 90.0, INF]),
        (
            {"protected right": 50.0, "s:protected left": 40.0, "right": 45.0}, "street",
            [INF, 45.0, INF, INF, INF, INF], [INF, 50.0, INF, INF, 40.0, INF],
        ),
        ({"protected through": 50.0, "protected crossing": 40.0}, "street", [], []),
    ],
)  # fmt: skip
def test_max_red_of_a_link_is_the_smallest_of_its_movements(stated, floors, reds_s, unprotected_s):
    limits = Safety(floors=floors, max_red_s_of_signal={"J": stated} if stated else {})
    assert movement_max_reds_s(SIGNAL, limits) == (reds_s, unprotected_s)


def test_min_and_max_green_of_a_plan_do_not_apply_to_its_links():
    for floors in ("street", "dialect"):
        times = times_for(CONTRACT, Safety(min_green_s=4, floors=floors), True)
        assert times.min_green_s == (4 if floors == "street" else 0) and times.max_green_s == math.inf


def test_times_without_bounds_or_all_red_have_none():
    contract = pb.PolicyContract(timing=pb.Timing(yellow_s=2, min_green_s=5))
    for floors in ("street", "dialect"):
        times = times_for(contract, Safety(min_green_s=0, floors=floors), False)
        assert (times.all_red_s, times.max_green_s, times.max_red_s) == (0, math.inf, math.inf)
    assert times_for(contract, Safety(min_green_s=0), True).min_green_s == 0


def running(crossing, *phases, kind="static"):
    """The crossing with a program. `phases`: states with their durations, such as "GgGr 20"."""
    states = [(phase.split()[0], float(phase.split()[1])) for phase in phases]
    program = Program("0", kind, 0, tuple(ProgramPhase(state, s, s, s) for state, s in states))
    return replace(crossing, programs=(program,), active_program="0")


TWO_GREENS = ("GgGr 20", "yyyr 3", "rrrr 2", "rrrG 20", "rrry 4", "rrrr 1")


@pytest.mark.parametrize(
    ("phases", "yellow_s", "red_s"),
    [
        pytest.param(["GgGr 20", "yyyr 3", "rrrG 20", "rrry 4"], [3, 3, 3, 4], [0] * 4, id="no all-red"),
        pytest.param(TWO_GREENS, [3, 3, 3, 4], [2, 2, 2, 1], id="an all-red after each green"),
        pytest.param([*TWO_GREENS[2:], *TWO_GREENS[:2]], [3, 3, 3, 4], [2, 2, 2, 1], id="it begins with the all-red"),
        pytest.param(
            ["GgGr 20", "yyyr 3", "rrrr 2", "rrrr 1.5", "rrrG 20", "rrry 2", "rrry 2"],
            [3, 3, 3, 4], [3.5, 3.5, 3.5, 0], id="phases of one colour add up",
        ),
        pytest.param(
            ["GgGr 20", "yyyr 3", "rrru 2", "rrrG 20", "rrry 4", "uuur 1"],
            [3, 3, 3, 4], [2, 2, 2, 1], id="red-amber of the following green",
        ),
        pytest.param(
            [*TWO_GREENS, "GrGr 20", "yryr 5", "rrrr 1", "rrrG 20", "rrry 3"],
            [5, 3, 5, 4], [2, 2, 2, 1], id="the longest of several transitions",
        ),
        pytest.param(
            ["GGrr 10", "Gyrr 3", "GrGr 20", "yryr 4", "rrrr 2", "rrrG 20", "rrry 3"],
            [4, 3, 4, 3], [2, 0, 2, 0], id="leading left",
        ),
        pytest.param(
            ["GgGr 20", "GyGr 4", "GrGr 5", "yryr 3", "rrrr 2", "rrrG 20", "rrry 3"],
            [3, 4, 3, 3], [2, 2, 2, 0], id="a link that turns red before no foe has the longest red",
        ),
        pytest.param(
            ["GGrr 10", "Gyrr 3", "rrrr 1", "rrGr 20", "rryr 3", "rrrr 2", "GGrr 9", "yyrr 3", "rrrG 9", "rrry 3"],
            [3, 3, 3, 3], [0, 1, 2, 0], id="rings that end apart",
        ),
        pytest.param(
            ["GgGr 20", "Gyyr 3", "yrrr 3", "rrrr 1", "rrrG 20", "rrry 3"],
            [3, 3, 3, 3], [1, 4, 4, 0], id="links that end one after the other",
        ),
        pytest.param(
            ["GgGr 20", "YYyr 3", "rrrr 2", "rrrG 20", "rrry 4"], [3, 3, 3, 4], [2, 2, 2, 0], id="yellow of Y",
        ),
        pytest.param(
            ["GgGr 20", "ggyr 5", "yyrr 3", "rrrr 2", "rrrG 20", "rrry 3"],
            [3, 3, 5, 3], [2, 2, 5, 0], id="a green that goes on beside a yellow is no red",
        ),
        pytest.param(
            ["GgGr 20", "yyyr 3", "rrrr 60", "rrrG 20", "rrry 4"], [3, 3, 3, 4], [10, 10, 10, 0], id="a long pause",
        ),
        pytest.param(["GgGr 20", "yyyr 3", "rrrr 2"], [0] * 4, [0] * 4, id="one green"),
        pytest.param(["GgGr 90"], [0] * 4, [0] * 4, id="one phase"),
        pytest.param(["GgGr 30", "rrrG 30"], [0] * 4, [0] * 4, id="neither yellow nor red"),
        pytest.param(["GgG 20", "yyy 3", "rrr 2", "rrrG 20", "rrry 4"], [3, 3, 3, 4], [2, 2, 2, 0], id="short states"),
        pytest.param(["oooo 9"], [0] * 4, [0] * 4, id="blinking"),
        pytest.param(["rrrr 9"], [0] * 4, [0] * 4, id="red"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["static", "actuated"])
def test_change_times_of_a_program_are_known_by_link(crossing, phases, yellow_s, red_s, kind):
    assert program_times(running(crossing, *phases, kind=kind)) == (yellow_s, red_s)


def test_change_times_are_the_longest_of_all_programs_that_run(crossing):
    """A schedule that begins with the signal off switches to the day's program, and not to the others."""
    day, rush, other = (
        replace(running(crossing, *phases).programs[0], id=name)
        for name, phases in (
            ("day", TWO_GREENS),
            ("rush", ["GgGr 20", "yyyr 4", "rrrr 1", "rrrG 20", "rrry 3", "rrrr 3"]),
            ("other", ["GgGr 20", "yyyr 9", "rrrr 9", "rrrG 20", "rrry 9", "rrrr 9"]),
        )
    )
    switches = (ProgramSwitch(100, "day"), ProgramSwitch(200, "rush"))
    programs = (OFF_PROGRAM, day, other, rush)
    signal = replace(crossing, programs=programs, active_program=OFF_PROGRAM.id, switches=switches)
    assert program_times(signal) == ([4, 4, 4, 4], [2, 2, 2, 3])
    assert program_times(signal, by_program=False) == ([0] * 4, [0] * 4)


def test_a_crossing_has_no_change_times_of_the_program_and_gives_none_to_others(crossing):
    """Its clearance is its length by the walking speed."""
    phases = ("GrGr 20", "yryr 3", "rrrr 1", "rGrr 20", "rrrr 9", "rrrG 20", "rrry 4", "rrrr 1")
    signal = replace(running(crossing, *phases), crossing_m=(0, 0.9, 0, 0), approach_mps=(14, 0, 14, 14))
    assert program_times(signal) == ([3, 0, 3, 4], [1, 0, 1, 1])
    shared = replace(signal, approach_mps=(14, 14, 14, 14))
    assert program_times(shared) == ([3, 0, 3, 4], [9, 9, 1, 1])


def test_the_safety_rules_keep_the_programs_change_times(crossing):
    """Yellow never below its floor; no green before the program's red."""
    signal = running(crossing, "GgGr 20", "yyyr 2", "rrrr 2", "rrrG 20", "rrry 5", "rrrr 1")
    own = SafetyTimes(3, 5, by_program=True)
    rules = SignalSafety(signal, own, ["GgGr", "rrrG"])
    assert (rules.yellow_s, rules.clearance_s) == ([3, 3, 3, 5], [2, 2, 2, 1])
    assert rules.change_between_s("GgGr", "rrrG") == 5 and rules.change_between_s("rrrG", "GgGr") == 6
    without = SignalSafety(signal, replace(own, by_program=False), ["GgGr", "rrrG"])
    assert (without.yellow_s, without.clearance_s) == ([3] * 4, [0] * 4)
    longer = SignalSafety(signal, replace(own, all_red_s=1.5), ["GgGr", "rrrG"])
    assert longer.clearance_s == [2, 2, 2, 1.5]
    rules.start_from("GgGr", 0)
    shown = [rules.permit("rrrG", float(t))[0].state for t in range(10, 17)]
    assert shown == ["yyyr"] * 3 + ["rrrr"] * 2 + ["rrrG"] * 2
