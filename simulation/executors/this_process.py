"""Run functions in this process, one after another."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class ThisProcess:
    """Runs functions in this process, one job after another."""

    cpus = 1
    moves_files = False

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        for index, job in enumerate(jobs):
            yield index, function(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no process was started."""
