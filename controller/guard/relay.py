"""Forwarding TraCI messages between a controller and SUMO, whole ones only.

The guard answers a few messages itself: the version, to which it adds its own mark;
the order among SUMO's clients, which it has already; the handover plans, which it
keeps; and the close, because a controller that leaves may leave signals that are
not on their plans.
"""

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

from controller.guard import handover
from controller.sumo import wire
from controller.sumo.wire import MessageSplitter

POLL_INTERVAL_S = 0.5
"""Wall time between two looks at the clock and at the stop flag."""
CHUNK_BYTES = 1 << 18


class End(Enum):
    """Why a relay ended."""

    CLOSED = "closed"
    LOST = "lost"
    HUNG = "hung"
    STOPPED = "stopped"
    SUMO_GONE = "SUMO gone"


class Relay:
    """One controller's connection, from its first message to its end."""

    def __init__(
        self,
        controller: socket.socket,
        sumo: socket.socket,
        listener: socket.socket,
        version: bytes,
        watchdog_s: float,
        stopped: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`version`: the answer to GETVERSION. `watchdog_s`: wall time for which a controller may be silent."""
        self._controller, self._sumo, self._listener = controller, sumo, listener
        self._version, self._watchdog_s, self._stopped, self._clock = version, watchdog_s, stopped, clock
        self._to_sumo, self._to_controller = bytearray(), bytearray()
        self._requests, self._answers = MessageSplitter(), MessageSplitter()
        self._due: deque[bytes | None] = deque()
        """The answers that the controller waits for, in order; None: SUMO gives it."""
        self._closing = False
        self.handovers: list[handover.SignalHandover] | None = None
        """None: no plans were registered, so no signal is this controller's."""
        self.error = ""
        """What was wrong with the controller's message."""

    def run(self) -> End:
        """Forward messages until the end; afterwards no answer of SUMO is outstanding, unless it is gone."""
        for connection in (self._controller, self._sumo):
            connection.setblocking(False)
        end = self._run()
        self._controller.close()
        if end in (End.LOST, End.HUNG, End.STOPPED) and not self._settle():
            end = End.SUMO_GONE
        self._sumo.setblocking(True)
        if self._closing and end is End.LOST:
            return End.CLOSED  # it sent CLOSE and did not wait for the answer
        return end

    def _run(self) -> End:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        active_s = self._clock()
        while not self._stopped():
            poll.register(self._controller, select.POLLIN | (select.POLLOUT if self._to_controller else 0))
            poll.register(self._sumo, select.POLLIN | (select.POLLOUT if self._to_sumo else 0))
            for file, event in poll.poll(1000 * POLL_INTERVAL_S):
                if file == self._listener.fileno():
                    # one controller at a time; this one may have gone again already
                    with contextlib.suppress(OSError):
                        self._listener.accept()[0].close()
                    continue
                active_s = self._clock()
                try:
                    if file == self._controller.fileno():
                        if not self._receive_controller(event):
                            return End.LOST
                    elif not self._receive_sumo(event):
                        return End.SUMO_GONE
                except wire.MalformedMessage as error:
                    if file == self._sumo.fileno():
                        return End.SUMO_GONE
                    self.error = str(error)
                    return End.LOST
            if self._closing and not self._due and not self._to_controller:
                return End.CLOSED
            # a controller may be silent while it waits for SUMO, which may wait for its other clients
            if None not in self._due and self._clock() - active_s > self._watchdog_s:
                return End.HUNG
        return End.STOPPED

    def _receive_controller(self, event: int) -> bool:
        """False if it has gone."""
        try:
            if event & select.POLLOUT:
                del self._to_controller[: self._controller.send(self._to_controller)]
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._controller.recv(CHUNK_BYTES)
                for message in self._requests.feed(data):
                    self._take(message)
                if not data:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._flush_own_answers()
        self._send_sumo()
        return True

    def _take(self, message: bytes) -> None:
        try:
            begin = 5 if message[4] else 9
            identifier = message[begin]
        except IndexError:
            raise wire.MalformedMessage("a message without a command") from None
        if identifier in (wire.GETVERSION, wire.SETORDER, wire.HANDOVER, wire.CLOSE):
            if identifier == wire.HANDOVER:
                try:
                    self.handovers = handover.decode(message[begin + 1 :])
                except handover.MalformedHandover as error:
                    raise wire.MalformedMessage(str(error)) from None
            self._closing |= identifier == wire.CLOSE
            self._due.append(self._version if identifier == wire.GETVERSION else wire.ok(identifier))
            return
        self._to_sumo += message
        self._due.append(None)

    def _receive_sumo(self, event: int) -> bool:
        """False if it has gone."""
        try:
            if event & select.POLLOUT:
                self._send_sumo()
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._sumo.recv(CHUNK_BYTES)
                if not data:
                    return False
                for message in self._answers.feed(data):
                    self._due.popleft()
                    self._to_controller += message
                    self._flush_own_answers()
        except BlockingIOError:
            return True
        except (OSError, IndexError):
            return False
        self._send_controller()
        return True

    def _flush_own_answers(self) -> None:
        while self._due and self._due[0] is not None:
            self._to_controller += self._due.popleft() or b""
        self._send_controller()

    def _send_controller(self) -> None:
        """Send to the controller what its socket takes now."""
        if self._to_controller:
            try:
                del self._to_controller[: self._controller.send(self._to_controller)]
            except OSError:
                return  # the next read notices that it has gone

    def _send_sumo(self) -> None:
        """Send to SUMO what its socket takes now."""
        if self._to_sumo:
            try:
                del self._to_sumo[: self._sumo.send(self._to_sumo)]
            except OSError:
                return  # the next read notices that it has gone

    def _settle(self) -> bool:
        """Finish the exchange with SUMO: nothing half sent, no answer outstanding. False if it has gone."""
        poll = select.poll()
        while self._to_sumo or None in self._due or not self._answers.is_between:
            poll.register(self._sumo, select.POLLIN | (select.POLLOUT if self._to_sumo else 0))
            for _, event in poll.poll(1000):
                try:
                    if not self._receive_sumo(event):
                        return False
                except wire.MalformedMessage:
                    return False
        return True
