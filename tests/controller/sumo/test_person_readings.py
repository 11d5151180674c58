"""Persons before pedestrian crossings are read alike over every connection, from the real SUMO."""

import threading

import numpy as np
import pytest
import traci

from city import network
from controller.sumo import start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import WALKING_M, Interrupts
from signals.observation import NO_VEHICLES
from tests.controller.sumo.openers import OPENERS, over_socket
from tests.end_to_end.programs import free_port

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
    connection.track(
        {"all": [], "one": [], "roads": []},
        [],
        {"J": len(connection.api.trafficlight.getRedYellowGreenState("J"))},
        {"all": ["WJ_1", *crossings], "one": crossings[:1], "roads": ["WJ_1"]},
        areas_of,
    )
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


def test_a_tl_without_crossings_reads_no_persons(connection, areas_of):
    track(connection, areas_of)
    connection.advance(100.0)
    connection.read(("all",))
    assert read_persons(connection)
    connection.read(("roads",))
    assert set(connection.readings.by_vehicle.row) <= {connection.lanes.index("WJ_1")}
    connection.read(())
    assert connection.readings.by_vehicle is NO_VEHICLES


def test_person_whose_walk_ends_after_its_id_was_read_is_left_out(options, areas_of):
    connection = over_socket(options)
    api = connection.api
    crossings = track(connection, areas_of)["all"]
    connection.advance(100.0)
    connection.read(("all",))
    before = requested(connection.api, areas_of, crossings)
    receive_states, ended = connection.shown, []

    def end_first():
        """As another client would; `read` receives the states between its two requests."""
        receive_states()
        if not ended:
            on_areas = [p for area in areas_of[before[0][0]] for p in api.edge.getLastStepPersonIDs(area)]
            ended.extend(p for p in on_areas if api.person.getNextEdge(p) + "_0" == before[0][0])
            api.person.removeStages(ended[0])

    connection.shown = end_first
    connection.read(("all",))
    expected = requested(api, areas_of, crossings)
    assert read_persons(connection) == expected and len(expected) == len(before) - 1 > 0
    connection.close()


def test_persons_are_read_beside_another_client(options, areas_of):
    port, others = free_port(), []

    def step_along():
        client = traci.connect(port, numRetries=60, waitBetweenRetries=0.5, label="other")
        client.setOrder(2)
        for second in range(1, END_S + 1):
            client.simulationStep(float(second))
            others.append(len(client.person.getIDList()))
        client.close()

    thread = threading.Thread(target=step_along, daemon=True)
    thread.start()
    connection = start.connect(SumoAccess(arguments=options, clients=2, port=port, order=1), Interrupts())
    crossings, seen = track(connection, areas_of)["all"], 0
    for second in range(1, END_S + 1):
        connection.advance(float(second))
        connection.read(("all",))
        expected = requested(connection.api, areas_of, crossings)
        assert read_persons(connection) == expected
        seen += len(expected)
    connection.close()
    thread.join(30)
    assert not thread.is_alive() and len(others) == END_S and max(others) > 10 and seen > 100
