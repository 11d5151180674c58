"""A task that runs periodically in its own thread, beside the decision steps."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("controller")


class PeriodicThread:
    def __init__(self, name: str, interval_s: float, task: Callable[[], None]) -> None:
        """`name`: the task in log lines. `interval_s`: wall time before every run of the task."""
        self._name = name
        self._interval_s = interval_s
        self.task = task
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the run in progress."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, seconds: float) -> bool:
        """Sleep inside a long task; return whether it must stop now."""
        return self._stopping.wait(seconds)

    def _run(self) -> None:
        while not self.wait(self._interval_s):
            try:
                self.task()
            except Exception:
                log.exception("%s failed; it runs again in %g s", self._name, self._interval_s)
