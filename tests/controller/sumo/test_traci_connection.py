"""A connection to a fake SUMO at the other end of a socket pair."""

import contextlib
import select
import socket
import struct
import threading
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from traci import constants as tc

from controller.sumo import wire
from controller.sumo.connection import (
    WALKING_M,
    CommandRejected,
    Interrupts,
    LanesToRead,
    SumoConnectionLost,
    WaitAborted,
)
from controller.sumo.programs import StderrReader
from controller.sumo.traci_connection import TraciConnection, decode_rejections
from signals.observation import NO_VEHICLES
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety
from tests.controller.sumo.test_messages import Requests
from tests.controller.sumo.traci_answers import (
    ids_answer,
    person_answer,
    sized,
    state_answer,
    status,
    value,
    vehicle_answer,
)

LANES = ["in0_0", "in1_0"]


@pytest.fixture
def ends(sockets):
    return tracking(sockets[0]), sockets[1]


def tracking(
    ours, abort_requested=lambda: False, vehicle_lanes_of=MappingProxyType({}), walking_areas_of=MappingProxyType({})
):
    """A connection over a socket that reads one TL."""
    connection = TraciConnection(SimpleNamespace(_socket=ours), None, StderrReader(None), Interrupts(abort_requested))
    connection.track(LanesToRead({"TL": LANES}, (), vehicle_lanes_of, walking_areas_of), {"X": 2})
    return connection


def numbers(vehicles):
    """Answers to the getters of the lanes, with as many vehicles as halting ones, and of the time."""
    answer, five = b"", struct.pack("!d", 5.0)
    for lane, count in zip(LANES, vehicles, strict=True):
        for variable in (0x10, 0x14):
            answer += status(0xA3) + value(0xA3, variable, lane, tc.TYPE_INTEGER, struct.pack("!i", count))
        answer += status(0xA3) + value(0xA3, 0x15, lane, tc.TYPE_DOUBLE, five)
    return answer + status(0xAB) + value(0xAB, 0x66, "", tc.TYPE_DOUBLE, five)


@contextlib.contextmanager
def answering(sumo, request, answer, closes=False):
    """Answer once the request has arrived; `closes`: close the connection after that."""

    def serve():
        received = b""
        while not received.endswith(request):
            received += sumo.recv(1 << 16)
        sumo.sendall(answer)
        if closes:
            sumo.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive(), "the request has not arrived"


STEPPED = wire.message([status(tc.CMD_SIMSTEP) + bytes(4)])
CLOSE = wire.message([wire.command(wire.CLOSE, b"")])


def shown(state="Gr"):
    return wire.message([state_answer([("X", state)])])


def read(ends, vehicles=(3, 4), states=None, until_s=5.0, ids=b"", step=STEPPED):
    """Read after a step.

    `states`: what SUMO sends after the lanes; None: the state Gr. `ids`: answers to getters of vehicles' ids.
    """
    connection, sumo = ends
    connection.advance(until_s)
    sumo.sendall(step + wire.message([numbers(vehicles), ids]) + (shown() if states is None else states))
    return connection.read(("TL",))


def test_readings_are_written_to_the_rows_of_their_lanes(ends):
    connection, _ = ends
    assert read(ends) == (5.0, [], {}, [])
    assert connection.shown() == connection.shown() == {"X": "Gr"}
    assert connection.readings.counts.tolist() == [[3, 4], [3, 4]]
    assert connection.readings.mean_length_m.tolist() == [5, 5]


IDS_OF = {"in0_0": [], "in1_0": ["a", "b"], "up_0": ["c"]}
VEHICLES = [("a", (30.0, 2.0, 0.0)), ("b", (9.5, 0.0, 7.0)), ("c", (1.0, 13.9, 0.0))]


@pytest.fixture
def vehicle_ends(sockets):
    return tracking(sockets[0], vehicle_lanes_of={"TL": list(IDS_OF)}), sockets[1]


def read_with_vehicles(ends, answer):
    """Read after a step; `answer`: to the request for the vehicles' values."""
    return read(ends, states=shown() + wire.message([answer]), ids=ids_answer(IDS_OF))


def test_vehicles_are_requested_once_their_ids_are_known(vehicle_ends):
    connection, sumo = vehicle_ends
    request = wire.VehicleGetters([sized(name) for name, _ in VEHICLES]).request
    with answering(sumo, wire.message([request]), wire.message([vehicle_answer(VEHICLES)])):
        assert read(vehicle_ends, ids=ids_answer(IDS_OF)) == (5.0, [], {}, [])
    assert connection.lanes == ("in0_0", "in1_0", "up_0")
    row, *values = connection.readings.by_vehicle
    assert row.tolist() == [1, 1, 2] and [tuple(of) for of in zip(*values, strict=True)] == [own for _, own in VEHICLES]
    assert connection.readings.counts.tolist() == [[3, 4, 0], [3, 4, 0]] and connection.shown() == {"X": "Gr"}


def test_nothing_more_is_requested_without_vehicles(vehicle_ends):
    connection, sumo = vehicle_ends
    read_with_vehicles(vehicle_ends, vehicle_answer(VEHICLES))
    sumo.recv(1 << 16)
    read(vehicle_ends, states=b"", ids=ids_answer({lane: [] for lane in IDS_OF}))
    assert sumo.recv(1 << 16).endswith(
        wire.message([wire.get(tc.CMD_GET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, "X")])
    )
    assert connection.readings.by_vehicle is NO_VEHICLES
    sumo.sendall(shown())
    assert connection.shown() == {"X": "Gr"} and not select.select([sumo], [], [], 0)[0]


PERSONS_OF = {":X_w0": ["p", "q", "r"], ":X_w1": ["s"]}
PERSONS = [("p", (":X_c0", 0.0, 9.0)), ("q", None), ("r", (":X_c1", 0.0, 9.0)), ("s", (":X_c0", 1.2, 0.0))]


@pytest.mark.parametrize("vehicles", [VEHICLES, []], ids=["with vehicles", "persons alone"])
def test_persons_before_a_crossing_are_read_in_the_exchanges_of_the_vehicles(sockets, vehicles):
    ours, sumo = sockets
    lanes = [*IDS_OF, ":X_c0_0"]
    connection = tracking(ours, vehicle_lanes_of={"TL": lanes}, walking_areas_of={":X_c0_0": [":X_w0", ":X_w1"]})
    ids_of = IDS_OF if vehicles else {lane: [] for lane in IDS_OF}
    getters = [
        kind([sized(name) for name, _ in of])
        for kind, of in ((wire.PersonGetters, PERSONS), (wire.VehicleGetters, vehicles))
    ]
    answer = wire.message([person_answer(PERSONS), vehicle_answer(vehicles)])
    with answering(sumo, wire.message([each.request for each in getters]), answer):
        read((connection, sumo), ids=ids_answer(ids_of, PERSONS_OF))
    row, *values = connection.readings.by_vehicle
    assert row.tolist() == [0, 0, *(1 + k for k in (1, 1, 2) if vehicles)] and row.dtype == np.intp
    assert connection.lanes == (":X_c0_0", "in0_0", "in1_0", "up_0")
    persons = [(0.0, 0.0, 9.0), (-WALKING_M, 1.2, 0.0)]
    assert [*zip(*values, strict=True)] == [*persons, *(own for _, own in vehicles)]
    assert connection.shown() == {"X": "Gr"}


def test_vehicle_that_another_client_removed_is_left_out(vehicle_ends):
    connection, _ = vehicle_ends
    read_with_vehicles(vehicle_ends, vehicle_answer([VEHICLES[0], ("b", None), VEHICLES[2]]))
    row, *values = connection.readings.by_vehicle
    assert row.tolist() == [1, 2] and [*zip(*values, strict=True)] == [VEHICLES[0][1], VEHICLES[2][1]]


@pytest.mark.parametrize("answer", [b"", b"nonsense", vehicle_answer(VEHICLES)[:-1], vehicle_answer(VEHICLES[::-1])])
def test_malformed_vehicles_end_the_connection(vehicle_ends, answer):
    with pytest.raises(SumoConnectionLost):
        read_with_vehicles(vehicle_ends, answer)


def test_answers_stay_in_order_after_an_aborted_wait_for_vehicles(sockets, quick_polls):
    ours, sumo = sockets
    connection = tracking(ours, lambda: True, {"TL": list(IDS_OF)})
    with pytest.raises(WaitAborted):
        read((connection, sumo), ids=ids_answer(IDS_OF))
    sumo.sendall(wire.message([vehicle_answer(VEHICLES)]))
    read_with_vehicles((connection, sumo), vehicle_answer([("a", (31.0, 1.0, 0.0)), *VEHICLES[1:]]))
    assert connection.readings.by_vehicle.position_m.tolist() == [31.0, 9.5, 1.0]


def test_unused_states_do_not_disturb_the_next_reading(ends):
    connection, _ = ends
    for vehicles, state in (([3, 4], "Gr"), ([5, 6], "rG")):
        read(ends, vehicles, shown(state))
        assert connection.readings.counts.tolist() == [vehicles, vehicles]
    assert connection.shown() == {"X": "rG"}
    read(ends, states=wire.message([b"nonsense"]), until_s=10.0)
    with pytest.raises(SumoConnectionLost):
        read(ends, until_s=15.0)


def test_states_are_requested_after_numbers_and_sent_before_commands(ends, crossing):
    connection, sumo = ends
    all_red, _ = SignalSafety(crossing, SafetyTimes(3, 4)).permit("rrrr", 0.0)
    read(ends, states=b"")
    assert sumo.recv(1 << 16).endswith(
        wire.message([wire.get(tc.CMD_GET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, "X")])
    ), "requested without waiting"
    connection.set([all_red])
    assert sumo.recv(1 << 16) == wire.message(
        [wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, "X", "rrrr")]
    )
    sumo.sendall(shown())
    connection.advance(10.0)
    assert connection.shown() == {"X": "Gr"}, "of the reading, whatever commands were sent since"
    assert sumo.recv(1 << 16) == wire.message([wire.step(10.0)])


def test_commands_that_sumo_rejects_are_named_by_their_signals(crossing):
    signals = [replace(crossing, id=name) for name in "AB"]
    sent = [SignalSafety(signal, SafetyTimes(3, 4)).permit("rrrr", 0.0)[0] for signal in signals]
    answer = status(tc.CMD_SET_TL_VARIABLE) + status(tc.CMD_SET_TL_VARIABLE, 0xFF, "no such state")
    assert decode_rejections(answer, sent) == {"B": "no such state"}
    assert decode_rejections(wire.SET_OK * 2, sent) == {}


def test_programs_are_requested_between_two_steps(ends):
    connection, sumo = ends
    text = value(tc.CMD_GET_TL_VARIABLE, tc.TL_CURRENT_PROGRAM, "X", tc.TYPE_STRING, b"\0\0\0\6online")
    read(ends, states=shown() + wire.message([status(tc.CMD_GET_TL_VARIABLE) + text]))
    assert connection.programs(["X"]) == {"X": "online"} and connection.shown() == {"X": "Gr"}
    for answer, error in ((b"\0\0\0\1", SumoConnectionLost), (b"\x09\xa2\xff\0\0\0\2no", CommandRejected)):
        sumo.sendall(wire.message([answer]))
        with pytest.raises(error):
            connection.programs(["X"])


def test_api_is_usable_only_after_the_states_are_received(ends):
    connection, _ = ends
    read(ends)
    assert connection.api
    assert not select.select([connection.socket], [], [], 0)[0]
    assert connection.shown() == {"X": "Gr"}


def test_switch_program_works_after_rejected_states(ends):
    connection, sumo = ends
    read(ends, states=b"")
    sumo.sendall(wire.message([status(tc.CMD_GET_TL_VARIABLE, 0xFF, "not today")]))
    switch = wire.message([wire.set_string(tc.CMD_SET_TL_VARIABLE, tc.TL_PROGRAM, "X", "0")])
    with answering(sumo, switch, wire.message([status(tc.CMD_SET_TL_VARIABLE)])):
        connection.switch_program("X", "0")


@pytest.mark.parametrize(
    ("answer", "error"),
    [(status(tc.CMD_GET_TL_VARIABLE, 0xFF, "not today"), CommandRejected), (b"nonsense", SumoConnectionLost)],
)
def test_unreadable_states_raise_as_numbers_do(ends, answer, error):
    read(ends, states=wire.message([answer]))
    with pytest.raises(error):
        ends[0].shown()


def test_answers_stay_in_order_after_a_rejection(ends):
    connection, sumo = ends
    with pytest.raises(CommandRejected, match="not today"):
        read(ends, step=wire.message([status(tc.CMD_SIMSTEP, 0xFF, "not today")]))
    sumo.sendall(wire.message([status(tc.CMD_SET_TL_VARIABLE, 0xFF, "no such program")]))
    with pytest.raises(CommandRejected, match="no such program"):
        connection.switch_program("X", "0")


@pytest.mark.parametrize(
    "answer", [b"\0\0\0\3", wire.message([b"nonsense"]) + STEPPED, STEPPED + wire.message([b"more"])]
)
def test_malformed_answer_ends_the_connection(ends, answer):
    with pytest.raises(SumoConnectionLost):
        read(ends, step=answer)


def test_late_answers_of_an_aborted_wait_are_not_mixed_up(sockets, quick_polls):
    ours, sumo = sockets
    connection = tracking(ours, abort_requested=lambda: True)
    connection.advance(5.0)
    with pytest.raises(WaitAborted):
        connection.read(("TL",))
    with pytest.raises(WaitAborted):
        connection.switch_program("X", "0")
    late = STEPPED + wire.message([numbers([3, 4])]) + shown()
    sumo.sendall(late + wire.message([status(tc.CMD_SET_TL_VARIABLE)]))
    for program in "12":
        sumo.sendall(wire.message([status(tc.CMD_SET_TL_VARIABLE, 0xFF, f"no program {program}")]))
        with pytest.raises(CommandRejected, match=f"no program {program}"):
            connection.switch_program("X", program)


@pytest.mark.parametrize("has_sumo", [True, False])
def test_abandoned_link_with_states_due_is_closed(ends, has_sumo):
    connection, sumo = ends
    read(ends, states=b"")
    if has_sumo:
        with answering(sumo, CLOSE, wire.ok(wire.CLOSE), closes=True):
            connection.abandon([("X", "0")])
    else:
        sumo.close()
        connection.abandon([("X", "0")])
    connection.close()
    with pytest.raises(SumoConnectionLost):
        connection.shown()


@pytest.mark.parametrize("aborts", [False, True])
def test_unguarded_close_waits_for_a_silent_sumo_until_quit_is_requested(sockets, quick_polls, aborts):
    ours, sumo = sockets
    requests = Requests(aborts, quits_after=50)
    TraciConnection(SimpleNamespace(_socket=ours), None, StderrReader(None), requests.interrupts()).close()
    assert requests.checks == 50 and sumo.recv(100) == CLOSE


def test_guarded_close_does_not_wait_if_an_abort_is_requested(sockets):
    ours, sumo = sockets
    requests = Requests(aborts=True)
    api = SimpleNamespace(_socket=ours, getVersion=lambda: (21, f"SUMO {wire.GUARDED}"))
    connection = TraciConnection(api, None, StderrReader(None), requests.interrupts(), True)
    sumo.sendall(wire.ok(wire.HANDOVER))
    connection.register_handover(b"[]")
    assert connection.is_guarded
    connection.close()
    assert requests.checks == 0 and sumo.recv(100).endswith(CLOSE)
