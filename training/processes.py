"""Functions in other processes: results as they come, and a job once more if its process dies."""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, TypeVar

from training.street_simulation import SimulationFailed

MAX_RESTARTS = 3
"""Times in a row without any result that processes which died are replaced."""

T = TypeVar("T")


class ThisProcess:
    """Runs functions here, one after another."""

    count = 1
    moves_files = False

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any]) -> Iterator[tuple[int, T]]:
        """(index of the job, result of the function)."""
        for index, job in enumerate(jobs):
            yield index, function(job)

    def __enter__(self) -> "ThisProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to end."""


class Processes:
    """A number of other processes that run functions."""

    moves_files = False
    """Models and results are files that all processes reach."""

    def __init__(self, count: int, initialize: Callable[[], None] | None = None) -> None:
        """Start the processes when they are needed.

        `initialize`: called once in each of them; can be pickled.
        """
        self.count, self._initialize = count, initialize
        self._folder = tempfile.TemporaryDirectory(prefix="greenserve-")
        """Of the processes' temporary files: one that is terminated leaves its own behind."""
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        # a fresh interpreter: TensorFlow's threads do not survive a fork
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.count, context, functools.partial(_begin, self._folder.name, self._initialize))

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any]) -> Iterator[tuple[int, T]]:
        """(index of the job, result of the function) in the order of completion.

        If a process dies, all jobs without a result are run again. Raises what the function raises, and
        SimulationFailed if processes die again and again.
        """
        missing = set(range(len(jobs)))
        failures = 0
        while missing:
            try:
                futures: dict[Future[T], int] = {self._pool.submit(function, jobs[index]): index for index in sorted(missing)}
                for future in concurrent.futures.as_completed(futures):
                    result = future.result()
                    missing.discard(futures[future])
                    failures = 0
                    yield futures[future], result
            except BrokenProcessPool as error:
                failures += 1
                if failures == MAX_RESTARTS:
                    raise SimulationFailed(f"processes died {failures} times in a row ({error})") from None
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = self._new_pool()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            # what is under way is of no use any more
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()


def _begin(folder: str, initialize: Callable[[], None] | None) -> None:
    """Prepare a process."""
    tempfile.tempdir = folder
    # Ctrl-C reaches every process of a terminal; the main one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if initialize is not None:
        initialize()


def _end_with_parent() -> None:
    """End this process if its parent is killed, which cannot end it then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
