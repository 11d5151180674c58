"""Run functions in worker processes; retry a job up to MAX_RETRIES times if its process dies."""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TypeVar

from simulation.street_simulation import SimulationFailed

TERMINATE_TIMEOUT_S = 5.0
MAX_RETRIES = 3
"""Times that a job whose process dies is run again."""

T = TypeVar("T")


class Processes:
    """Runs functions in other processes, each of which serves one job after another."""

    moves_files = False
    """Models and results are files that all processes reach."""

    def __init__(self, cpus: int) -> None:
        """Prepare; processes start when they are needed. `cpus`: CPUs that all jobs may use at once."""
        self.cpus = cpus
        self._folder = tempfile.TemporaryDirectory(prefix="greenserve-")
        """Temporary files of all processes, removed here because a killed process does not remove its own."""
        self._processes = [_Process(functools.partial(_begin, self._folder.name)) for _ in range(cpus)]

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        idle = self._processes[: max(1, self.cpus // cpus)]
        waiting = deque(range(len(jobs)))
        deaths = [0] * len(jobs)
        running: dict[Future[T], tuple[int, _Process]] = {}
        while waiting or running:
            while waiting and idle:
                index, process = waiting.popleft(), idle.pop()
                running[process.submit(function, jobs[index])] = index, process
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                index, process = running.pop(future)
                idle.append(process)
                try:
                    result = future.result()
                except BrokenProcessPool as error:
                    deaths[index] += 1
                    if deaths[index] > MAX_RETRIES:
                        raise SimulationFailed(f"the process of a simulation died {deaths[index]} times ({error})") from None
                    waiting.appendleft(index)
                else:
                    yield index, result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            # results of running jobs are not needed any more
            for process in self._processes:
                process.terminate()
        for process in self._processes:
            process.close()
        self._folder.cleanup()


class _Process:
    """One process, and a new one after it dies."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        # a fresh interpreter: TensorFlow's threads do not survive a fork
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), self._begin)

    def submit(self, function: Callable[[Any], T], job: Any) -> Future[T]:
        try:
            return self._pool.submit(_run, function, job)
        except BrokenProcessPool:
            self._pool = self._new_pool()
            return self._pool.submit(_run, function, job)

    def terminate(self) -> None:
        """End the process; its job is lost."""
        processes = list((self._pool._processes or {}).values())
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(TERMINATE_TIMEOUT_S)
            if process.is_alive():
                process.kill()  # a library has swallowed the exit, or waits without end

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _run(function: Callable[[Any], T], job: Any) -> T:
    try:
        return function(job)
    except SystemExit:
        os._exit(1)  # the executor would keep the exit as the job's result, and this process


def _begin(folder: str) -> None:
    """Prepare a process."""
    tempfile.tempdir = folder
    # Ctrl-C reaches every process of a terminal; the main one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind, so that this process ends its own processes and servers."""
    sys.exit(1)


def _end_with_parent() -> None:
    """End this process if its parent is killed, which cannot end it then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
