"""Series of items of which only the newest are in memory, and the others in a temporary file."""

import contextlib
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from city.errors import os_errors

CHUNK_ITEMS = 64
"""Items that are written at once; a series keeps up to twice as many."""

T = TypeVar("T")


class Spool(contextlib.AbstractContextManager["Spool"]):
    """A temporary file of chunks. It has no name, so that nothing remains of a killed process."""

    def __init__(self) -> None:
        """Raises InputError."""
        with self._errors():
            self._file = tempfile.TemporaryFile(prefix="greenserve-")  # noqa: SIM115 - closed at the end of the block

    def write(self, items: Sequence[Any]) -> int:
        """Write a chunk and return its place. Raises InputError."""
        with self._errors():
            place = self._file.seek(0, 2)
            pickle.dump(items, self._file, pickle.HIGHEST_PROTOCOL)
            return place

    def read(self, place: int) -> Any:
        """A chunk that was written in this process. Raises InputError."""
        with self._errors():
            self._file.seek(place)
            return pickle.load(self._file)

    @staticmethod
    def _errors() -> contextlib.AbstractContextManager[None]:
        return os_errors(f"{tempfile.gettempdir()}: a temporary file cannot be used", "make room there, or set TMPDIR")

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Series(Generic[T]):
    """Items in the order in which they were added."""

    def __init__(self, spool: Spool | None = None) -> None:
        """`spool`: where all but the newest items are kept; None: in memory."""
        self._spool = spool
        self._places: list[int] = []
        self._tail: list[T] = []

    @property
    def newest(self) -> T | None:
        """The item that was added last; None if there is none in memory."""
        return self._tail[-1] if self._tail else None

    def append(self, item: T) -> None:
        """Add an item."""
        self._tail.append(item)
        if self._spool is not None and len(self._tail) >= 2 * CHUNK_ITEMS:
            self._places.append(self._spool.write(self._tail[:CHUNK_ITEMS]))
            del self._tail[:CHUNK_ITEMS]

    def remove_newest(self) -> None:
        """Remove the item that was added last. Raises IndexError if there is none in memory."""
        self._tail.pop()

    def __iter__(self) -> Iterator[T]:
        if self._spool is not None:
            for place in self._places:
                yield from self._spool.read(place)
        yield from self._tail
