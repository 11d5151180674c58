"""States of signals that are not tracked, from the real SUMO over every connection."""

import pytest

from city import network
from controller.sumo.connection import CommandRejected
from controller.sumo.traci_connection import TraciConnection
from tests.conftest import GRID


def test_states_are_those_that_sumo_shows_and_nothing_is_left_of_the_request(connection):
    links = {name: len(signal.links) for name, signal in network.read(GRID / "grid.net.xml").signals.items()}
    connection.track({}, [], dict(list(links.items())[:1]))
    connection.read(())
    seen = set()
    for second in (30.0, 31.0, 60.0):
        connection.advance(second)
        assert connection.read(()).time_s == second
        expected = [connection.api.trafficlight.getRedYellowGreenState(signal) for signal in links]
        assert connection.signal_states(links) == expected
        assert list(connection.shown().values()) == expected[:1]
        seen.add(tuple(expected))
    assert len(seen) > 1
    # another selection, and a state that is longer than its links
    few = dict(list(links.items())[2:4])
    connection.api.trafficlight.setRedYellowGreenState(next(iter(few)), "G" * 40)
    assert connection.signal_states(few)[0] == "G" * 40
    assert connection.signal_states({}) == []


def test_a_signal_that_sumo_does_not_have_is_named(connection):
    if isinstance(connection, TraciConnection):
        connection.track({}, [], {})
        connection.read(())
        with pytest.raises(CommandRejected, match="nobody"):
            connection.signal_states({"nobody": 3})
        connection.check_open()
