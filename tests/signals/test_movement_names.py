"""Names of movements and states: by direction, street and leg, and what city.toml may change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import config, network
from city.errors import InputError
from city.movements import Movement
from city.network import SignalNetwork
from signals.movement_names import keys_of, links_by_key, movement_names, of_city
from tests.conftest import GRID

NORTH, EAST, SOUTH, WEST = 0.0, 90.0, 180.0, 270.0


def junction(*movements):
    """A signal with a link for each movement."""
    links = tuple(((f"{movement.road or 'w'}_0", "out_0"),) for movement in movements)
    return SignalNetwork(
        "J", links, (), (), "0", None, None, None, movements=tuple((movement,) for movement in movements)
    )  # fmt: skip


def approach(road, heading, turns, street=""):
    return [Movement(road, turn, heading, street=street) for turn in turns]


def crossing(leg, street="", *roads):
    return Movement(roads[0] if roads else "", "", leg, roads, street)


CROSSROADS = junction(
    *approach("n", NORTH, "srl"), *approach("e", EAST, "srl"), *approach("s", SOUTH, "srl"), *approach("w", WEST, "srl")
)


LEFTS = junction(*approach("n", NORTH, "sll"))
U_TURNS = junction(*approach("n", NORTH, "st"), *approach("s", SOUTH, "s"))


@pytest.mark.parametrize(
    ("signal", "state", "name"),
    [
        (CROSSROADS, "GGgrrrGGgrrr", "northbound and southbound through + permissive left + right"),
        (CROSSROADS, "rrGrrrrrGrrr", "northbound and southbound left"),
        (CROSSROADS, "GGGrrrrrrrrr", "northbound through + left + right"),
        (CROSSROADS, "rGrGGgrrrrrr", "northbound right, eastbound through + permissive left + right"),
        (
            CROSSROADS, "yygrrryygrrr",
            "northbound and southbound permissive left; yellow for northbound and southbound through + right",
        ),
        (CROSSROADS, "uuurrrrrrrrr", "red-amber for northbound through + left + right"),
        (CROSSROADS, "rrrrrrrrrrrr", "all red"),
        (CROSSROADS, "rrrrrrrrrrrs", "all red"),
        (CROSSROADS, "oooOoooooooo", "off"),
        (CROSSROADS, "rr?", "rr?"),
        (CROSSROADS, "", ""),
        (CROSSROADS, "G", "northbound through"),
        (junction(), "Gr", "Gr"),
        # one of two links for the left is protected
        (LEFTS, "rGg", "northbound left"),
        (LEFTS, "rGG", "northbound left"),
        (LEFTS, "rgg", "northbound permissive left"),
        # a U-turn is named where nothing else is green
        (U_TURNS, "GGr", "northbound through"),
        (U_TURNS, "rGr", "northbound U-turn"),
        (U_TURNS, "rGG", "southbound through"),
    ],
)  # fmt: skip
def test_states_are_named_by_their_green_movements(signal, state, name):
    names = movement_names(signal)
    assert names.of_state(state) == name
    assert names.with_letters(state) == (state if name == state else f"{name} ({state})")


def test_a_link_is_named_by_its_movement():
    names = movement_names(CROSSROADS)
    assert (names.of_link(2), names.of_link(99)) == ("northbound left (link 2)", "link 99")


def test_greens_with_the_same_name_are_told_apart_by_their_states():
    names = movement_names(CROSSROADS)
    assert names.of_states(["GGrrrrrrrrrr", "gGrrrrrrrrrr", "rrGrrrrrrrrr"]) == [
        "northbound through + right (GGrrrrrrrrrr)", "northbound through + right (gGrrrrrrrrrr)", "northbound left",
    ]  # fmt: skip


def test_equal_directions_have_their_streets_else_their_roads():
    two = junction(*approach("a", 10.0, "s", "High Street"), *approach("b", 350.0, "s"), *approach("c", EAST, "s"))
    assert [group.name for group in movement_names(two).groups] == [
        "northbound on High Street through", "northbound on b through", "eastbound through",
    ]  # fmt: skip
    one_street = junction(*approach("a", NORTH, "s", "High Street"), *approach("b", NORTH, "s", "High Street"))
    assert [group.approach for group in movement_names(one_street).groups] == ["northbound on a", "northbound on b"]


def test_crossings_have_the_street_else_the_leg():
    signal = junction(
        *approach("n", NORTH, "s"), crossing(WEST, "", "x", "y"), crossing(NORTH, "Main Street", "a"),
        crossing(SOUTH, "Main Street", "b"), crossing(EAST, "Low Road", "c"), crossing(0.0),
    )  # fmt: skip
    names = movement_names(signal)
    assert {group.name for group in names.groups if group.kind == "crossing"} == {
        "pedestrians across Main Street (the north leg)", "pedestrians across Main Street (the south leg)",
        "pedestrians across Low Road", "pedestrians across the west leg", "pedestrians",
    }  # fmt: skip
    assert names.of_state("GGrrGr") == "northbound through, pedestrians across Low Road and the west leg"


def test_links_are_found_by_kind_and_by_key_but_for_u_turns():
    signal = junction(*approach("n", NORTH, "slt"), *approach("s", SOUTH, "sR"), crossing(WEST, "", "x", "y"))
    assert links_by_key(signal) == {
        "through": {0, 3}, "left": {1}, "right": {4}, "crossing": {5}, "n": {0}, "n:left": {1}, "s": {3}, "s:right": {4},
        "x:crossing": {5}, "y:crossing": {5}, "protected left": {1}, "protected right": {4}, "n:protected left": {1},
        "s:protected right": {4},
    }  # fmt: skip
    assert keys_of(signal) == {"n", "n:left", "s", "s:right", "x:crossing", "y:crossing"}


def test_a_crossing_and_its_opposite_direction_are_one_movement():
    names = movement_names(junction(crossing(WEST, "", "x"), crossing(WEST, "", "x")))
    assert [group.links for group in names.groups] == [(0, 1)] and names.of_state("rG") == names.of_state("GG")


def test_lanes_are_named_by_their_movements_and_told_apart_where_these_are_the_same():
    signal = junction(*approach("n", NORTH, "ssrl"), crossing(WEST, "", "x"))
    lanes = [("n_1", "o"), ("n_2", "o"), ("n_3", "o"), ("n_3", "o"), (":w0", ":c0")]
    names = movement_names(replace(signal, links=tuple((pair,) for pair in lanes)))
    assert names.lane_names == {
        "n_1": "northbound through (n_1)", "n_2": "northbound through (n_2)", "n_3": "northbound left + right",
        ":c0": "pedestrians across the west leg", ":w0": "pedestrians across the west leg",
    }  # fmt: skip


def test_city_toml_states_names_of_approaches_movements_crossings_and_states():
    programs = network.of_sumocfg(GRID / "grid.sumocfg").signals["A0"].programs
    signal = replace(
        junction(*approach("n", NORTH, "srl"), *approach("s", SOUTH, "s"), crossing(WEST, "", "x")), programs=programs
    )
    state = programs[0].phases[0].state
    stated = {"n": "inbound", "n:left": "to the station", "x:crossing": "school crossing", state: "rush hour"}
    names = movement_names(signal, stated)
    assert names.of_state("GrGrr") == "inbound through, to the station"
    assert names.of_state("rrrGG") == "southbound through, school crossing" and names.of_state(state) == "rush hour"


def test_names_of_city_toml_are_of_its_own_signals(tmp_path, grid_street):
    text = (GRID / "city.toml").read_text().replace('"grid.sumocfg"', f'"{GRID}/grid.sumocfg"')
    path = tmp_path / "city.toml"
    state = grid_street.signals["C1"].plan.phases[0].state
    path.write_text(f'{text}\nmovement_names = {{ "C0C1.70.00" = "uphill", "{state}" = "main green" }}\n')
    names = of_city(config.load(path), grid_street)
    assert names["C1"].groups[0].name == "uphill through" and names["C1"].of_state(state) == "main green"
    assert names["A0"].of_state(state) != "main green"
    path.write_text(f'{text}\nmovement_names = {{ "A0A1:straight" = "x" }}\n')
    with pytest.raises(InputError, match=r"\[tl.SA108\] movement_names: A0A1:straight is not a movement of its signal"):
        of_city(config.load(path), grid_street)


def test_street_names_come_from_the_network(tmp_path):
    text = (
        (GRID / "grid.net.xml").read_text().replace('<edge id="A1A0.70.00"', '<edge id="A1A0.70.00" name="Main & Co"')
    )
    assert "Main & Co" in text
    path = tmp_path / "named.net.xml"
    path.write_text(text.replace("Main & Co", "Main &amp; Co"))
    movements = [movement for of_link in network.read(path).signals["A0"].movements for movement in of_link]
    assert {movement.street for movement in movements if movement.road == "A1A0.70.00"} == {"Main & Co"}
    assert {movement.street for movement in movements if movement.road != "A1A0.70.00"} == {""}


@given(
    st.lists(st.tuples(st.floats(0, 360), st.sets(st.sampled_from("slrtLR"), min_size=1)), min_size=1, max_size=6),
    st.lists(st.floats(0, 360), max_size=3),
    st.data(),
)
def test_every_link_has_one_movement_and_every_name_is_of_one_movement(headings, legs, data):
    movements = [
        each for k, (heading, turns) in enumerate(headings) for each in approach(f"r{k}", heading, sorted(turns))
    ]
    movements += [crossing(leg, "", f"x{k}") for k, leg in enumerate(legs)]
    names = movement_names(junction(*movements))
    assert sorted(link for group in names.groups for link in group.links) == list(range(len(movements)))
    assert len({group.name for group in names.groups}) == len(names.groups)
    state = data.draw(st.text("rgGyusoO", min_size=len(movements), max_size=len(movements)))
    assert names.of_state(state)
