"""Wakes what waits for the newest step. Nothing is queued: a slow reader skips steps."""

import threading
import time
from collections.abc import Callable


class Watchers:
    """A counter of changes on which threads wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.sequence = 0
        self.is_closed = False
        self.wake_page: Callable[[], None] = lambda: None
        """Called at each change, by the thread that makes it: the page's loop does not wait on a condition."""

    def notify(self) -> None:
        """Count a change and wake all that wait."""
        with self._changed:
            self.sequence += 1
            self._changed.notify_all()
        self.wake_page()

    def wait_after(self, sequence: int, timeout_s: float) -> int:
        """Wait until the sequence is higher, this is closed or the time is over; return the sequence."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while self.sequence <= sequence and not self.is_closed:
                remaining_s = end_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            return self.sequence

    def close(self) -> None:
        """Wake all that wait, for the last time."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self.wake_page()
