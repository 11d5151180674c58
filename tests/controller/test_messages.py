"""Messages over a socket pair."""

import socket
import threading

import pytest

from controller.sumo import wire
from controller.sumo.link import SumoConnectionLost
from controller.sumo.messages import Messages
from controller.sumo.programs import StderrReader


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Messages(ours, StderrReader(None), lambda: False), theirs


def test_what_is_posted_goes_out_with_the_next_send_or_before_an_answer_is_waited_for(ends):
    messages, sumo = ends
    messages.post(b"one, ")
    messages.post(b"two")
    messages.send()
    assert sumo.recv(100) == b"one, two"
    messages.post(b"three")
    sumo.sendall(wire.message([b"answer"]))
    assert list(messages.answers(1)) == [b"answer"]
    assert sumo.recv(100) == b"three"


def test_more_than_the_socket_takes_goes_out_while_the_answer_is_waited_for(ends):
    messages, sumo = ends
    sumo.setblocking(False)
    large, taken = bytes(1 << 22), 0
    messages.post(large)
    messages.send()
    poll = messages._poll

    class Poll:
        """SUMO takes some, and answers once it has all."""

        def poll(self, wait_ms):
            nonlocal taken
            taken += len(sumo.recv(1 << 20))
            if taken == len(large):
                sumo.send(wire.message([b"answer"]))
            return poll.poll(wait_ms)

        def modify(self, *args):
            poll.modify(*args)

    messages._poll = Poll()
    assert list(messages.answers(1)) == [b"answer"]


def test_answers_come_whole_however_they_are_cut(ends):
    messages, sumo = ends
    told = wire.message([b"first"]) + wire.message([]) + wire.message([b"third"])
    answers = messages.answers(3)
    for k in range(len(told)):
        sumo.sendall(told[k : k + 1])
        messages._exchange()
    assert list(answers) == [b"first", b"", b"third"]


def test_the_last_message_goes_behind_what_was_begun(ends):
    messages, sumo = ends
    messages.post(b"begun, ")
    assert not messages.end(b"last", 0.0), "nobody has answered"
    assert sumo.recv(100) == b"begun, last"


def test_the_end_is_waited_for_behind_every_answer_and_told(ends):
    messages, sumo = ends
    old = wire.message([bytes(1 << 19)])

    def serve():
        assert sumo.recv(100) == b"last"
        sumo.sendall(old + old)
        sumo.sendall(wire.ok(wire.CLOSE))
        sumo.shutdown(socket.SHUT_WR)
        told.append(sumo.recv(100))

    told = []
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert messages.end(b"last", 10.0)
    thread.join(10)
    assert told == [b""], "an answer was left unread"


def test_a_connection_that_has_ended_is_told_by_what_is_sent_or_waited_for(ends):
    messages, sumo = ends
    sumo.close()
    with pytest.raises(SumoConnectionLost):
        list(messages.answers(1))
    messages.post(b"more")
    with pytest.raises(SumoConnectionLost):
        messages.send()
        messages.send()
    assert not messages.end(b"last", 10.0)


def test_a_message_of_no_size_ends_the_connection(ends):
    messages, sumo = ends
    sumo.sendall(b"\0\0\0\3")
    with pytest.raises(SumoConnectionLost, match="a message of 3 bytes"):
        list(messages.answers(1))
