"""SIGTERM as Ctrl-C: whatever a program started is ended by the same `finally`."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within, SIGTERM raises KeyboardInterrupt in the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
