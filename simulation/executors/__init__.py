"""Executors: functions run here, in processes of this machine, or on a Ray cluster. One protocol, one file for each way."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs a function with many jobs: `ThisProcess`, `Processes` or `RayTasks`."""

    moves_files: bool
    """Whether jobs and results carry their files as bytes, because processes share no folder."""

    @property
    def cpus(self) -> int:
        """CPUs that all jobs may use at once."""
        ...

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        """(index of the job, result of the function) in the order of completion.

        Args:
            function: is called with one job.
            jobs: one call each; a job whose process dies is run again.
            cpus: CPUs of one job.

        Raises what the function raises, and SimulationFailed if the process of a job dies again and again.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def executor(workers: int, ray_address: str | None = None) -> Executor:
    """The executor that flags ask for: a Ray cluster, several processes, or this process alone. Raises InputError."""
    # each imports what only its way needs
    if ray_address is not None:
        from simulation.executors.ray_tasks import RayTasks

        return RayTasks(ray_address)
    if workers > 1:
        from simulation.executors.processes import Processes

        return Processes(workers)
    from simulation.executors.this_process import ThisProcess

    return ThisProcess()


def in_order(results: Iterable[tuple[int, T]]) -> list[T]:
    """The results of `run` in the order of their jobs."""
    return [result for _, result in sorted(results, key=lambda item: item[0])]
