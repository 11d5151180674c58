"""Executors run functions in this process, in processes of this machine, or on a Ray cluster: one protocol, one file
for each."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from simulation.street_simulation import SimulationFailed

T = TypeVar("T")


class Executor:
    """Runs a function with many jobs: `ThisProcess`, `Processes` or `RayTasks`."""

    moves_files = False
    """Jobs and results carry their files as bytes, because processes share no folder."""

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        """Call the function with each job; yield (index of the job, result) in the order of completion.

        If the process of a job dies, the job runs again. `cpus`: CPUs of one job. Raises the function's exceptions, and
        SimulationFailed if a job's process dies repeatedly.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End what was started for the jobs."""


class ThisProcess(Executor):
    """Runs functions in this process, one job after another."""

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        for index, job in enumerate(jobs):
            yield index, function(job)


def executor(workers: int, ray_address: str | None = None) -> Executor:
    """The executor for a command's flags: a Ray cluster, several processes, or this process. Raises InputError."""
    # imported here: Ray is optional
    if ray_address is not None:
        from simulation.executors.ray_tasks import RayTasks

        return RayTasks(ray_address)
    if workers > 1:
        from simulation.executors.processes import Processes

        return Processes(workers)
    return ThisProcess()


@contextlib.contextmanager
def reported_exit() -> Iterator[None]:
    """In a job's process: turn sys.exit("reason") into SimulationFailed with the reason.

    Otherwise the process counts as dead: its job runs again and the reason is lost. An exit with a number is not
    changed, because a process ends by it at SIGTERM.
    """
    try:
        yield
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        raise SimulationFailed(error.code) from None


def in_order(results: Iterable[tuple[int, T]]) -> list[T]:
    """The results of `run` in the order of their jobs."""
    return [result for _, result in sorted(results, key=lambda item: item[0])]
