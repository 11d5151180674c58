"""A link to a SUMO that answers what it likes."""

import contextlib
import select
import socket
import threading
from types import SimpleNamespace

import pytest

from controller.safety.safety_times import SafetyTimes
from controller.safety.signal_safety import SignalSafety
from controller.sumo import wire
from controller.sumo.link import CommandRejected, SumoConnectionLost, WaitAborted
from controller.sumo.programs import StderrReader
from controller.sumo.traci_link import TraciLink
from tests.controller.test_wire import state_answer, status, value

LANES = ["in0_0", "in1_0"]


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = TraciLink(SimpleNamespace(_socket=ours), ConnectionError, None, StderrReader(None), lambda: False)
        link.track({"TL": LANES}, [], {"X": 2})
        yield link, theirs


def numbers(vehicles):
    of_lane = ((0x10, wire.TYPE_INT, b"\0\0\0%c"), (0x14, wire.TYPE_INT, b"\0\0\0%c"))
    told = b""
    for lane, count in zip(LANES, vehicles, strict=True):
        for variable, kind, form in of_lane:
            told += status(0xA3) + value(0xA3, variable, lane, kind, form % count)
        told += status(0xA3) + value(0xA3, 0x15, lane, wire.TYPE_DOUBLE, b"\x40\x14" + bytes(6))  # 5.0
    return told + status(0xAB) + value(0xAB, 0x66, "", wire.TYPE_DOUBLE, b"\x40\x14" + bytes(6))


@contextlib.contextmanager
def answering(sumo, question, answer, goes=False):
    """Answer once the question has come; `goes`: and nothing after that."""

    def serve():
        asked = b""
        while not asked.endswith(question):
            asked += sumo.recv(1 << 16)
        sumo.sendall(answer)
        if goes:
            sumo.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive(), "the question has not come"


STEPPED = wire.message([status(wire.SIMSTEP) + bytes(4)])


def test_readings_come_to_the_rows_of_their_lanes(ends):
    link, sumo = ends
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]) + wire.message([state_answer([("X", "Gr")])]))
    assert link.read(("TL",)) == (5.0, [], {})
    assert link.shown() == link.shown() == {"X": "Gr"}
    assert link.readings.counts.tolist() == [[3, 4], [3, 4]]
    assert link.readings.mean_length_m.tolist() == [5, 5]


def test_states_that_nobody_asked_for_are_passed_over_by_the_next_reading(ends):
    link, sumo = ends
    for vehicles, state in (([3, 4], "Gr"), ([5, 6], "rG")):
        link.advance(5.0)
        sumo.sendall(STEPPED + wire.message([numbers(vehicles)]) + wire.message([state_answer([("X", state)])]))
        link.read(("TL",))
        assert link.readings.counts.tolist() == [vehicles, vehicles]
    assert link.shown() == {"X": "rG"}
    link.advance(10.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]) + wire.message([b"nonsense"]))
    link.read(("TL",))
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]))
    link.advance(15.0)
    with pytest.raises(SumoConnectionLost):
        link.read(("TL",))


def test_states_are_asked_for_behind_the_numbers_and_what_is_set_goes_out_before_the_next_step(ends, crossing):
    link, sumo = ends
    all_red, _ = SignalSafety(crossing, SafetyTimes(3, 4)).permit("rrrr", 0.0)
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]))
    link.read(("TL",))
    assert sumo.recv(1 << 16).endswith(wire.message([wire.get(wire.GET_TL, wire.STATE, "X")])), "it waits for nothing else"
    link.set([all_red])
    assert sumo.recv(1 << 16) == wire.message([wire.set_string(wire.SET_TL, wire.STATE, "X", "rrrr")])
    sumo.sendall(wire.message([state_answer([("X", "Gr")])]))
    link.advance(10.0)
    assert link.shown() == {"X": "Gr"}, "of the reading, whatever was set since"
    assert sumo.recv(1 << 16) == wire.message([wire.step(10.0)])


def test_a_program_is_switched_behind_a_reading_whose_states_are_kept(ends):
    link, sumo = ends
    link.advance(5.0)
    shown, switched = wire.message([state_answer([("X", "Gr")])]), wire.message([status(wire.SET_TL)])
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]) + shown + switched)
    link.read(("TL",))
    link.switch_program("X", "0")
    assert link.shown() == {"X": "Gr"}


def test_a_question_between_two_steps_is_not_answered_with_the_states(ends):
    link, sumo = ends
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]) + wire.message([state_answer([("X", "Gr")])]))
    link.read(("TL",))
    assert not select.select([link.api._socket], [], [], 0)[0]
    assert link.shown() == {"X": "Gr"}


def test_the_connection_is_open_until_its_end_is_answered(ends):
    link, sumo = ends
    link.track({"TL": LANES}, [], {"X": 200})
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]))
    link.read(("TL",))
    sumo.sendall(wire.message([state_answer([("X", "r" * 200)])]))
    with answering(sumo, wire.message([wire.command(wire.CLOSE, b"")]), wire.ok(wire.CLOSE), goes=True):
        link.close()
    assert sumo.recv(1 << 16) == b"", "reset: an answer was left unread"


def test_a_program_is_switched_even_where_states_are_refused(ends):
    link, sumo = ends
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]))
    link.read(("TL",))
    sumo.sendall(wire.message([status(wire.GET_TL, 0xFF, "not today")]))
    switch = wire.message([wire.set_string(wire.SET_TL, wire.PROGRAM, "X", "0")])
    with answering(sumo, switch, wire.message([status(wire.SET_TL)])):
        link.switch_program("X", "0")


@pytest.mark.parametrize(
    ("answer", "error"), [(status(wire.GET_TL, 0xFF, "not today"), CommandRejected), (b"nonsense", SumoConnectionLost)]
)
def test_states_that_cannot_be_read_are_told_as_numbers_are(ends, answer, error):
    link, sumo = ends
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]) + wire.message([answer]))
    link.read(("TL",))
    with pytest.raises(error):
        link.shown()


def test_after_a_refusal_the_next_answer_is_that_to_the_next_question(ends):
    link, sumo = ends
    link.advance(5.0)
    refused = wire.message([status(wire.SIMSTEP, 0xFF, "not today")])
    sumo.sendall(refused + wire.message([numbers([0, 0])]) + wire.message([state_answer([("X", "Gr")])]))
    with pytest.raises(CommandRejected, match="not today"):
        link.read(("TL",))
    sumo.sendall(wire.message([status(wire.SET_TL, 0xFF, "no such program")]))
    with pytest.raises(CommandRejected, match="no such program"):
        link.switch_program("X", "0")


@pytest.mark.parametrize("answer", [b"\0\0\0\3", wire.message([b"nonsense"]) + STEPPED, STEPPED + wire.message([b"more"])])
def test_what_is_no_traci_ends_the_connection(ends, answer):
    link, sumo = ends
    link.advance(5.0)
    sumo.sendall(answer)
    with pytest.raises(SumoConnectionLost):
        link.read(("TL",))


def test_who_waits_for_sumo_looks_up_every_second_whether_to_go_on(ends):
    link, sumo = ends
    messages = link._messages
    poll, waits = messages._poll.poll, []

    def looked(wait_ms):
        waits.append(wait_ms)
        if len(waits) < 3:
            return []
        sumo.sendall(STEPPED + wire.message([numbers([3, 4]) + state_answer([("X", "Gr")])]))
        return poll(wait_ms)

    messages._poll = SimpleNamespace(poll=looked, modify=messages._poll.modify)
    messages._abort_requested = lambda: len(waits) == 3
    link.advance(5.0)
    assert link.read(("TL",)).time_s == 5.0 and waits == [1000] * 3
    waits.clear()
    messages._abort_requested = lambda: True
    with pytest.raises(WaitAborted):
        link.read(("TL",))
    assert waits == [1000]


def test_answers_that_were_not_waited_for_are_not_taken_for_those_that_follow(ends):
    link, sumo = ends
    messages = link._messages
    poll, messages._poll = messages._poll, SimpleNamespace(poll=lambda wait_ms: [], modify=lambda *args: None)
    messages._abort_requested = lambda: True
    link.advance(5.0)
    with pytest.raises(WaitAborted):
        link.read(("TL",))
    with pytest.raises(WaitAborted):
        link.switch_program("X", "0")
    messages._poll = poll
    late = STEPPED + wire.message([numbers([3, 4])]) + wire.message([state_answer([("X", "Gr")])])
    sumo.sendall(late + wire.message([status(wire.SET_TL)]))
    for program in "12":
        sumo.sendall(wire.message([status(wire.SET_TL, 0xFF, f"no program {program}")]))
        with pytest.raises(CommandRejected, match=f"no program {program}"):
            link.switch_program("X", program)


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_link_that_was_abandoned_while_states_were_due_is_closed_all_the_same(ends, goodbye):
    link, sumo = ends
    link.advance(5.0)
    sumo.sendall(STEPPED + wire.message([numbers([3, 4])]))
    link.read(("TL",))
    if goodbye:
        with answering(sumo, wire.message([wire.command(wire.CLOSE, b"")]), wire.ok(wire.CLOSE), goes=True):
            link.abandon([("X", "0")])
    else:
        sumo.close()
        link.abandon([("X", "0")])
    link.close()
    with pytest.raises(SumoConnectionLost):
        link.shown()
