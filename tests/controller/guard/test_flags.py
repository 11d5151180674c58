"""The guard's own command line."""

import pytest

from city.errors import InputError
from controller.guard.__main__ import parse

OWN = ["--", "-c", "any.sumocfg"]


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["--sumo", "127.0.0.1:1"], 1),  # SUMO ends for all where one of several clients has no number
        (["--sumo", "127.0.0.1:1", "--order", "3"], 3),
        (OWN, 1),
        (["--clients", "1", *OWN], None),
    ],
)
def test_a_guard_beside_others_has_a_place_among_them(words, order):
    assert parse(words)[0].order == order


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say --sumo HOST:PORT to attach, or --"),
        (["--sumo", "127.0.0.1:1", *OWN], "say --sumo HOST:PORT to attach, or --"),
        (["--watchdog-s", "nan", *OWN], "--watchdog-s nan must lie between"),
        (["--first-s", "inf", *OWN], "--first-s inf must be a time"),
        (["--idle-s", "-1", *OWN], "--idle-s -1 must be a time"),
        (["--sumo-port", "-1", *OWN], "--sumo-port -1 must lie between"),
        (["--clients", "0", *OWN], "--clients 0 must be 1 at least"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(words, told):
    with pytest.raises(InputError, match=told):
        parse(words)
