"""The relay: every message whole and in order, whatever the pieces; nothing left with SUMO when a controller goes."""

import contextlib
import itertools
import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.guard.relay import End, Relay
from controller.sumo import wire
from controller.sumo.wire import MessageSplitter

VERSION = wire.version_answer(21, "SUMO of the test behind a guard")
STEP = wire.message([wire.step(7.0)])
CLOSE = wire.message([wire.command(wire.CLOSE, b"")])


class Sumo:
    """Stands for SUMO: answers the n-th message with n."""

    def __init__(self, end):
        self.end, self.heard = end, []
        self.thread = threading.Thread(target=self._answer, daemon=True)
        self.thread.start()

    def _answer(self):
        frames = MessageSplitter()
        with contextlib.suppress(OSError):
            while data := self.end.recv(3):  # in the smallest pieces
                for message in frames.feed(data):
                    self.heard.append(message)
                    self.end.sendall(wire.message([struct.pack("!i", len(self.heard))]))


@contextlib.contextmanager
def relay(watchdog_s=60.0, stopped=lambda: False, clock=None, answers=True):
    ours, controller = socket.socketpair()
    upstream, end = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sumo = Sumo(end) if answers else None
        more = {"clock": clock} if clock else {}
        made = Relay(ours, upstream, listener, VERSION, watchdog_s, stopped, **more)
        ends = []
        thread = threading.Thread(target=lambda: ends.append(made.run()))
        thread.start()
        made.test_end = lambda: (thread.join(20), ends)[1]
        try:
            yield made, controller, sumo, upstream, end
        finally:
            controller.close()
            end.close()
            thread.join(20)
            upstream.close()
            assert not thread.is_alive()


def messages(sock, count):
    frames, found = MessageSplitter(), []
    sock.settimeout(10)
    while len(found) < count:
        found += frames.feed(sock.recv(1 << 16))
    return found


OWN = {"version": wire.message([wire.command(wire.GETVERSION, b"")]), "will": wire.message([wire.command(wire.WILL, b"[]")])}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["step", "version", "will"]), max_size=12), st.integers(1, 50))
def test_answers_come_in_the_order_of_the_questions_whoever_gives_them(kinds, piece):
    with relay() as (_, controller, sumo, _, _):
        stream = b"".join(OWN.get(kind, STEP) for kind in kinds)
        for at in range(0, len(stream), piece):
            controller.sendall(stream[at : at + piece])
        found = messages(controller, len(kinds))
        numbers = itertools.count(1)
        expected = {"version": VERSION, "will": wire.ok(wire.WILL)}
        assert found == [expected.get(kind) or wire.message([struct.pack("!i", next(numbers))]) for kind in kinds]
        assert sumo.heard == [STEP] * kinds.count("step")


def test_a_goodbye_is_answered_behind_what_was_asked_and_is_not_sumos():
    with relay() as (made, controller, sumo, _, _):
        controller.sendall(STEP + CLOSE)
        assert len(messages(controller, 2)) == 2
        assert made.test_end() == [End.CLOSED] and sumo.heard == [STEP]


@pytest.mark.parametrize("cut", [1, 5, len(STEP) - 1])
def test_half_a_message_never_reaches_sumo_and_no_answer_is_left(cut):
    with relay() as (made, controller, sumo, upstream, _):
        controller.sendall(STEP * 3 + STEP[:cut])
        controller.close()  # its answers are unread
        assert made.test_end() == [End.LOST]
        assert sumo.heard == [STEP] * 3
        upstream.setblocking(False)
        with pytest.raises(BlockingIOError):
            upstream.recv(1)


def test_a_silent_controller_is_cut_off_but_not_while_sumo_thinks():
    now = [0.0]
    with relay(watchdog_s=5, clock=lambda: now[0], answers=False) as (made, controller, _, _, end):
        controller.sendall(STEP)
        assert end.recv(100) == STEP
        now[0] = 1000.0
        controller.settimeout(1.2)
        with pytest.raises(TimeoutError):
            controller.recv(1)  # SUMO has not answered: nobody is silent but SUMO
        end.sendall(wire.message([b"answer"]))
        assert messages(controller, 1)
        now[0] = 2000.0
        assert made.test_end() == [End.HUNG]
        assert controller.recv(1) == b""


def test_garbage_from_a_controller_ends_it_and_not_sumo():
    for garbage in (struct.pack("!i", -5), wire.message([]), wire.message([wire.command(wire.WILL, b"no will")])):
        with relay() as (made, controller, sumo, _, _):
            controller.sendall(STEP + garbage)
            assert made.test_end() == [End.LOST] and made.why
            assert sumo.heard == [STEP]


def test_a_second_controller_is_turned_away():
    with relay() as (made, controller, _, _, _), socket.create_connection(made._listener.getsockname()) as second:
        second.settimeout(10)
        assert second.recv(1) == b""
        controller.sendall(STEP)
        assert messages(controller, 1)


def test_a_visitor_that_has_gone_before_it_is_let_in_ends_nothing():
    class Aborted:
        def __init__(self, listener):
            self.listener, self.fileno = listener, listener.fileno

        def accept(self):
            self.listener.accept()[0].close()
            raise ConnectionAbortedError("gone")

    with relay() as (made, controller, _, _, _):
        made._listener = Aborted(made._listener)
        with socket.create_connection(made._listener.listener.getsockname()) as visitor:
            visitor.settimeout(10)
            assert visitor.recv(1) == b""
        controller.sendall(STEP)
        assert messages(controller, 1)


def test_the_end_of_sumo_ends_the_relay():
    with relay(answers=False) as (made, controller, _, _, end):
        controller.sendall(STEP)
        end.recv(100)
        end.close()
        assert made.test_end() == [End.SUMO_GONE]
        assert controller.recv(1) == b""


def test_a_sumo_that_resets_while_it_is_sent_to_ends_the_relay_too():
    with relay(answers=False) as (made, controller, _, _, end):
        for _ in range(200):
            controller.sendall(STEP * 1000)  # more than the sockets hold: the relay is sending
            if made._to_sumo:
                break
        end.close()
        controller.settimeout(5)
        with contextlib.suppress(OSError):
            controller.sendall(STEP)
        assert made.test_end() == [End.SUMO_GONE]
