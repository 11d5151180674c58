"""SIGTERM and Ctrl-C end a program the same way: its `finally` clauses end what it started."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
RETRY_INTERVAL_S = 0.05

_Result = TypeVar("_Result")


class InterruptContext:
    """A context in which both signals raise KeyboardInterrupt in the main thread.

    During a gRPC call the signal is sent again until the call has ended: gRPC counts a call that was left by
    an exception as open, and closing its channel would wait for it forever. It is sent again too if Python has ignored
    the exception, as it does in a `__del__` that the garbage collector calls at any moment.
    """

    received = False
    """True if a signal arrived: a library may turn the KeyboardInterrupt into another error."""
    _retry: threading.Timer | None = None

    def __enter__(self) -> "InterruptContext":
        # only the main thread can install handlers
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers = {number: signal.signal(number, self._interrupt) for number in SIGNALS}
            self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._on_ignored
        else:
            self._previous_handlers = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        if self._previous_handlers:
            sys.unraisablehook = self._previous_hook
        if self._retry is not None and kind is not None:
            # the block has ended by an exception; after a normal end, the interrupt must not be lost
            self._retry.cancel()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if not _is_in_grpc(frame):
            raise KeyboardInterrupt
        self._send_again(number)

    def _on_ignored(self, ignored: "sys.UnraisableHookArgs") -> None:
        if self.received and issubclass(ignored.exc_type, KeyboardInterrupt):
            self._send_again(signal.SIGTERM)
        else:
            self._previous_hook(ignored)

    def _send_again(self, number: int) -> None:
        self._retry = threading.Timer(RETRY_INTERVAL_S, os.kill, (os.getpid(), number))
        self._retry.daemon = True
        self._retry.start()


def _is_in_grpc(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "grpc":
            return True
        frame = frame.f_back
    return False


def interruptible(call: Callable[[], _Result]) -> _Result:
    """Make a gRPC call in a thread, so that a signal interrupts its wait at once; the caller then closes the channel.

    For calls that may wait for long: a program that mostly waits in gRPC would hardly ever be interrupted.
    """
    result: Future[_Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            result.set_exception(error)

    threading.Thread(target=run, name="interruptible call", daemon=True).start()
    return result.result()
