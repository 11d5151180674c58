"""The relay: whole messages in order, however they are split; no answer of SUMO outstanding after a controller."""

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
from controller.sumo.connection import Interrupts, SumoConnectionLost
from controller.sumo.messages import MessageStream
from controller.sumo.programs import StderrReader
from controller.sumo.wire import MessageSplitter

VERSION = wire.version_answer(21, "SUMO of the test behind a guard")
STEP = wire.message([wire.step(7.0)])
CLOSE = wire.message([wire.command(wire.CLOSE, b"")])


class Sumo:
    """Fake SUMO: answers the n-th message with n."""

    def __init__(self, end):
        self.end, self.received = end, []
        self.thread = threading.Thread(target=self._answer, daemon=True)
        self.thread.start()

    def _answer(self):
        splitter = MessageSplitter()
        with contextlib.suppress(OSError):
            while data := self.end.recv(3):  # in small pieces
                for message in splitter.feed(data):
                    self.received.append(message)
                    self.end.sendall(wire.message([struct.pack("!i", len(self.received))]))


@contextlib.contextmanager
def relay(watchdog_s=60.0, stopped=lambda: False, answers=True, wrap=lambda listener: listener, **more):
    """Yield (relay, controller, fake SUMO, SUMO's end at the relay, SUMO's own end); `made.address`: of its
    listener."""
    ours, controller = socket.socketpair()
    upstream, end = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sumo = Sumo(end) if answers else None
        made = Relay(ours, upstream, wrap(listener), VERSION, watchdog_s, stopped, **more)
        ends = []
        thread = threading.Thread(target=lambda: ends.append(made.run()))
        thread.start()
        made.address = listener.getsockname()
        made.wait_for_end = lambda timeout_s: (thread.join(timeout_s), ends)[1]
        made.test_end = lambda: made.wait_for_end(20)
        try:
            yield made, controller, sumo, upstream, end
        finally:
            controller.close()
            end.close()
            thread.join(20)
            upstream.close()
            assert not thread.is_alive()


def messages(sock, count):
    splitter, received = MessageSplitter(), []
    sock.settimeout(10)
    while len(received) < count:
        received += splitter.feed(sock.recv(1 << 16))
    return received


ANSWERED_BY_GUARD = {
    "version": wire.message([wire.command(wire.GETVERSION, b"")]),
    "handover": wire.message([wire.command(wire.HANDOVER, b"[]")]),
}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["step", "version", "handover"]), max_size=12), st.integers(1, 50))
def test_answers_follow_the_order_of_requests_of_both_kinds(kinds, piece):
    with relay() as (_, controller, sumo, _, _):
        stream = b"".join(ANSWERED_BY_GUARD.get(kind, STEP) for kind in kinds)
        for at in range(0, len(stream), piece):
            controller.sendall(stream[at : at + piece])
        received = messages(controller, len(kinds))
        numbers = itertools.count(1)
        expected = {"version": VERSION, "handover": wire.ok(wire.HANDOVER)}
        assert received == [expected.get(kind) or wire.message([struct.pack("!i", next(numbers))]) for kind in kinds]
        assert sumo.received == [STEP] * kinds.count("step")


def test_close_is_answered_after_earlier_requests_and_not_forwarded():
    with relay() as (made, controller, sumo, _, _):
        controller.sendall(STEP + CLOSE)
        assert len(messages(controller, 2)) == 2
        assert made.test_end() == [End.CLOSED] and sumo.received == [STEP]


@pytest.mark.parametrize("cut", [1, 5, len(STEP) - 1])
def test_incomplete_message_never_reaches_sumo(cut):
    with relay() as (made, controller, sumo, upstream, _):
        controller.sendall(STEP * 3 + STEP[:cut])
        controller.close()  # its answers are unread
        assert made.test_end() == [End.LOST]
        assert sumo.received == [STEP] * 3
        upstream.setblocking(False)
        with pytest.raises(BlockingIOError):
            upstream.recv(1)


def test_silent_controller_is_cut_off_unless_it_waits_for_sumo():
    now = [0.0]
    with relay(watchdog_s=5, clock=lambda: now[0], answers=False) as (made, controller, _, _, end):
        controller.sendall(STEP)
        assert end.recv(100) == STEP
        now[0] = 1000.0
        controller.settimeout(1.2)
        with pytest.raises(TimeoutError):
            controller.recv(1)  # the controller waits for SUMO's answer, so it is not silent
        end.sendall(wire.message([b"answer"]))
        assert messages(controller, 1)
        now[0] = 2000.0
        assert made.test_end() == [End.HUNG]
        assert controller.recv(1) == b""


def test_malformed_message_ends_the_controllers_connection_only():
    for malformed in (
        struct.pack("!i", -5),
        wire.message([]),
        wire.message([wire.command(wire.HANDOVER, b"not JSON")]),
    ):
        with relay() as (made, controller, sumo, _, _):
            controller.sendall(STEP + malformed)
            assert made.test_end() == [End.LOST] and made.error
            assert sumo.received == [STEP]


def test_second_controller_is_refused_and_one_that_is_gone_before_accept_does_not_end_the_relay():
    class Aborting:
        def __init__(self, listener):
            self.listener, self.fileno, self.accepted = listener, listener.fileno, 0

        def accept(self):
            self.accepted += 1
            connection = self.listener.accept()
            if self.accepted == 1:
                connection[0].close()
                raise ConnectionAbortedError("gone")
            return connection

    with relay(wrap=Aborting) as (made, controller, _, _, _):
        for _ in range(2):
            with socket.create_connection(made.address) as client:
                client.settimeout(10)
                assert client.recv(1) == b""
        controller.sendall(STEP)
        assert messages(controller, 1)


def test_controller_gets_the_reason_for_the_end_of_sumo():
    with relay(answers=False, sumo_error=lambda: "Error: no route") as (made, controller, _, _, end):
        stream = MessageStream(controller, StderrReader(None), Interrupts())
        stream.queue(STEP)
        stream.send()
        end.recv(100)
        end.close()
        with pytest.raises(SumoConnectionLost, match=r"^Error: no route$"):
            next(stream.answers(1))
        controller.close()
        assert made.test_end() == [End.SUMO_GONE]


def test_a_stop_ends_the_wait_for_a_sumo_that_answers_nobody(monkeypatch):
    """Without a stop the guard waits: SUMO may wait for another client."""
    monkeypatch.setattr("controller.guard.relay.DRAIN_TIMEOUT_S", 0.1)
    monkeypatch.setattr("controller.guard.relay.DRAIN_POLL_S", 0.05)
    is_stopped = threading.Event()
    with relay(answers=False, stopped=is_stopped.is_set) as (made, controller, _, _, end):
        controller.sendall(STEP)
        end.recv(100)
        controller.close()
        assert made.wait_for_end(0.5) == []
        is_stopped.set()
        assert made.wait_for_end(20) == [End.SUMO_GONE]


def test_reset_by_sumo_while_sending_ends_the_relay():
    with relay(answers=False) as (made, controller, _, _, end):
        for _ in range(200):
            controller.sendall(STEP * 1000)  # more than the socket buffers take, so the relay is still sending
        end.close()
        controller.settimeout(5)
        with contextlib.suppress(OSError):
            controller.sendall(STEP)
        assert made.test_end() == [End.SUMO_GONE]


def test_relay_beats_while_the_controller_waits_for_sumo(monkeypatch):
    """SUMO may wait minutes for another client; a liveness probe must not end the guard meanwhile."""
    monkeypatch.setattr("controller.guard.relay.DRAIN_POLL_S", 0.05)
    beats, is_stopped = [], threading.Event()

    def beat():
        beats.extend([None] * is_stopped.is_set())
        if len(beats) == 3:
            end.sendall(wire.message([bytes(4)]))  # SUMO's answer

    with relay(answers=False, stopped=is_stopped.is_set, beat=beat) as (made, controller, _, _, end):
        controller.sendall(STEP)
        assert end.recv(100) == STEP
        is_stopped.set()
        assert made.test_end() == [End.STOPPED] and len(beats) >= 3
