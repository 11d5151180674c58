"""Wakes the threads that wait for the newest step. Nothing is queued: a slow reader skips steps."""

import threading
import time


class Watchers:
    """A counter of changes on which threads wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sequence = 0
        self._is_closed = False

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def notify(self) -> None:
        """Count a change and wake all that wait."""
        with self._changed:
            self._sequence += 1
            self._changed.notify_all()

    def wait_after(self, sequence: int, timeout_s: float) -> int:
        """Wait until the sequence is higher, this is closed or the time is over; return the sequence."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while self._sequence <= sequence and not self._is_closed:
                remaining_s = end_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            return self._sequence

    def close(self) -> None:
        """Wake all that wait, for the last time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
