"""Executors run functions in this process, in processes of this machine, or on a Ray cluster: one protocol, one file
for each."""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from simulation.street_simulation import SimulationFailed

T = TypeVar("T")
Outcome = TypeVar("Outcome", covariant=True)


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


class Simulator(Protocol[Outcome]):
    """Runs one simulation after another."""

    def run(self, *job: Any) -> Outcome: ...


class SimulatorPerProcess(Generic[Outcome]):
    """A function for executors. Each process makes its simulator for the first job and keeps it for later ones, because
    reading a street takes seconds."""

    def __init__(self, make: Callable[[], Simulator[Outcome]], local: Simulator[Outcome]) -> None:
        """`make`: makes the simulator of another process, and can be pickled. `local`: the simulator of this
        process."""
        self._make, self._key = make, uuid.uuid4().hex
        self._local: Simulator[Outcome] | None = local

    def __call__(self, job: tuple[Any, ...]) -> Outcome:
        """Run one simulation and return its outcome. `job`: the arguments of the simulator's `run`."""
        simulator = self._local
        if simulator is None:
            if self._key not in _simulators:
                _simulators.clear()
                _simulators[self._key] = self._make()
            simulator = _simulators[self._key]
        return simulator.run(*job)

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_local": None, "_key": self._key}


_simulators: dict[str, Simulator[Any]] = {}
"""This process's simulator by key, at most one; every job brings a new copy of `SimulatorPerProcess`."""
