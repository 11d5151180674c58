"""When the call that this thread works on must be answered; after that nobody waits for it."""

import threading
import time

_here = threading.local()


def begin(seconds: float | None) -> None:
    """This thread begins a call with so much time left; None: without a bound."""
    _here.end_s = None if seconds is None else time.monotonic() + seconds


def end_s() -> float | None:
    """The end of this thread's call, in time.monotonic()'s seconds; None: it has none."""
    found: float | None = getattr(_here, "end_s", None)
    return found


def has_passed() -> bool:
    end = end_s()
    return end is not None and time.monotonic() >= end
