"""TraCI messages over a socket pair."""

import itertools
import socket
import threading

import pytest

from controller.sumo import wire
from controller.sumo.connection import Interrupts, SumoConnectionLost
from controller.sumo.messages import MessageStream
from controller.sumo.programs import StderrReader


class Requests:
    """An operator who requests an abort, or to quit after some checks; counts the checks."""

    def __init__(self, aborts=False, quits_after=0):
        self.aborts, self.quits_after, self.checks = aborts, quits_after, 0

    def quit_requested(self):
        self.checks += 1
        return 0 < self.quits_after <= self.checks

    def interrupts(self):
        return Interrupts(lambda: self.aborts, self.quit_requested)


@pytest.fixture
def ends(sockets):
    ours, theirs = sockets
    return MessageStream(ours, StderrReader(None), Interrupts()), theirs


def test_posted_messages_go_out_with_send_or_before_a_wait(ends):
    messages, sumo = ends
    messages.queue(b"first, ")
    messages.queue(b"second")
    messages.send()
    assert sumo.recv(100) == b"first, second"
    messages.queue(b"three")
    sumo.sendall(wire.message([b"answer"]))
    assert list(messages.answers(1)) == [b"answer"]
    assert sumo.recv(100) == b"three"


def test_large_message_is_sent_while_waiting_for_the_answer(ends):
    messages, sumo = ends
    large = bytes(1 << 22)
    messages.queue(large)
    messages.send()

    def serve():
        """SUMO receives in parts, and answers once it has everything."""
        taken = 0
        while taken < len(large):
            taken += len(sumo.recv(1 << 20))
        sumo.sendall(wire.message([b"answer"]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert list(messages.answers(1)) == [b"answer"]
    thread.join(10)


def test_end_reads_every_answer_until_sumo_closes(ends):
    messages, sumo = ends
    old = wire.message([bytes(1 << 19)])

    def serve():
        assert sumo.recv(100) == b"last"
        sumo.sendall(old + old)
        sumo.sendall(wire.ok(wire.CLOSE))
        sumo.shutdown(socket.SHUT_WR)
        after_close.append(sumo.recv(100))

    after_close = []
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert messages.end(b"last")
    thread.join(10)
    assert after_close == [b""], "an answer was not read"


def test_lost_connection_is_reported_by_send_and_wait(ends):
    messages, sumo = ends
    sumo.close()
    with pytest.raises(SumoConnectionLost):
        list(messages.answers(1))
    messages.queue(b"more")
    with pytest.raises(SumoConnectionLost):
        messages.send()
        messages.send()
    assert not messages.end(b"last")


def test_end_waits_for_a_silent_sumo_until_quit_is_requested(sockets, quick_polls, caplog):
    ours, sumo = sockets
    requests = Requests(aborts=True, quits_after=50)
    clock = itertools.count(0, 1000)  # 1000 s of silence between two checks
    assert not MessageStream(ours, StderrReader(None), requests.interrupts(), lambda: next(clock)).end(b"last")
    assert requests.checks == 50, "neither an abort nor any time of silence ends the wait"
    assert "leaving now would end the simulation for its other clients" in caplog.text
    assert sumo.recv(100) == b"last" and sumo.recv(100) == b""


def test_end_without_wait_does_not_wait_for_sumo(sockets):
    ours, sumo = sockets
    requests = Requests(aborts=True, quits_after=1)
    messages = MessageStream(ours, StderrReader(None), requests.interrupts())
    messages.queue(b"begun, ")
    assert not messages.end(b"last", wait=False)
    assert requests.checks == 0 and sumo.recv(100) == b"begun, last" and sumo.recv(100) == b""


def test_silence_of_sumo_is_logged_every_30_s_until_it_answers(sockets, quick_polls, caplog):
    ours, theirs = sockets
    times = iter(range(0, 200, 10))

    def clock():
        now = next(times)
        if now == 70:
            theirs.sendall(wire.message([b"answer"]))
        return now

    assert list(MessageStream(ours, StderrReader(None), Interrupts(), clock).answers(1)) == [b"answer"]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines] == [
        "SUMO has been silent for 30 s",
        "SUMO has been silent for 60 s",
    ]
    assert "half-open" in lines[0]


def test_a_closed_connection_is_noticed_without_a_request_and_bytes_that_have_arrived_stay(ends):
    messages, sumo = ends
    messages.check_open()
    sumo.sendall(wire.message([b"answer"]))
    messages.check_open()
    assert list(messages.answers(1)) == [b"answer"]
    sumo.close()
    with pytest.raises(SumoConnectionLost, match="SUMO has closed the connection"):
        messages.check_open()
