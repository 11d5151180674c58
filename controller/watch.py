"""A look that is taken again and again, in a thread of its own, beside the decision steps."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("controller")


class Watch:
    def __init__(self, what: str, every_s: float, look: Callable[[], None]) -> None:
        """`what`: for the log. `every_s`: wall time before every look."""
        self._what, self._every_s, self._look = what, every_s, look
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._what, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends with the look under way."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, seconds: float) -> bool:
        """For a look that takes its time; True where it is to end now."""
        return self._ending.wait(seconds)

    def _run(self) -> None:
        while not self.wait(self._every_s):
            try:
                self._look()
            except Exception:
                log.exception("a look at %s broke; the next is tried", self._what)
