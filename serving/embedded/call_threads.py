"""The threads that answer gRPC calls."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from serving.embedded.logs import log


class _Submitted:
    """What gRPC asks of a future: to be told once the call is done."""

    __slots__ = ("_done", "_told")

    def __init__(self) -> None:
        self._done = False
        self._told: list[Callable[[Any], Any]] = []

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self._told.append(callback)
        if self._done:
            self._tell()

    def finish(self) -> None:
        self._done = True
        self._tell()

    def _tell(self) -> None:
        # two threads may come here at once: a callback is popped, and so called, by one of them
        while self._told:
            try:
                callback = self._told.pop()
            except IndexError:
                return
            callback(self)


class CallThreads:
    """An executor for grpc.server: a queue and its threads, without a Future, its locks and its semaphore for each call."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._calls: queue.SimpleQueue[tuple[_Submitted, Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, name=f"rpc_{number}", daemon=True).start()

    def shutdown(self) -> None:
        """Let every thread end after the calls that wait; does not wait for them."""
        for _ in range(self._count):
            self._calls.put(None)

    def submit(self, function: Callable[..., Any], *args: Any) -> _Submitted:
        submitted = _Submitted()
        self._calls.put((submitted, function, args))
        return submitted

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            submitted, function, args = call
            try:
                function(*args)
            except BaseException:  # whatever it is, the thread must not be lost
                log.exception("a call failed outside its method")
            finally:
                submitted.finish()
            del call, submitted, function, args  # a thread that waits must not keep the last request
