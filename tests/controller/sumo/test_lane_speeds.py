"""Vehicles and mean speeds of lanes, from the real SUMO over every connection."""

import pytest

from controller.sumo.connection import CommandRejected
from controller.sumo.traci_connection import TraciConnection
from tests.controller.sumo.test_vehicle_readings import connection  # noqa: F401 - the fixture of every connection


def test_lanes_have_the_vehicles_and_speeds_that_sumo_has(connection):  # noqa: F811
    connection.track({}, [], {})
    connection.read(())
    connection.advance(90.0)
    connection.read(())
    domain = connection.api.lane
    lanes = tuple(lane for lane in domain.getIDList() if not lane.startswith(":"))
    counts, speeds_mps = connection.lane_speeds(lanes)
    assert counts.tolist() == [domain.getLastStepVehicleNumber(lane) for lane in lanes] and counts.sum() > 10
    assert speeds_mps.tolist() == pytest.approx([domain.getLastStepMeanSpeed(lane) for lane in lanes])
    assert [values.tolist() for values in connection.lane_speeds(lanes[:3])] == [counts[:3].tolist(), speeds_mps[:3].tolist()]
    assert [len(values) for values in connection.lane_speeds(())] == [0, 0]
    # nothing is left of the request: the next steps and readings are as before
    connection.advance(91.0)
    assert connection.read(()).time_s == 91.0


def test_an_unknown_lane_is_an_error(connection):  # noqa: F811
    connection.track({}, [], {})
    connection.read(())
    expected = CommandRejected if isinstance(connection, TraciConnection) else connection.api.TraCIException
    with pytest.raises(expected, match="nowhere"):
        connection.lane_speeds(("nowhere_0",))
