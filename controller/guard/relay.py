"""Passing TraCI messages between a controller and SUMO, whole ones only.

A few messages are for the guard itself: it tells its version beside SUMO's,
has its place among SUMO's clients already, keeps the will, and hears a goodbye:
that the controller goes is no word on whether its signals are on their plans.
"""

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

from controller.guard import will
from controller.sumo import wire
from controller.sumo.wire import Frames

LOOK_S = 0.5
"""Wall time between two looks at the clock and at the signals that end the guard."""
CHUNK = 1 << 18


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
        """`version`: the answer to who asks for SUMO's version. `watchdog_s`: wall time a controller may be silent for."""
        self._controller, self._sumo, self._listener = controller, sumo, listener
        self._version, self._watchdog_s, self._stopped, self._clock = version, watchdog_s, stopped, clock
        self._to_sumo, self._to_controller = bytearray(), bytearray()
        self._asked, self._answered = Frames(), Frames()
        self._due: deque[bytes | None] = deque()
        """The answers that the controller waits for, in order: None is SUMO's to give."""
        self._closing = False
        self.will: list[will.Bequest] | None = None
        """None: none was left, so no signal is this controller's."""
        self.why = ""
        """What was wrong with what the controller sent."""

    def run(self) -> End:
        """Pass messages on until an end; afterwards SUMO owes no answer, unless it is gone."""
        for one in (self._controller, self._sumo):
            one.setblocking(False)
        end = self._run()
        self._controller.close()
        if end in (End.LOST, End.HUNG, End.STOPPED) and not self._settle():
            end = End.SUMO_GONE
        self._sumo.setblocking(True)
        if self._closing and end is End.LOST:
            return End.CLOSED  # it has said goodbye and did not wait for the answer
        return end

    def _run(self) -> End:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        heard_s = self._clock()
        while not self._stopped():
            poll.register(self._controller, select.POLLIN | (select.POLLOUT if self._to_controller else 0))
            poll.register(self._sumo, select.POLLIN | (select.POLLOUT if self._to_sumo else 0))
            for file, event in poll.poll(1000 * LOOK_S):
                if file == self._listener.fileno():
                    # there is one controller at a time; who has gone again before it is let in was none
                    with contextlib.suppress(OSError):
                        self._listener.accept()[0].close()
                    continue
                heard_s = self._clock()
                try:
                    if file == self._controller.fileno():
                        if not self._hear_controller(event):
                            return End.LOST
                    elif not self._hear_sumo(event):
                        return End.SUMO_GONE
                except wire.Garbled as error:
                    if file == self._sumo.fileno():
                        return End.SUMO_GONE
                    self.why = str(error)
                    return End.LOST
            if self._closing and not self._due and not self._to_controller:
                return End.CLOSED
            # while SUMO thinks, or waits for its other clients, the controller may well be silent
            if None not in self._due and self._clock() - heard_s > self._watchdog_s:
                return End.HUNG
        return End.STOPPED

    def _hear_controller(self, event: int) -> bool:
        """False where it has gone."""
        try:
            if event & select.POLLOUT:
                del self._to_controller[: self._controller.send(self._to_controller)]
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._controller.recv(CHUNK)
                for message in self._asked.feed(data):
                    self._take(message)
                if not data:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._flush_own()
        self._push()
        return True

    def _take(self, message: bytes) -> None:
        try:
            begin = 5 if message[4] else 9
            identifier = message[begin]
        except IndexError:
            raise wire.Garbled("a message without a command") from None
        if identifier in (wire.GETVERSION, wire.SETORDER, wire.WILL, wire.CLOSE):
            if identifier == wire.WILL:
                try:
                    self.will = will.read(message[begin + 1 :])
                except will.BadWill as error:
                    raise wire.Garbled(str(error)) from None
            self._closing |= identifier == wire.CLOSE
            self._due.append(self._version if identifier == wire.GETVERSION else wire.ok(identifier))
            return
        self._to_sumo += message
        self._due.append(None)

    def _hear_sumo(self, event: int) -> bool:
        """False where it has gone."""
        try:
            if event & select.POLLOUT:
                self._push()
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._sumo.recv(CHUNK)
                if not data:
                    return False
                for message in self._answered.feed(data):
                    self._due.popleft()
                    self._to_controller += message
                    self._flush_own()
        except BlockingIOError:
            return True
        except (OSError, IndexError):
            return False
        self._pull()
        return True

    def _flush_own(self) -> None:
        while self._due and self._due[0] is not None:
            self._to_controller += self._due.popleft() or b""
        self._pull()

    def _pull(self) -> None:
        """To the controller, as much as goes now."""
        if self._to_controller:
            try:
                del self._to_controller[: self._controller.send(self._to_controller)]
            except OSError:
                return  # that it has gone is heard where it is read

    def _push(self) -> None:
        """To SUMO, as much as goes now."""
        if self._to_sumo:
            try:
                del self._to_sumo[: self._sumo.send(self._to_sumo)]
            except OSError:
                return  # that it has gone is heard where it is read

    def _settle(self) -> bool:
        """Bring what was begun with SUMO to its end: nothing half sent, no answer left. False where it has gone."""
        poll = select.poll()
        while self._to_sumo or None in self._due or not self._answered.is_between:
            poll.register(self._sumo, select.POLLIN | (select.POLLOUT if self._to_sumo else 0))
            for _, event in poll.poll(1000):
                try:
                    if not self._hear_sumo(event):
                        return False
                except wire.Garbled:
                    return False
        return True
