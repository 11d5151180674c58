"""SIGTERM and Ctrl-C end a program the same way: what it started is ended by its `finally` clauses."""

import signal
import threading
from types import FrameType, TracebackType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which both signals raise KeyboardInterrupt in the main thread."""

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

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        self.received = True
        raise KeyboardInterrupt
