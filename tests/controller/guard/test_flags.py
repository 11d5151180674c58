"""The guard's command line."""

import pytest

from city.errors import InputError
from controller.guard.__main__ import parse

SUMO_ARGUMENTS = ["--", "-c", "any.sumocfg"]


@pytest.mark.parametrize(
    ("argv", "order"),
    [
        (["--sumo", "127.0.0.1:1"], 1),  # SUMO ends for all clients if one of several has no order
        (["--sumo", "127.0.0.1:1", "--order", "3"], 3),
        (SUMO_ARGUMENTS, 1),
        (["--clients", "1", *SUMO_ARGUMENTS], None),
    ],
)
def test_guard_has_an_order_if_sumo_has_other_clients(argv, order):
    assert parse(argv).sumo.order == order


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "pass --sumo HOST:PORT to attach, or --"),
        (["--sumo", "127.0.0.1:1", *SUMO_ARGUMENTS], "pass --sumo HOST:PORT to attach, or --"),
        (["--watchdog-s", "nan", *SUMO_ARGUMENTS], "--watchdog-s nan must be above 0"),
        (["--first-controller-timeout-s", "inf", *SUMO_ARGUMENTS], "--first-controller-timeout-s inf must be a time"),
        (["--idle-timeout-s", "-1", *SUMO_ARGUMENTS], "--idle-timeout-s -1 must be a time"),
        (["--sumo-port", "-1", *SUMO_ARGUMENTS], "--sumo-port -1 must lie between"),
        (["--watchdog-s", "0", *SUMO_ARGUMENTS], "--watchdog-s 0 must be above 0"),
        (["--clients", "0", *SUMO_ARGUMENTS], "--clients 0 must lie between 1"),
        (["--sumo", "nowhere"], "must be HOST:PORT"),
        (["--sumo", "127.0.0.1:99999"], "must be HOST:PORT"),
        (["--sumo", "127.0.0.1:1", "--order", "99999999999"], "--order 99999999999 must lie"),
        (["--sumo", "127.0.0.1:1", "--http", "9109"], "--http"),
        (["--only-client", "--clients", "1", *SUMO_ARGUMENTS], "--only-client is for a SUMO at --sumo"),
    ],
)
def test_invalid_flags_are_refused(argv, message):
    with pytest.raises(InputError, match=message):
        parse(argv)
