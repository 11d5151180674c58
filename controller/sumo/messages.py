"""TraCI messages over a socket: sent without waiting, their answers taken in order."""

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator

from controller.sumo.link import NotWaiting, SumoGone
from controller.sumo.programs import Voice
from controller.sumo.wire import Frames, Garbled


class Messages:
    """What goes to SUMO and what comes from it, whole messages only."""

    def __init__(self, connection: socket.socket, voice: Voice, hurried: Callable[[], bool]) -> None:
        """`hurried`: whether whoever stops the controller does not want to wait for SUMO."""
        self.socket = connection
        self._voice, self._hurried = voice, hurried
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._outgoing = bytearray()
        """What the socket has not taken yet."""
        self._incoming = Frames()
        self._arrived: deque[bytes] = deque()

    def post(self, message: bytes) -> None:
        """Have a message sent with the next `send`, or before the next answer is waited for."""
        self._outgoing += message

    def send(self) -> None:
        """Send without waiting: what the socket does not take now goes out later. Raises SumoGone."""
        try:
            del self._outgoing[: self.socket.send(self._outgoing, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return
        except OSError as error:
            raise SumoGone(self._voice.error() or f"the connection to SUMO has ended: {error}") from None

    def answers(self, count: int) -> Iterator[bytes]:
        """The next `count` answers, in order, each as soon as it has come, without their lengths.

        Raises SumoGone or NotWaiting.
        """
        for _ in range(count):
            while not self._arrived:
                self._exchange()
            yield self._arrived.popleft()[4:]

    def _exchange(self) -> None:
        """Send and receive, as either is possible: SUMO may wait for its answers to be taken before it takes more."""
        if self._outgoing:
            self.send()
        try:
            self._poll.modify(self.socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            if not self._poll.poll(1000):
                # another client of the simulation may take its time, and SUMO ends for all if this one leaves
                if self._hurried():
                    raise NotWaiting("SUMO has not answered yet")
                return
            part = self.socket.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:  # ValueError: it has been closed here
            raise SumoGone(f"the connection to SUMO has ended: {error}") from None
        if not part:
            raise SumoGone(self._voice.error() or "SUMO has closed the connection")
        try:
            self._arrived.extend(self._incoming.feed(part))
        except Garbled as error:
            raise SumoGone(f"SUMO answers with {error}") from None

    def end(self, message: bytes, wait_s: float) -> bool:
        """Send the last message, wait until SUMO has closed the connection, and close it here.

        `wait_s`: wall time that SUMO may be silent for. Whether anything has come. Never raises.
        """
        is_answered = False
        try:
            self.socket.settimeout(wait_s)
            # behind what was begun: half a message must be a whole one first
            self.socket.sendall(self._outgoing + message)
            while self.socket.recv(1 << 16):
                is_answered = True  # a client that is gone before SUMO has answered it ends the simulation for all
        except OSError:
            return is_answered  # it has gone already, or is not waited for any longer
        finally:
            self.socket.close()
        return is_answered
