"""Conflicts of states, and phases that the safety rules would never show."""

import itertools
import random
from dataclasses import replace

import pytest

from city.errors import InputError
from city.network import Program, ProgramPhase, ProgramSwitch
from signals.safety import conflicts, monitor, signal_safety
from signals.safety.conflicts import PERMISSIVE, PROTECTED, YELLOW, ConflictRules, check_phases, links_that_show
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety


@pytest.mark.parametrize("state", ["rrrr", "yyyy", "ssss", "uuuu", "sGur"])
def test_every_letter_of_a_controlled_signal_is_valid(crossing, state):
    assert ConflictRules(crossing).violation(state) is None


def test_links_that_show_a_kind_are_a_mask():
    assert [links_that_show(kind, "gGyr") for kind in (PERMISSIVE, PROTECTED, YELLOW)] == [0b1, 0b10, 0b100]
    assert links_that_show(PROTECTED, "") == 0


@pytest.mark.parametrize(
    ("state", "yields", "permissive", "message"),
    [
        ("GgG", (), (), "phase 'GgG' of program '0' is not a state of 4 links"),
        ("GGGr", (1, 2), (), "phase GGGr has links 1 and 2: write GgGr$"),
        ("GGGr", (2, 1), (), "phase GGGr has links 1 and 2: write GGgr$"),
        ("GGGr", (), (1, 2), "phase GGGr has links 1 and 2: write Gggr$"),
        ("GrrG", (), (), "phase GrrG has links 0 and 3.*: never show them green together$"),
    ],
)
def test_phase_that_is_never_shown_is_refused_with_its_remedy(crossing, state, yields, permissive, message):
    unknown = crossing.yields & False
    signal = replace(crossing, yields=unknown, permissive=unknown.copy(), active_program="day")
    if yields:
        signal.yields[yields] = True
    if permissive:
        signal.permissive[permissive] = signal.permissive[permissive[::-1]] = True
    with pytest.raises(InputError, match=message):
        check_phases("city.toml", signal, "0", ["GrGr", state])


def test_conflicts_of_all_phases_are_in_one_line(crossing):
    unknown = crossing.yields & False
    signal = replace(crossing, yields=unknown, permissive=unknown.copy(), active_program="day")
    signal.yields[1, 2] = True
    with pytest.raises(InputError, match=r"phase GGGr .*: write GgGr; phase rGGr .*: write rgGr$"):
        check_phases("city.toml", signal, "0", ["GGGr", "yyyr", "rGGr", "GGGr"])


REPAIR = "greenserve city init --repair"


def yielding(crossing, *states, switches=()):
    """The crossing with a program of these states, in which link 1 yields to 2 alone."""
    unknown = crossing.yields & False
    phases = tuple(ProgramPhase(state, 9, 9, 9) for state in states)
    signal = replace(
        crossing, yields=unknown, permissive=unknown.copy(), programs=(Program("0", "static", 0, phases),),
        active_program="0", switches=switches,
    )  # fmt: skip
    signal.yields[1, 2] = True
    return signal


def test_states_of_the_program_that_runs_can_be_repaired_if_one_of_their_foes_yields(crossing):
    signal = yielding(crossing, "GGGr", "yyyr", "rGGr", "rrrG")
    assert conflicts.yielding_states(signal) == {"GGGr": "GgGr", "rGGr": "rgGr"}
    with pytest.raises(InputError, match=f"{REPAIR} does so"):
        check_phases("city.toml", signal, "0", ["GGGr"])


def test_a_repair_is_named_only_where_it_would_help(crossing):
    switches = (ProgramSwitch(100, "0"),)
    for signal, program in (
        (yielding(crossing, "GGGr", "GrrG"), "0"),  # of the second state no link yields
        (yielding(crossing, "GGGr", switches=switches), "0"),
        (yielding(crossing, "GGGr"), "of another"),
    ):
        with pytest.raises(InputError) as error:
            check_phases("city.toml", signal, program, ["GGGr"])
        assert REPAIR not in str(error.value)
    assert conflicts.yielding_states(yielding(crossing, "GGGr", "GrrG")) == {}
    assert conflicts.yielding_states(yielding(crossing, "GGGr", switches=switches)) == {}


def test_caches_of_states_keep_results_and_are_bounded(crossing, monkeypatch):
    for module in (conflicts, monitor):
        monkeypatch.setattr(module, "MAX_CACHED_STATES", 5)
    monkeypatch.setattr(signal_safety, "MAX_CACHED_TRANSITIONS", 5)
    safety = SignalSafety(crossing, SafetyTimes(0, 0, yellow_by_speed=False))
    shown = SignalMonitor(crossing, SafetyTimes(0, 0, 0))
    states, rng = ["".join(letters) for letters in itertools.product("rs", repeat=4)], random.Random(1)
    sizes = []
    for now in range(200):
        shown.check_shown(safety.permit(rng.choice(states), now)[0].state, now, now + 1)
        caches = safety.rules.violation, shown._between, shown._faults_of
        sizes.append([len(safety._transitions), *(cache.cache_info().currsize for cache in caches)])
    assert all(5 <= max(column) <= 6 for column in zip(*sizes, strict=True))
