"""How quick the answers to requests of one kind are: whether their caller's own thread may wait for one."""

import math
import threading
import time

QUICK_S = 0.002
"""An answer as quick as this is not worth handing to another thread."""


class Pace:
    """How long the last answer took, and since when others are worked on. Safe to use from many threads."""

    __slots__ = ("_begun_s", "_took_s")

    def __init__(self) -> None:
        self._took_s = math.inf
        self._begun_s: dict[int, float] = {}
        """By thread."""

    def begin(self) -> None:
        self._begun_s[threading.get_ident()] = time.perf_counter()

    def end(self) -> None:
        self._took_s = time.perf_counter() - self._begun_s.pop(threading.get_ident())

    @property
    def is_quick(self) -> bool:
        """Whether the last one took QUICK_S at most, and none takes longer now: one that hangs must not be waited for again."""
        earliest_s = time.perf_counter() - QUICK_S
        return self._took_s < QUICK_S and all(begun_s > earliest_s for begun_s in list(self._begun_s.values()))
