"""TLs that a policy can control, and settings that name what a TL does not have."""

from dataclasses import replace

import pytest

from city import network
from city.errors import InputError
from signals.contract import controllable, require_controllable


def with_max_red(city, **max_red_s):
    return replace(city, tls={"SA108": replace(city.tls["SA108"], max_red_s=max_red_s)})


def of_program(city, street, *states):
    """The street with another program for the signals of SA108."""
    phases = tuple(network.ProgramPhase(state, 20, 20, 20) for state in states)
    programs = (network.Program("0", "static", 0, phases),)
    signals = {id: replace(street.signals[id], programs=programs) for id in city.tls["SA108"].signals}
    return replace(street, signals={**street.signals, **signals})


LEFTS_PERMISSIVE = ("GGgrrrGGgrrr", "rrrGGgrrrGGg")


@pytest.mark.parametrize("key", ["C0C1:through", "U-turn", "A0A1.70.00", "crossing", "protected through"])
def test_max_red_of_what_is_no_movement_of_the_tl_is_refused_by_name(key, grid_city, grid_street):
    with pytest.raises(
        InputError,
        match=rf"\[tl.SA108\] max_red_s: {key} is not a movement .*; the nearest of 45 are .*, .*, .*, .*, [^,]*$",
    ):
        controllable(with_max_red(grid_city, **{key: 90.0}), ["SA108"], grid_street)


def test_max_red_may_name_a_movement_of_one_of_a_tls_signals(grid_city, grid_street):
    city = with_max_red(grid_city, **{"C0C1.70.00": 90.0, "C1C2.70.00:left": 90.0, "right": 90.0})
    assert controllable(city, ["SA108"], grid_street) == (["SA108"], {})


def test_bound_on_protected_greens_that_no_green_has_is_refused(grid_city, grid_street):
    street = of_program(grid_city, grid_street, *LEFTS_PERMISSIVE)
    city = with_max_red(grid_city, **{"left": 90.0, "C1C2.70.00:protected left": 90.0})
    with pytest.raises(InputError, match=r"no green has G for C1C2.70.00:protected left; .* write C1C2.70.00:left,"):
        controllable(city, ["SA108"], street)
    assert controllable(city, ["SA108"], grid_street)[0] == ["SA108"]


@pytest.mark.parametrize(
    ("key", "states", "is_noted"),
    [
        ("left", LEFTS_PERMISSIVE, False),
        ("left", ("GGgrrrGGgrrr", "rrGrrrrrGrrr"), True),  # two lefts have no green, the others have one in each
        ("through", ("GGrGGrGGrGGr", "GGgGGgrrrrrr"), False),
        ("right", ("GGgGGgGGgGGg", "GrrGrrGrrGrr"), True),
        ("left", ("GGrGGrGGrGGr", "rGrrGrrGrrGr"), True),
        ("protected right", ("GrrGrrGrrGrr", "GGrGrrGrrGrr"), True),
        ("protected right", ("GrrGrrGrrGrr", "gGrGrrGrrGrr"), False),
    ],
)
def test_bound_on_what_every_or_no_green_serves_is_noted(key, states, is_noted, grid_city, grid_street, monkeypatch):
    monkeypatch.setattr("signals.contract.check_phases", lambda *_: None)  # foes may be green together here
    street = of_program(grid_city, grid_street, *states)
    _, notes = require_controllable(with_max_red(grid_city, **{key: 90.0}), ["SA108"], street, is_strict=False)
    assert notes == [f"SA108: max_red_s {key} bounds no link: each is served by every green, or by none"] * is_noted
