"""All vehicles around a junction, from the real SUMO over every connection, and damaged answers."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sumo import wire
from controller.sumo.connection import CommandRejected
from controller.sumo.wire import MalformedMessage
from tests.controller.sumo.test_vehicle_readings import connection  # noqa: F401 - the fixture of every connection
from tests.controller.sumo.traci_answers import sized, status

JUNCTION = "B1"


def answer(vehicles, junction=JUNCTION, count=None):
    """A context subscription's answer as SUMO packs it, and that to its end. `vehicles`: (id, x, y, angle, speed)."""
    body = (
        struct.pack("!B", 0x99)
        + sized(junction)
        + struct.pack("!BBi", 0xA4, 3, len(vehicles) if count is None else count)
    )
    for name, x, y, angle, speed in vehicles:
        body += sized(name) + struct.pack("!BBBdd", 0x42, 0, 1, x, y)
        body += struct.pack("!BBBd", 0x43, 0, 0x0B, angle) + struct.pack("!BBBd", 0x40, 0, 0x0B, speed)
    return status(0x89) + struct.pack("!Bi", 0, len(body) + 5) + body + status(0x89)


def test_vehicles_near_are_those_that_sumo_has(connection):  # noqa: F811
    connection.track({}, [], {})
    connection.read(())
    connection.advance(90.0)
    connection.read(())
    vehicle = connection.api.vehicle
    expected = [(*vehicle.getPosition(v), vehicle.getAngle(v), vehicle.getSpeed(v)) for v in vehicle.getIDList()]
    assert len(expected) > 10
    found = connection.vehicles_near(JUNCTION, 1e6)
    assert sorted(map(tuple, found)) == pytest.approx(np.array(sorted(expected)))
    x, y = connection.api.junction.getPosition(JUNCTION)
    within = [row for row in expected if np.hypot(row[0] - x, row[1] - y) < 100]
    near = [row for row in connection.vehicles_near(JUNCTION, 100.0) if np.hypot(row[0] - x, row[1] - y) < 100]
    assert 0 < len(within) == len(near) < len(expected)
    # nothing is left of the request: the next steps and readings are as before
    connection.advance(91.0)
    assert connection.read(()).time_s == 91.0


@given(st.lists(st.tuples(st.text(max_size=20), *[st.floats(allow_nan=False)] * 4), max_size=8))
def test_answers_are_decoded(vehicles):
    assert wire.decode_vehicles_near(answer(vehicles), JUNCTION).tolist() == [list(values) for _, *values in vehicles]


@given(st.integers(0, 170), st.binary(min_size=1, max_size=4))
def test_a_damaged_answer_is_decoded_or_refused(at, damage):
    whole = answer([("a", 1, 2, 3, 4), ("b", 5, 6, 7, 8)])
    try:
        wire.decode_vehicles_near(whole[:at] + damage + whole[at + len(damage) :], JUNCTION)
    except (MalformedMessage, CommandRejected):
        return


def test_an_answer_that_ends_too_early_is_refused():
    whole = answer([("a", 1, 2, 3, 4), ("b", 5, 6, 7, 8)])
    for cut in range(len(whole)):
        with pytest.raises(MalformedMessage):
            wire.decode_vehicles_near(whole[:cut], JUNCTION)


def test_another_count_of_vehicles_is_refused():
    with pytest.raises(MalformedMessage, match="1 vehicles"):
        wire.decode_vehicles_near(answer([("a", 1, 2, 3, 4)], count=2), JUNCTION)


def test_an_unknown_junction_is_a_rejection():
    with pytest.raises(CommandRejected, match="not known"):
        wire.decode_vehicles_near(status(0x89, 0xFF, "Junction 'X' is not known"), "X")
