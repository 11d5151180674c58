"""Vehicles and mean speeds of lanes, and vehicles that wait to depart, from the real SUMO over every connection."""

import pytest


def test_lanes_have_the_vehicles_and_speeds_that_sumo_has(busy):
    domain = busy.api.lane
    lanes = tuple(lane for lane in domain.getIDList() if not lane.startswith(":"))
    traffic = busy.traffic(lanes)
    assert (
        traffic.counts.tolist() == [domain.getLastStepVehicleNumber(lane) for lane in lanes]
        and traffic.counts.sum() > 10
    )
    assert traffic.speeds_mps.tolist() == pytest.approx([domain.getLastStepMeanSpeed(lane) for lane in lanes])
    some = busy.traffic(lanes[:3])
    assert (
        some.counts.tolist() == traffic.counts[:3].tolist()
        and some.speeds_mps.tolist() == traffic.speeds_mps[:3].tolist()
    )
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
