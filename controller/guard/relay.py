"""Forward complete TraCI messages between a controller and SUMO.

The guard answers four commands itself: GETVERSION, with its suffix; SETORDER, because
its own order among SUMO's clients is set already; HANDOVER, to keep the plans; and
CLOSE, because the controller's signals may not run their own programs yet.
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
"""Wall time between two checks of the watchdog and of the stop flag."""
MAX_RECEIVE_BYTES = 1 << 18
DRAIN_POLL_S = 1.0
"""Wall time between two checks while SUMO finishes its answers."""
DRAIN_TIMEOUT_S = 10.0
"""Wall time for which SUMO may be silent after a stop, while answers of it are outstanding."""
END_TIMEOUT_S = 2.0
"""Wall time within which the controller takes the reason for SUMO's end."""


class End(Enum):
    """Why a relay ended."""

    CLOSED = "closed"
    LOST = "lost"
    HUNG = "hung"
    STOPPED = "stopped"
    SUMO_GONE = "SUMO gone"


class Relay:
    """The connection of one controller, from its first message to its end."""

    def __init__(
        self,
        controller: socket.socket,
        sumo: socket.socket,
        listener: socket.socket,
        version: bytes,
        watchdog_s: float,
        is_stopped: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        beat: Callable[[], None] = lambda: None,
        sumo_error: Callable[[], str] = lambda: "",
    ) -> None:
        """Prepare to forward.

        Args:
            controller: the connection to the controller.
            sumo: the connection to SUMO.
            listener: the listening socket; further controllers are refused.
            version: the complete answer to GETVERSION.
            watchdog_s: wall time for which the controller may be silent.
            is_stopped: whether to end now.
            clock: wall time in s.
            beat: called at least every POLL_INTERVAL_S, or every second while SUMO finishes its answers.
            sumo_error: SUMO's error text after it has ended, or "".
        """
        self._sumo_error = sumo_error
        self._beat = beat
        self._controller = controller
        self._sumo = sumo
        self._listener = listener
        self._version = version
        self._watchdog_s = watchdog_s
        self._is_stopped = is_stopped
        self._clock = clock
        self._to_sumo, self._to_controller = bytearray(), bytearray()
        self._requests, self._answers = MessageSplitter(), MessageSplitter()
        self._pending_answers: deque[bytes | None] = deque()
        """Answers that the controller waits for, in order; None for an answer of SUMO."""
        self._is_closing = False
        self.handovers: list[handover.SignalHandover] | None = None
        """The registered plans; None if the controller has registered none, so that it controls no signal."""
        self.error = ""
        """The error of the controller's malformed message, if it sent one."""

    def run(self) -> End:
        """Forward messages until the end. Then no answer of SUMO is outstanding, unless its connection is lost."""
        for connection in (self._controller, self._sumo):
            connection.setblocking(False)
        end = self._run()
        if end is End.SUMO_GONE and (reason := self._sumo_error()):
            self._send_last(wire.message([wire.ENDED + reason.encode()]))
        self._controller.close()
        if end in (End.LOST, End.HUNG, End.STOPPED) and not self._drain_sumo():
            end = End.SUMO_GONE
        self._sumo.setblocking(True)
        if self._is_closing and end is End.LOST:
            return End.CLOSED  # it sent CLOSE and did not wait for the answer
        return end

    def _run(self) -> End:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        active_s = self._clock()
        while not self._is_stopped():
            self._beat()
            poll.register(self._controller, select.POLLIN | (select.POLLOUT if self._to_controller else 0))
            poll.register(self._sumo, select.POLLIN | (select.POLLOUT if self._to_sumo else 0))
            for file, event in poll.poll(1000 * POLL_INTERVAL_S):
                if file == self._listener.fileno():
                    # one controller at a time; the new client may have closed its connection already
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
            if self._is_closing and not self._pending_answers and not self._to_controller:
                return End.CLOSED
            # a controller may be silent while it waits for SUMO, which may wait for its other clients
            if None not in self._pending_answers and self._clock() - active_s > self._watchdog_s:
                return End.HUNG
        return End.STOPPED

    def _receive_controller(self, event: int) -> bool:
        """Receive requests; return False if the controller has closed the connection."""
        try:
            if event & select.POLLOUT:
                del self._to_controller[: self._controller.send(self._to_controller)]
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._controller.recv(MAX_RECEIVE_BYTES)
                for message in self._requests.feed(data):
                    self._handle(message)
                if not data:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._flush_own_answers()
        _send(self._sumo, self._to_sumo)
        return True

    def _handle(self, message: bytes) -> None:
        """Answer a request, or forward it to SUMO. Raises MalformedMessage."""
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
            self._is_closing |= identifier == wire.CLOSE
            self._pending_answers.append(self._version if identifier == wire.GETVERSION else wire.ok(identifier))
            return
        self._to_sumo += message
        self._pending_answers.append(None)

    def _receive_sumo(self, event: int) -> bool:
        """Receive answers; return False if SUMO has closed the connection."""
        try:
            if event & select.POLLOUT:
                _send(self._sumo, self._to_sumo)
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._sumo.recv(MAX_RECEIVE_BYTES)
                if not data:
                    return False
                for message in self._answers.feed(data):
                    self._pending_answers.popleft()
                    self._to_controller += message
                    self._flush_own_answers()
        except BlockingIOError:
            return True
        except (OSError, IndexError):
            return False
        return True

    def _flush_own_answers(self) -> None:
        """Send the guard's own answers that are next in order."""
        while self._pending_answers and self._pending_answers[0] is not None:
            self._to_controller += self._pending_answers.popleft() or b""
        _send(self._controller, self._to_controller)

    def _send_last(self, message: bytes) -> None:
        """Send the controller a last message, and wait until it has closed its connection."""
        self._to_controller += message
        with contextlib.suppress(OSError):
            self._controller.settimeout(END_TIMEOUT_S)
            self._controller.sendall(self._to_controller)
            self._controller.shutdown(socket.SHUT_WR)
            # A socket that is closed with unread requests is reset, and the controller might lose the text.
            while self._controller.recv(MAX_RECEIVE_BYTES):
                pass

    def _drain_sumo(self) -> bool:
        """Finish the exchange with SUMO: send messages completely and receive all answers.

        False if the connection is lost, or SUMO answers nothing for DRAIN_TIMEOUT_S after a stop.
        """
        poll = select.poll()
        answered_s = self._clock()
        while self._to_sumo or None in self._pending_answers or not self._answers.is_between:
            self._beat()
            if not self._is_stopped():
                answered_s = self._clock()
            elif self._clock() - answered_s > DRAIN_TIMEOUT_S:
                return False
            poll.register(self._sumo, select.POLLIN | (select.POLLOUT if self._to_sumo else 0))
            for _, event in poll.poll(1000 * DRAIN_POLL_S):
                answered_s = self._clock()
                try:
                    if not self._receive_sumo(event):
                        return False
                except wire.MalformedMessage:
                    return False
        return True


def _send(connection: socket.socket, unsent: bytearray) -> None:
    """Send without waiting; bytes that are not sent stay in `unsent`."""
    if unsent:
        # the next receive reports a lost connection
        with contextlib.suppress(OSError):
            del unsent[: connection.send(unsent)]
