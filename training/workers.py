"""Simulations in this process, or in several processes: libsumo holds one a process."""

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from training.processes import Processes

Outcome = TypeVar("Outcome", covariant=True)


class Simulator(Protocol[Outcome]):
    """Runs one simulation after another."""

    def run(self, *job: Any) -> Outcome: ...


class Workers(Generic[Outcome]):
    """Runs simulations; with one worker in this process, without the cost of another."""

    def __init__(self, simulator: Simulator[Outcome], make: Callable[[], Simulator[Outcome]], count: int) -> None:
        """Prepare.

        Args:
            simulator: of this process; used if it is the only one.
            make: makes the same simulator in another process; can be pickled.
            count: processes.
        """
        self._simulator = simulator
        self._processes = Processes(count, functools.partial(_start, make)) if count > 1 else None

    def run(self, jobs: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """The outcomes of jobs, in order. `jobs`: the arguments of `Simulator.run`. Raises SimulationFailed."""
        if self._processes is None:
            return [self._simulator.run(*job) for job in jobs]
        outcomes = dict(self._processes.run(_run, jobs))
        return [outcomes[index] for index in range(len(jobs))]

    def __enter__(self) -> "Workers[Outcome]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._processes is not None:
            self._processes.__exit__(kind, error, trace)


_simulator: Simulator[Any] | None = None
"""The simulator of this worker process."""


def _start(make: Callable[[], Simulator[Any]]) -> None:
    global _simulator
    _simulator = make()


def _run(job: tuple[Any, ...]) -> Any:
    assert _simulator is not None
    return _simulator.run(*job)
