"""Requests beside the readings, to the real SUMO over every connection: states of other signals, traffic, vehicles near a
junction."""

import numpy as np
import pytest

from city import network
from controller.sumo.connection import CommandRejected, LanesToRead
from controller.sumo.traci_connection import TraciConnection
from tests.conftest import GRID


def test_states_are_those_that_sumo_shows_and_nothing_is_left_of_the_request(connection):
    links = {name: len(signal.links) for name, signal in network.read(GRID / "grid.net.xml").signals.items()}
    connection.track(LanesToRead(), dict(list(links.items())[:1]))
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
        connection.track(LanesToRead(), {})
        connection.read(())
        with pytest.raises(CommandRejected, match="nobody"):
            connection.signal_states({"nobody": 3})
        connection.check_open()


def test_lanes_have_the_vehicles_and_speeds_that_sumo_has(busy):
    domain = busy.api.lane
    lanes = tuple(lane for lane in domain.getIDList() if not lane.startswith(":"))
    traffic = busy.traffic(lanes)
    assert (
        traffic.counts.tolist() == [domain.getLastStepVehicleNumber(lane) for lane in lanes]
        and traffic.counts.sum() > 10
    )
    pairs = zip(lanes, traffic.counts, traffic.speeds_mps, strict=True)
    assert all(mps == pytest.approx(domain.getLastStepMeanSpeed(lane)) for lane, count, mps in pairs if count)
    some = busy.traffic(lanes[:3])
    assert (
        some.counts.tolist() == traffic.counts[:3].tolist()
        and some.speeds_mps.tolist() == traffic.speeds_mps[:3].tolist()
    )
    halting = busy.halting(lanes)
    assert halting.tolist() == [domain.getLastStepHaltingNumber(lane) for lane in lanes] and halting.sum() > 3
    assert len(busy.halting(())) == 0
    none = busy.traffic(())
    assert len(none.counts) == len(none.speeds_mps) == 0
    # nothing is left of the request: the next steps and readings are as before
    busy.advance(91.0)
    assert busy.read(()).time_s == 91.0


def test_vehicles_that_wait_to_depart_are_on_their_first_road(busy):
    api = busy.api
    assert list(busy.traffic(()).waiting) == []
    routes = [api.vehicle.getRoute(vehicle) for vehicle in api.vehicle.getIDList()]
    first, *_ = route = max(routes, key=len)
    other = min(each[0] for each in routes)
    assert first != other
    api.route.add("long", route)
    api.route.add("short", [other])
    for k in range(40):
        # more than a road takes in a second
        api.vehicle.add(f"late {k} ü", "long" if k % 2 else "short")
    for second in (91.0, 92.0):  # with vehicles that were already known to wait
        busy.advance(second)
        busy.read(())
        expected = [api.vehicle.getRoute(vehicle)[0] for vehicle in api.simulation.getPendingVehicles()]
        assert set(expected) == {first, other}
        assert list(busy.traffic(()).waiting) == expected


def test_vehicles_near_are_those_that_sumo_has(busy):
    connection = busy
    vehicle = connection.api.vehicle
    expected = [(*vehicle.getPosition(v), vehicle.getAngle(v), vehicle.getSpeed(v)) for v in vehicle.getIDList()]
    assert len(expected) > 10
    assert sorted(map(tuple, connection.vehicles_near("B1", 1e6))) == pytest.approx(np.array(sorted(expected)))
    x, y = connection.api.junction.getPosition("B1")
    within = [row for row in expected if np.hypot(row[0] - x, row[1] - y) < 100]
    near = [row for row in connection.vehicles_near("B1", 100.0) if np.hypot(row[0] - x, row[1] - y) < 100]
    assert 0 < len(within) == len(near) < len(expected)
    # nothing is left of the request: the next steps and readings are as before
    connection.advance(91.0)
    assert connection.read(()).time_s == 91.0
