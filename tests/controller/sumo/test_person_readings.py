"""Persons before pedestrian crossings are read alike over every connection, from the real SUMO."""

import numpy as np
import pytest

from city import network
from controller.sumo.connection import WALKING_M, LanesToRead
from tests.controller.sumo.openers import OPENERS

END_S = 150


@pytest.fixture(scope="module")
def options(crossroads_net, crossroads_walkers):
    return ["-n", str(crossroads_net), "-r", str(crossroads_walkers), "--seed", "3", "--no-step-log", "--no-warnings"]


@pytest.fixture(scope="module")
def areas_of(crossroads_net):
    return network.read(crossroads_net).signals["J"].lane_graph.walking_areas


@pytest.fixture(params=OPENERS)
def connection(request, options):
    made = request.param(options)
    yield made
    made.close()


def track(connection, areas_of):
    crossings = sorted(areas_of)
    vehicle_lanes_of = {"all": ["WJ_1", *crossings], "one": crossings[:1], "roads": ["WJ_1"]}
    lanes = LanesToRead(dict.fromkeys(vehicle_lanes_of, ()), (), vehicle_lanes_of, areas_of)
    connection.track(lanes, {"J": len(connection.api.trafficlight.getRedYellowGreenState("J"))})
    return {"all": crossings, "one": crossings[:1], "roads": []}


def requested(api, areas_of, crossings):
    """(crossing, is on its way, speed, waiting time) of its persons, requested one by one."""
    found = []
    for crossing in crossings:
        for area in areas_of[crossing]:
            for person in api.edge.getLastStepPersonIDs(area):
                if api.person.getNextEdge(person) + "_0" == crossing:
                    mps, waiting_s = api.person.getSpeed(person), api.person.getWaitingTime(person)
                    found.append((crossing, waiting_s == 0 and mps >= 0.1, mps, waiting_s))
    return sorted(found)


def read_persons(connection):
    row, position_m, *values = connection.readings.by_vehicle
    assert row.dtype == np.intp and (np.diff(row) >= 0).all()
    names = [connection.lanes[k] for k in row]
    assert set(position_m[[name.startswith(":") for name in names]]) <= {0.0, -WALKING_M}
    everyone = zip(names, (position_m < 0).tolist(), *(array.tolist() for array in values), strict=True)
    return sorted(each for each in everyone if each[0].startswith(":"))


def test_persons_equal_those_that_sumo_reports_one_by_one(connection, areas_of):
    crossings_of, seen, others, cars = track(connection, areas_of), [], 0, 0
    for second in range(1, END_S + 1):
        due = ("one", "all", "roads")[second % 3]
        connection.advance(float(second))
        connection.read((due,))
        expected = requested(connection.api, areas_of, crossings_of[due])
        assert read_persons(connection) == expected
        seen += expected
        on_areas = {p for own in areas_of.values() for a in own for p in connection.api.edge.getLastStepPersonIDs(a)}
        others += len(on_areas) - len(expected) if due == "all" else 0
        cars += len(connection.readings.by_vehicle.row) - len(expected)
    assert {crossing for crossing, *_ in seen} == areas_of.keys() and cars > 0 and others > 0
    walking = [is_walking for _, is_walking, *_ in seen]
    assert any(walking) and not all(walking) and max(waiting_s for *_, waiting_s in seen) > 20


def test_all_persons_on_walking_areas_are_read(connection, areas_of):
    track(connection, areas_of)
    connection.advance(100.0)
    connection.read(())
    api, areas = connection.api, sorted({area for own in areas_of.values() for area in own})
    ids = [person for area in areas for person in api.edge.getLastStepPersonIDs(area)]
    domain = api.person
    expected = [(domain.getNextEdge(p), domain.getSpeed(p), domain.getWaitingTime(p)) for p in ids]
    persons = connection.persons(areas)
    assert persons == expected != [] and connection.persons([]) == []
    assert {person.stands for person in persons} == {True, False}
