"""Which program's phases a policy chooses from, and which greens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.config import TL
from city.errors import InputError
from city.network import Program, ProgramPhase, ProgramSwitch, SignalNetwork, green_states
from signals import policy_signals
from signals.policy_signals import distinct_greens, of_tl, running_program

SETTINGS = TL(("X",), "sumo-rl", "SA101")


def program(name, *states):
    return Program(name, "static", 0, tuple(ProgramPhase(state, 20.0, 20.0, 20.0) for state in states))


GUESS = program("0", "GGrr", "yyrr", "rrGG", "rryy")
REPEATED = program("0", "GGrr", "GGrr", "rrGG")
REAL = program("day", "Grrr", "yrrr", "rGrr", "ryrr", "rrGG", "rryy")
BLINKING = program("night", "oooo")


@pytest.fixture
def signal(crossing):
    return replace(crossing, programs=(GUESS, REAL), active_program="day")


@pytest.mark.parametrize(
    ("first", "named", "flags", "chosen_id", "greens"),
    [
        pytest.param(GUESS, None, {}, "day", ("Grrr", "rGrr", "rrGG"), id="the program that runs"),
        pytest.param(GUESS, "day", {"takes_first": True}, "day", ("Grrr", "rGrr", "rrGG"), id="that of city.toml"),
        pytest.param(GUESS, None, {"trained_programs": {"X": "0"}}, "0", ("GGrr", "rrGG"), id="that of the training"),
        pytest.param(
            REPEATED, None, {"takes_first": True}, "0", ("GGrr", "GGrr", "rrGG"),
            id="policies of sumo-rl take the first program and all its greens",
        ),
    ],
)  # fmt: skip
def test_program_and_greens_that_a_policy_chooses_from(signal, first, named, flags, chosen_id, greens):
    (chosen,) = of_tl(replace(SETTINGS, program=named), [replace(signal, programs=(first, REAL))], **flags)
    assert (chosen.program.id, chosen.greens) == (chosen_id, greens)


@pytest.mark.parametrize(
    ("named", "trained", "message"),
    [
        ("x", {}, r"SA101: signal X has no program 'x', which \[tl.SA101\] names; it has '0', 'day'; set"),
        ("day", {"X": "0"}, r"trained on program '0' of signal X, but \[tl.SA101\] has program = 'day'; remove"),
        (None, {"X": "x"}, r"no program 'x', which the policy was trained on; it has '0', 'day'; add it to the netw"),
    ],
)
def test_program_that_is_missing_or_not_the_trained_one_is_refused(signal, named, trained, message):
    with pytest.raises(InputError, match=message):
        of_tl(replace(SETTINGS, program=named), [signal], trained_programs=trained)


def test_next_scheduled_program_replaces_one_that_only_blinks(signal):
    switches = (ProgramSwitch(80_000.0, "night"), ProgramSwitch(21_600.0, "day"))
    at_night = replace(signal, programs=(GUESS, REAL, BLINKING), active_program="night", switches=switches)
    assert running_program(at_night) is REAL
    assert running_program(replace(at_night, switches=())) is GUESS
    assert running_program(replace(signal, active_program="off")) is GUESS


def timed(*phases):
    """A program of (state, seconds)."""
    return Program("0", "static", 0, tuple(ProgramPhase(state, s, s, s) for state, s in phases))


LOG = [
    *["GGrr"] * 9,
    *["yGrr"] * 3,
    "rGrr",
    *["ryrr"] * 3,
    "rruu",
    *["rrGG"] * 6,
    "rrGG",
    *["rryy"] * 3,
    "uurr",
    "GGrr",
]


@pytest.mark.parametrize(
    ("phases", "greens"),
    [
        pytest.param(
            [("GGrr", 30), ("yyrr", 3), ("rrrr", 1), ("rruu", 1), ("rrGG", 20), ("rryy", 3), ("uurr", 1)],
            ["GGrr", "rrGG"], id="red-amber alone",
        ),
        pytest.param(
            [("Grrr", 10), ("Gurr", 1), ("GGrr", 30), ("yGrr", 3), ("rGrr", 2), ("rGuu", 1), ("rGGG", 9), ("ryyy", 3)],
            ["Grrr", "GGrr", "rGGG"], id="links that end earlier or begin later",
        ),
        pytest.param([(state, 1) for state in LOG], ["GGrr", "rrGG"], id="the log of an adaptive system"),
        pytest.param(
            [("GGgr", 30), ("yygr", 3), ("rrGr", 3), ("rryr", 3), ("rrrG", 2), ("rrry", 3)],
            ["GGgr", "rrGr", "rrrG"], id="a short green that protects a link, or is a link's only one",
        ),
        pytest.param(
            [("GGrr", 30), ("yyrr", 3), ("rruG", 2), ("rryy", 3)], ["GGrr", "rruG"], id="the only green of a link",
        ),
        pytest.param([("GGrr", 2), ("yyrr", 2), ("rrGG", 2), ("rryy", 2)], ["GGrr", "rrGG"], id="short greens alone"),
        pytest.param(
            [("GGrr", 20), ("Gyrr", 3), ("Gruu", 9), ("rrGG", 20), ("rryy", 3)], ["GGrr", "rrGG"], id="long red-amber",
        ),
        pytest.param(
            [("GGrr", 20), ("GGGr", 2), ("GGyr", 3), ("GGrr", 9), ("GGGr", 8), ("yyyr", 3), ("rrrG", 9)],
            ["GGrr", "GGGr", "rrrG"], id="a green that is short once and long later",
        ),
    ],
)  # fmt: skip
def test_states_on_the_way_from_green_to_green_are_no_choices(signal, phases, greens):
    assert distinct_greens(signal, timed(*phases)) == greens


WALKED = [(state, 20) for state in ("Grrr", "GrrG", "Grrr", "yrrr", "rGrG", "rGrr", "rgrr", "rrrG")]
SHORT = [("GrrG", 3), ("Grrr", 3), ("yrrr", 3), ("rrrG", 3), ("rGrr", 3), ("rGrG", 2), ("ryrr", 3)]


@pytest.mark.parametrize(
    ("phases", "greens"),
    [
        pytest.param(WALKED, ["GrrG", "rGrG", "rgrr", "rrrG"], id="g and G differ for vehicles"),
        pytest.param(SHORT, ["GrrG", "rGrG"], id="a short state for pedestrians is part of the vehicles' green"),
    ],
)
def test_greens_that_differ_only_in_a_walk_signal_are_one(signal, phases, greens):
    assert distinct_greens(replace(signal, crossing_m=(0.0, 0.0, 0.0, 6.0)), timed(*phases)) == greens


@given(st.lists(st.tuples(st.text("Ggryu", min_size=3, max_size=3), st.integers(1, 6)), min_size=1, max_size=9))
def test_every_link_that_a_program_serves_without_yellow_keeps_a_green(phases):
    network = SignalNetwork("X", ((),) * 3, (), (), "0", None, None, None)
    greens = distinct_greens(network, timed(*phases))
    for colours in ("G", "Gg"):
        served = {k for state in green_states(state for state, _ in phases) for k in range(3) if state[k] in colours}
        assert served == {k for state in greens for k in range(3) if state[k] in colours}


@given(st.lists(st.text("Ggry", min_size=4, max_size=4), min_size=1, max_size=12))
def test_without_crossings_every_green_state_counts_once(states):
    network = SignalNetwork("X", ((),) * 4, (), (), "0", None, None, None)
    assert distinct_greens(network, program("0", *states)) == list(dict.fromkeys(green_states(states)))


def test_contract_lists_greens_only_if_they_differ_from_its_green_phases(signal):
    (plain,) = policy_signals.signal_messages(of_tl(SETTINGS, [signal]))
    assert not plain.greens and policy_signals.greens_of(plain) == ["Grrr", "rGrr", "rrGG"]
    repeated = replace(signal, programs=(program("day", "Grrr", "Grrr", "rrGG"),))
    (listed,) = policy_signals.signal_messages(of_tl(SETTINGS, [repeated]))
    assert list(listed.greens) == policy_signals.greens_of(listed) == ["Grrr", "rrGG"]


def test_other_greens_than_those_that_run_are_a_warning(signal):
    first = [("SA101", of_tl(SETTINGS, [signal], takes_first=True))]
    running = [("SA101", of_tl(SETTINGS, [signal]))]
    same = [("SA101", of_tl(SETTINGS, [replace(signal, programs=(GUESS, replace(GUESS, id="day")))], takes_first=True))]
    information, warning = policy_signals.describe_programs(first)
    assert information == "" and "SA101 (program '0', but 'day' runs)" in warning and 'program = "..."' in warning
    information, warning = policy_signals.describe_programs(running)
    assert "not of the network's first: SA101 (program 'day', not '0')" in information and warning == ""
    assert policy_signals.describe_programs(same) == ("", "")
