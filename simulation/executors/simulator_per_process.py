"""A simulator that each process makes once: reading a street takes longer than simulating it for a while."""

import uuid
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Outcome = TypeVar("Outcome", covariant=True)


class Simulator(Protocol[Outcome]):
    """Runs one simulation after another."""

    def run(self, *job: Any) -> Outcome: ...


class SimulatorPerProcess(Generic[Outcome]):
    """A function for executors. Each process makes its simulator for its first job and keeps it for the next ones."""

    def __init__(self, make: Callable[[], Simulator[Outcome]], here: Simulator[Outcome]) -> None:
        """Prepare.

        Args:
            make: makes the simulator of another process; can be pickled.
            here: the simulator of this process.
        """
        self._make, self._key = make, uuid.uuid4().hex
        self._here: Simulator[Outcome] | None = here

    def __call__(self, job: tuple[Any, ...]) -> Outcome:
        """The outcome of one simulation. `job`: the arguments of the simulator's `run`."""
        simulator = self._here
        if simulator is None:
            if self._key not in _simulators:
                _simulators.clear()
                _simulators[self._key] = self._make()
            simulator = _simulators[self._key]
        return simulator.run(*job)

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_here": None, "_key": self._key}


_simulators: dict[str, Simulator[Any]] = {}
"""Of this process by key, at most one: it outlives the copies of `SimulatorPerProcess` that arrive with every job."""
