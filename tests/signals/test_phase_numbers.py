"""Phase numbers: NEMA's rule on drawn approaches, on real junctions, and what city.toml may change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import config, network
from city.errors import InputError
from signals.phase_numbers import number_phases, of_city
from tests.conftest import GRID
from tests.signals.test_movement_names import EAST, NORTH, SOUTH, WEST, approach, crossing
from tests.signals.test_movement_names import junction as of_movements


def junction(approaches, crossings=(), lanes=1, speeds=None):
    """A signal. `approaches`: (road, heading, turns); `crossings`: (leg, the roads that it crosses)."""
    movements = [each for road, heading, turns in approaches for each in approach(road, heading, turns)]
    links = [(f"{road}_{k % lanes}", "out_0") for road, _, turns in approaches for k in range(len(turns))]
    mps = [(speeds or {}).get(movement.road, 13.9) for movement in movements]
    signal = of_movements(*movements, *(crossing(leg, "", *roads) for leg, roads in crossings))
    links = tuple((pair,) for pair in [*links, *[(":w_0", ":c_0")] * len(crossings)])
    return replace(
        signal, links=links, approach_mps=(*mps, *[0.0] * len(crossings)), crossing_m=(), path_m=(), slowest_mps=()
    )


def numbers(signal, stated=None):
    """(movement -> phase, of `road:turn`), by the links."""
    found = {}
    for phase in number_phases(signal, stated or {}).phases:
        for link in phase.links:
            (movement,) = signal.movements[link]
            found[f"{movement.road}:{movement.turn}"] = phase.number
        for link in phase.walk_links:
            found[f"{signal.movements[link][0].heading_deg:g}"] = phase.number
    return found


FOUR = [("n", NORTH, "rsl"), ("e", EAST, "rsl"), ("s", SOUTH, "rsl"), ("w", WEST, "rsl")]


WIDE = junction([("n", NORTH, "rsl"), ("e", EAST, "rssl"), ("s", SOUTH, "rsl"), ("w", WEST, "rsl")], lanes=4)
NEMA = {
    "n:s": 2, "e:s": 4, "s:s": 6, "w:s": 8, "n:l": 5, "e:l": 7, "s:l": 1, "w:l": 3,
    # each crossing walks beside the vehicles that pass it on their right
    "90": 2, "180": 4, "270": 6, "0": 8,
}  # fmt: skip
LEGS = [(90.0, ("w",)), (270.0, ("e",)), (0.0, ("s",)), (180.0, ("n",))]
TURNED = {"n:s": 4, "e:s": 2, "s:s": 8, "w:s": 6, "n:l": 7, "e:l": 5, "s:l": 3, "w:l": 1}


def stem(heading):
    """A T whose stem has both turns."""
    return junction([("n", NORTH, "sr"), ("s", SOUTH, "sl"), ("stem", heading, "lr")])


@pytest.mark.parametrize(
    ("signal", "stated", "expected"),
    [
        pytest.param(junction(FOUR, LEGS), {}, NEMA, id="eight phases of four approaches"),
        pytest.param(WIDE, {}, {"e:s": 2, "w:s": 6}, id="the main street has more lanes"),
        pytest.param(replace(WIDE, approach_mps=(20.0,) * 3 + (10.0,) * 10), {}, {"e:s": 2}, id="whatever the speed"),
        pytest.param(junction(FOUR, speeds={"w": 19.4}), {}, {"e:s": 2, "s:s": 4, "n:s": 8}, id="then the speed counts"),
        pytest.param(stem(WEST), {}, {"n:s": 2, "s:s": 6, "s:l": 1, "stem:l": 8, "stem:r": 8}, id="a stem in the west"),
        pytest.param(stem(EAST), {}, {"n:s": 2, "s:s": 6, "s:l": 1, "stem:l": 4, "stem:r": 4}, id="a stem in the east"),
        pytest.param(
            junction([*FOUR, ("x", 45.0, "sl"), ("y", 225.0, "rsl")]), {},
            {"x:s": 10, "x:l": 9, "y:s": 12, "y:l": 11}, id="further approaches have 9 to 16",
        ),
        pytest.param(junction(FOUR), {"n": 4, "e": 2, "s": 8, "w": 6}, TURNED, id="stated of approaches"),
        pytest.param(
            junction(FOUR, [(90.0, ("w", "out"))]), {"n:left": 9, "n:right": 11, "out:crossing": 6},
            {"n:l": 9, "n:r": 11, "90": 6, "n:s": 2}, id="stated of movements",
        ),
        pytest.param(junction(FOUR), {"n": 2, "s": 2}, {"s:s": 2}, id="two of one number, both stated"),
        pytest.param(junction(FOUR), {"n:right": 5}, {"n:r": 5}, id="stated of a right turn"),
    ],
)  # fmt: skip
def test_phases_are_those_of_the_rule_unless_stated(signal, stated, expected):
    assert expected.items() <= numbers(signal, stated).items()


def test_a_right_turn_sets_no_colour_and_a_turn_back_goes_left():
    signal = junction([("n", NORTH, "rst"), ("s", SOUTH, "slt"), ("w", WEST, "rt")])
    by_number = {phase.number: phase.links for phase in number_phases(signal).phases}
    assert by_number == {1: (4, 5), 2: (1,), 6: (3,), 8: (6, 7)}


def test_a_lane_has_the_phase_of_its_through_movement_else_of_its_left_turn():
    phases = number_phases(junction([("n", NORTH, "rsl"), ("s", SOUTH, "slr")], lanes=2))
    assert phases.phase_of_lane == {"n_0": 5, "n_1": 2, "s_0": 6, "s_1": 1}


def test_a_pedestrian_signal_walks_in_phase_2():
    (phase,) = number_phases(junction([], [(0.0, ())])).phases
    assert (phase.number, phase.links, phase.walk_links) == (2, (), (0,))


@pytest.mark.parametrize(
    ("stated", "message"),
    [({"n": 4}, "n and e both have phase 4"), ({"w:left": 1}, "s:left and w:left both have phase 1")],
)
def test_two_approaches_of_one_number_are_refused_unless_both_are_stated(stated, message):
    with pytest.raises(InputError, match=f"{message}.*; give one of them another number"):
        number_phases(junction(FOUR), stated)


def test_more_approaches_than_phases_are_refused():
    star = junction([(f"r{k}", 40.0 * k, "s") for k in range(9)])
    with pytest.raises(InputError, match=r'9 approaches, more than there are phases.* such as { "r8" = 2, "r7" = 2 }'):
        number_phases(star)
    assert numbers(star, {"r8": 2, "r7": 2})["r7:s"] == 2


@given(
    st.lists(st.tuples(st.floats(0, 359), st.sets(st.sampled_from("slrtLR"), min_size=1)), min_size=1, max_size=8),
    st.lists(st.floats(0, 359), max_size=4),
    st.randoms(),
)
def test_every_movement_has_a_phase_whatever_the_order_of_links(approaches, legs, random):
    roads = [(f"r{k}", heading, sorted(turns)) for k, (heading, turns) in enumerate(approaches)]
    signal = junction(roads, [(leg, (f"x{k}",)) for k, leg in enumerate(legs)])
    own = number_phases(signal)
    assert all(1 <= phase.number <= 16 for phase in own.phases)
    assert {link for phase in own.phases for link in phase.walk_links} == {
        k for k, (movement,) in enumerate(signal.movements) if movement.is_crossing
    }
    roads_of = {phase.number: {signal.movements[k][0].road for k in phase.links} for phase in own.phases if phase.links}
    assert all(len(of_phase) == 1 for of_phase in roads_of.values())
    assert set.union(*roads_of.values()) == {road for road, _, _ in roads}
    order = list(range(len(signal.links)))
    random.shuffle(order)
    shuffled = replace(
        signal,
        **{name: tuple(getattr(signal, name)[k] for k in order) for name in ("links", "movements", "approach_mps")},
        crossing_m=(), path_m=(), slowest_mps=(),
    )  # fmt: skip
    again = number_phases(shuffled)
    assert again.phase_of_lane == own.phase_of_lane
    assert [{order[k] for k in p.links} for p in again.phases] == [set(p.links) for p in own.phases]


def test_a_drawn_crossroads_walks_beside_its_vehicles(crossroads):
    phases = {phase.number: phase for phase in number_phases(crossroads).phases}
    assert set(phases) == set(range(1, 9))
    assert phases[2].description == "eastbound through, eastbound right, pedestrians across the south leg"
    # crossings lead over the legs in the north, east and south: the last is on the right of the vehicles to the east
    assert {number: len(phase.walk_links) for number, phase in phases.items() if phase.walk_links} == {2: 1, 6: 2, 8: 1}


def test_every_signal_of_a_network_has_phases(grid_city, grid_street):
    phases = of_city(grid_city, grid_street)
    assert phases.keys() == grid_street.signals.keys()
    assert [phase.number for phase in phases["B1"].phases] == list(range(1, 9))


def test_city_toml_states_numbers_by_road(tmp_path, grid_street):
    text = (GRID / "city.toml").read_text().replace('"grid.sumocfg"', f'"{GRID}/grid.sumocfg"')
    path = tmp_path / "city.toml"
    path.write_text(f'{text}\nphases = {{ "C0C1.70.00" = 6, "C2C1.70.00" = 2, "right2C2.70.00:left" = 11 }}\n')
    phases = of_city(config.load(path), grid_street)
    described = {phase.number: phase.description for name in ("C1", "C2") for phase in phases[name].phases}
    assert described[11] == "westbound left"
    assert {phase.number: phase.description for phase in phases["C1"].phases}[6].startswith("northbound through")
    path.write_text(f'{text}\nphases = {{ "A0A1" = 6 }}\n')
    with pytest.raises(
        InputError, match=r"\[tl.SA108\] phases: A0A1 is not a movement of its signals; the nearest of 24 are "
    ):
        of_city(config.load(path), grid_street)


@pytest.mark.parametrize("name", ["cologne1", "cologne8", "ingolstadt7"])
def test_real_junctions_have_phases(shared, name):
    for signal in network.of_sumocfg(shared / "scenarios" / name / f"{name}.sumocfg").signals.values():
        phases = number_phases(signal)
        assert {2, 6} <= {phase.number for phase in phases.phases}
        assert phases.phase_of_lane.keys() == set(signal.lanes)
