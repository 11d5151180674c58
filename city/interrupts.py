"""SIGTERM and Ctrl-C end a program the same way: what it started is ended by its `finally` clauses."""

import os
import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
RETRY_INTERVAL_S = 0.05


class Interrupts:
    """A context in which both signals raise KeyboardInterrupt in the main thread.

    Within a call of gRPC they wait until it has ended: a call that an exception leaves counts as open, and
    closing its channel waits for it without end.
    """

    received = False
    """Whether one came: a library may turn the KeyboardInterrupt into another error."""

    def __enter__(self) -> "Interrupts":
        # only the main thread can install handlers
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._interrupt) for number in SIGNALS}
        else:
            self._before = {}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if not _is_in_grpc(frame):
            raise KeyboardInterrupt
        again = threading.Timer(RETRY_INTERVAL_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


def _is_in_grpc(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "grpc":
            return True
        frame = frame.f_back
    return False
