"""All vehicles around a junction, from the real SUMO over every connection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sumo import wire
from controller.sumo.wire import MalformedMessage
from tests.controller.sumo.traci_answers import near_answer

JUNCTION = "B1"


def test_vehicles_near_are_those_that_sumo_has(busy):
    connection = busy
    vehicle = connection.api.vehicle
    expected = [(*vehicle.getPosition(v), vehicle.getAngle(v), vehicle.getSpeed(v)) for v in vehicle.getIDList()]
    assert len(expected) > 10
    assert sorted(map(tuple, connection.vehicles_near(JUNCTION, 1e6))) == pytest.approx(np.array(sorted(expected)))
    x, y = connection.api.junction.getPosition(JUNCTION)
    within = [row for row in expected if np.hypot(row[0] - x, row[1] - y) < 100]
    near = [row for row in connection.vehicles_near(JUNCTION, 100.0) if np.hypot(row[0] - x, row[1] - y) < 100]
    assert 0 < len(within) == len(near) < len(expected)
    # nothing is left of the request: the next steps and readings are as before
    connection.advance(91.0)
    assert connection.read(()).time_s == 91.0


@given(st.lists(st.tuples(st.text(max_size=20), *[st.floats(allow_nan=False)] * 4), max_size=8))
def test_answers_are_decoded(vehicles):
    assert wire.decode_vehicles_near(near_answer(JUNCTION, vehicles), JUNCTION).tolist() == [
        list(values) for _, *values in vehicles
    ]


def test_another_count_of_vehicles_is_refused():
    with pytest.raises(MalformedMessage, match="1 vehicles"):
        wire.decode_vehicles_near(near_answer(JUNCTION, [("a", 1, 2, 3, 4)], count=2), JUNCTION)
