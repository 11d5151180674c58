"""Run functions in worker processes; retry a job up to MAX_RETRIES times if its process dies."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, TypeVar

from simulation.executors import Executor, reported_exit
from simulation.scratch_folder import scratch_folder
from simulation.street_simulation import SimulationFailed

TERMINATE_TIMEOUT_S = 5.0
MAX_RETRIES = 3
"""Reruns of a job after its process died."""

T = TypeVar("T")


class Processes(Executor):
    """Runs functions in other processes, one job at a time in each."""

    def __init__(self, cpus: int) -> None:
        """Prepare the processes; each starts with its first job. `cpus`: CPUs that all jobs may use at once."""
        self._cpus = cpus
        self._stack = contextlib.ExitStack()
        self._folder = str(self._stack.enter_context(scratch_folder()))
        """Temporary files of all processes, removed here because a killed process leaves its files."""
        self._processes = [_Process(self._folder) for _ in range(cpus)]

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        idle = self._processes[: max(1, self._cpus // cpus)]
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
                        raise SimulationFailed(
                            f"the process of a simulation died {deaths[index]} times ({error})"
                        ) from None
                    waiting.appendleft(index)
                else:
                    yield index, result

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            # the results of running jobs are not needed
            for process in self._processes:
                process.terminate()
        for process in self._processes:
            process.close()
        self._stack.close()


class _Process:
    """One process, replaced by a new one after it dies."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        # spawn: TensorFlow's threads do not survive a fork
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (self._folder,))

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
        self._pool.shutdown(wait=False, cancel_futures=True)  # an idle process ends by this
        for process in processes:
            process.join(TERMINATE_TIMEOUT_S)
            if process.is_alive():
                process.kill()  # a library swallowed the exit, or blocks

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class _Job:
    """The work of a process, for its handler of SIGTERM."""

    is_running = False
    is_unwanted = False
    """SIGTERM has arrived: no further job is begun."""


def _run(function: Callable[[Any], T], job: Any) -> T:
    try:
        try:
            _Job.is_running = True
            if _Job.is_unwanted:
                sys.exit(1)
            with reported_exit():
                return function(job)
        finally:
            _Job.is_running = False
    except SystemExit:
        os._exit(1)  # the executor would take the exit for the job's result, and keep this process


def _begin(folder: str) -> None:
    tempfile.tempdir = folder
    # Ctrl-C reaches every process of a terminal; the main one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _exit(number: int, frame: FrameType | None) -> None:
    """Unwind a job, so that `finally` clauses end what it started. A result that is being sent is not cut off."""
    _Job.is_unwanted = True
    if _Job.is_running:
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process when its parent ends: a killed parent cannot end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    if _Job.is_running:
        # as at SIGTERM: a SUMO that has just started, and is not connected yet, would wait for ever
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TERMINATE_TIMEOUT_S)
    os._exit(1)
