"""One simulator per process, kept for all of its jobs, because reading a street takes seconds."""

import uuid
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Outcome = TypeVar("Outcome", covariant=True)


class Simulator(Protocol[Outcome]):
    """Runs one simulation after another."""

    def run(self, *job: Any) -> Outcome: ...


class SimulatorPerProcess(Generic[Outcome]):
    """A function for executors. Each process makes its simulator for the first job and keeps it for later ones."""

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
