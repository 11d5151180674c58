"""Episodes in this process, or in several processes: libsumo holds one simulation a process."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType

from training.actor_critics import Floats
from training.demand import Demand
from training.episode import Episode, Simulation, Task

MAX_RESTARTS = 3
"""Times in a row that dead workers are replaced before the training ends."""

Arrays = Sequence[Sequence[Floats]]


@dataclass(frozen=True)
class Order:
    """An episode to simulate."""

    demand: Demand
    seed: tuple[int, ...]
    explore: bool


class WorkersDied(Exception):
    """Worker processes ended again and again; the text says how."""


class Rollouts:
    """Runs episodes; with one worker in this process, without the cost of another."""

    def __init__(self, task: Task, workers: int) -> None:
        """Read the street. Raises InputError."""
        self._task, self._workers = task, workers
        self.simulation = Simulation(task)
        self._pool = self._new_pool() if workers > 1 else None

    def _new_pool(self) -> ProcessPoolExecutor:
        # a fresh interpreter: TensorFlow's threads do not survive a fork
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, context, initializer=_start, initargs=(self._task,))

    def run(self, arrays: Arrays, orders: Sequence[Order]) -> list[Episode]:
        """Simulate episodes and return them in order. Raises WorkersDied; episodes of a dead worker are run again."""
        if self._pool is None:
            return [self.simulation.run(arrays, order.demand, order.seed, order.explore) for order in orders]
        for _ in range(MAX_RESTARTS):
            try:
                return list(self._pool.map(_run, [(arrays, order) for order in orders]))
            except BrokenProcessPool as error:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool, broken = self._new_pool(), error
        raise WorkersDied(f"the worker processes ended {MAX_RESTARTS} times in a row ({broken}); try --workers 1")

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is None:
            return
        if kind is not None:
            # an episode that is under way is of no use any more
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


_simulation: Simulation | None = None
"""Of a worker process."""


def _start(task: Task) -> None:
    global _simulation
    _simulation = Simulation(task)


def _run(order: tuple[Arrays, Order]) -> Episode:
    assert _simulation is not None
    arrays, each = order
    return _simulation.run(arrays, each.demand, each.seed, each.explore)
