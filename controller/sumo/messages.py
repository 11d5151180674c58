"""TraCI messages over a socket: requests are sent without waiting, answers are received in order."""

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from controller.sumo.connection import Interrupts, SumoConnectionLost, WaitAborted
from controller.sumo.programs import StderrReader
from controller.sumo.wire import ENDED, MalformedMessage, MessageSplitter

log = logging.getLogger("controller")

POLL_INTERVAL_S = 1.0
"""Wall time between two checks of the operator's requests, while SUMO is silent."""
SILENCE_LOG_INTERVAL_S = 30.0
"""Wall time between two warnings that SUMO is silent."""


class MessageStream:
    """Sends and receives complete messages."""

    def __init__(
        self,
        connection: socket.socket,
        stderr: StderrReader,
        interrupts: Interrupts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = connection
        self._stderr = stderr
        self._interrupts = interrupts
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._outgoing = bytearray()
        """Bytes that are not sent yet."""
        self._incoming = MessageSplitter()
        self._arrived: deque[bytes] = deque()
        self._end_reason = ""
        """SUMO's error text that a guard has sent."""
        self._silence = _Silence(clock)

    def queue(self, message: bytes) -> None:
        """Queue a message for the next `send` or wait for an answer."""
        self._outgoing += message

    def send(self) -> None:
        """Send without waiting; bytes that the socket buffer does not take are sent later. Raises
        SumoConnectionLost."""
        try:
            del self._outgoing[: self.socket.send(self._outgoing, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None

    def answers(self, count: int) -> Iterator[bytes]:
        """Yield the next `count` answers in order, each as soon as it has arrived, without its length.

        Raises SumoConnectionLost or WaitAborted.
        """
        for _ in range(count):
            while not self._arrived:
                self._exchange()
            yield self._arrived.popleft()[4:]

    def _exchange(self) -> None:
        """Send or receive, whichever is possible: SUMO may not read requests before its answers are read."""
        if self._outgoing:
            self.send()
        try:
            self._poll.modify(self.socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            if not self._poll.poll(1000 * POLL_INTERVAL_S):
                # SUMO may wait for another client, and ends for all clients if this one closes its socket
                if self._interrupts.abort_requested():
                    raise WaitAborted("SUMO has not answered yet")
                self._silence.go_on("it computes, waits for another client, or the connection is half-open")
                return
            self._silence.end()
            data = self.socket.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:  # ValueError: the socket was closed by this process
            raise self._lost(error) from None
        if not data:
            raise self._lost()
        try:
            for message in self._incoming.feed(data):
                if message.startswith(ENDED, 4):
                    self._end_reason = message[4 + len(ENDED) :].decode(errors="replace")
                else:
                    self._arrived.append(message)
        except MalformedMessage as error:
            raise SumoConnectionLost(f"SUMO sent {error}") from None

    def check_open(self) -> None:
        """Raise SumoConnectionLost if the other side has closed the connection. Called while no answer is due."""
        try:
            is_closed = not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from None
        if is_closed:
            raise self._lost()

    def _lost(self, error: Exception | None = None) -> SumoConnectionLost:
        """The end of the connection, with SUMO's own error text if there is one."""
        ended = "SUMO has closed the connection" if error is None else f"the connection to SUMO has ended: {error}"
        return SumoConnectionLost(self._stderr.error() or self._end_reason or ended)

    def end(self, message: bytes, wait: bool = True) -> bool:
        """Send the last message, wait until SUMO closes the connection or quit is requested, and close it. Never
        raises.

        SUMO ends the simulation for all its clients if one closes before SUMO has answered,
        and it may wait minutes for another client. `wait` is False if a guard waits for it.
        Returns whether SUMO has answered.
        """
        has_answer = False
        self._silence.end()
        try:
            self.socket.settimeout(POLL_INTERVAL_S)
            outgoing = self._outgoing + message
            while outgoing or wait:
                try:
                    if outgoing:
                        del outgoing[: self.socket.send(outgoing)]
                        continue
                    if not self.socket.recv(1 << 16):
                        return has_answer
                    has_answer = True
                    self._silence.end()
                except TimeoutError:
                    if not wait or self._interrupts.quit_requested():
                        return has_answer
                    self._silence.go_on("leaving now would end the simulation for its other clients")
        except OSError:
            return has_answer  # SUMO has closed the connection already
        finally:
            self.socket.close()
        return has_answer


class _Silence:
    """Warns at intervals while SUMO is silent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: float | None = None
        """Begin of the current wait for SUMO, if it is waited for."""
        self._logged_s = 0.0

    def go_on(self, consequence: str) -> None:
        now = self._clock()
        if self._since_s is None:
            self._since_s = self._logged_s = now
        elif now - self._logged_s >= SILENCE_LOG_INTERVAL_S:
            self._logged_s = now
            log.warning("SUMO has been silent for %.0f s: %s", now - self._since_s, consequence)

    def end(self) -> None:
        """Note that SUMO has answered."""
        self._since_s = None
