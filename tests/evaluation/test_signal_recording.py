"""The recorded states of signals, and the direction of their greens."""

import itertools
from dataclasses import replace

import pytest

from city import network
from controller.sumo.libsumo_connection import start_libsumo
from evaluation.signal_recording import SignalBand, SignalRecording, directions
from signals.movement_names import movement_names
from tests.conftest import GRID
from tests.signals.test_movement_names import CROSSROADS, approach, crossing, junction


def test_recorded_states_are_those_that_signals_show_in_every_second(tmp_path):
    """Of the program, of a client that sets one twice, and of programs that are switched."""
    recording = SignalRecording(tmp_path, ["A0"])
    files = f"{GRID / 'fixed_time.add.xml'},{recording.additional_file}"
    connection = start_libsumo(["-c", str(GRID / "grid.sumocfg"), "--begin", "100", "--additional-files", files])
    lights, shown = connection.api.trafficlight, []
    for second in range(100, 200):
        if second in (120, 121):
            lights.setRedYellowGreenState("A0", "rrrrrrGGGrrr")
        if second in (150, 170):
            lights.setProgram("A0", "adapted" if second == 150 else "0")
        connection.api.simulationStep(second + 1)
        shown.append((float(second), lights.getRedYellowGreenState("A0")))
    connection.close()
    (band,) = recording.bands(200.0, {"A0": {}})
    changes = [shown[0]] + [now for before, now in itertools.pairwise(shown) if now[1] != before[1]]
    assert list(band.states) == changes and len(changes) > 10 and band.end_s == 200.0


@pytest.mark.parametrize(
    ("state", "direction"),
    [
        ("GGgrrrGGgrrr", "north-south through"),
        ("rrrGGgrrrGGg", "east-west through"),
        ("rrGrrrrrGrrr", "north-south turns"),
        ("rGrrrrrrrrrr", "north-south turns"),
        ("GrrGrrrrrrrr", "several directions"),
        ("rrGGGgrrrGGg", "east-west through"),
    ],
)
def test_a_green_has_the_direction_of_its_through_traffic_else_of_its_turns(state, direction, grid_street):
    phases = (network.ProgramPhase(state, 20, 20, 20), network.ProgramPhase("r" * 12, 20, 20, 20))
    program = network.Program("0", "static", 0, phases)
    own = replace(grid_street.signals["A0"], programs=(program,), movements=CROSSROADS.movements)
    assert directions(own, movement_names(CROSSROADS)) == {state: direction}


@pytest.mark.parametrize(
    ("heading_deg", "axis"),
    [
        (44, "north-south"),
        (46, "east-west"),
        (134, "east-west"),
        (136, "north-south"),
        (314, "east-west"),
        (316, "north-south"),
    ],
)
def test_the_axis_is_the_nearer_one(heading_deg, axis):
    phases = (network.ProgramPhase("G", 20, 20, 20), network.ProgramPhase("r", 20, 20, 20))
    own = replace(junction(*approach("n", heading_deg, "s")), programs=(network.Program("0", "static", 0, phases),))
    assert directions(own, movement_names(own)) == {"G": f"{axis} through"}
    walkers = replace(own, movements=((crossing(0.0, "", "n"),),))
    assert directions(walkers, movement_names(walkers)) == {"G": "pedestrians"}


def test_states_between_two_greens_are_no_greens(grid_street):
    states = ("GGgrrrGGgrrr", 20), ("GrrrrrGrrrrr", 2), ("rrrGGgrrrGGg", 20), ("rrryyyrrryyy", 3)
    phases = tuple(network.ProgramPhase(state, s, s, s) for state, s in states)
    own = replace(grid_street.signals["A0"], programs=(network.Program("0", "static", 0, phases),))
    assert list(directions(own, movement_names(own))) == ["GGgrrrGGgrrr", "rrrGGgrrrGGg"]


@pytest.mark.parametrize(
    ("shown", "changes"),
    [(["a"], False), (["a", "y", "a"], False), (["a", "y", "b"], False), (["a", "b", "a"], True), ([], False)],
)
def test_a_signal_changes_its_green_if_it_does_so_after_the_first_choice(shown, changes):
    states = tuple((5.0 * k, state) for k, state in enumerate(shown))
    assert SignalBand("A", 0, 0, states, 100.0, {"a": "x", "b": "y"}).changes_green is changes
