"""Simulations in this process, or in several processes: libsumo holds one a process."""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

MAX_RESTARTS = 3
"""Times in a row that workers which ended are replaced."""

Outcome = TypeVar("Outcome", covariant=True)


class Simulation(Protocol[Outcome]):
    """Runs one simulation after another."""

    def run(self, *job: Any) -> Outcome: ...


class SimulationFailed(Exception):
    """A simulation did not come to its end, or without what it needs; the text is the reason."""


class Workers(Generic[Outcome]):
    """Runs simulations; with one worker in this process, without the cost of another."""

    def __init__(self, simulation: Simulation[Outcome], make: Callable[[], Simulation[Outcome]], count: int) -> None:
        """Start the processes.

        Args:
            simulation: of this process; used if it is the only one.
            make: makes the same simulation in another process; can be pickled.
            count: processes.
        """
        self._simulation, self._make, self._count = simulation, make, count
        self._folder = tempfile.TemporaryDirectory(prefix="greenserve-")
        """Of the workers' temporary files: one that is terminated leaves its own behind."""
        self._pool = self._new_pool() if count > 1 else None

    def _new_pool(self) -> ProcessPoolExecutor:
        # a fresh interpreter: TensorFlow's threads do not survive a fork
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, context, _start, (self._make, self._folder.name))

    def run(self, jobs: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """The outcomes of jobs, in order; those of a worker that ends are run again. Raises SimulationFailed.

        `jobs`: the arguments of `Simulation.run`.
        """
        if self._pool is None:
            return [self._simulation.run(*job) for job in jobs]
        for _ in range(MAX_RESTARTS):
            try:
                return list(self._pool.map(_run, jobs))
            except BrokenProcessPool as error:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool, broken = self._new_pool(), error
        raise SimulationFailed(f"the worker processes ended {MAX_RESTARTS} times in a row ({broken}); try --workers 1")

    def __enter__(self) -> "Workers[Outcome]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            if kind is not None:
                # a simulation that is under way is of no use any more
                for process in list((self._pool._processes or {}).values()):
                    process.terminate()
            self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()


_simulation: Simulation[Any] | None = None
"""Of a worker process."""


def _start(make: Callable[[], Simulation[Any]], folder: str) -> None:
    global _simulation
    tempfile.tempdir = folder
    # Ctrl-C reaches every process of a terminal; the main one ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _simulation = make()


def _run(job: tuple[Any, ...]) -> Any:
    assert _simulation is not None
    return _simulation.run(*job)
