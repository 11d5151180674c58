"""Run functions as tasks of a Ray cluster; if the worker or node of a task dies, it runs again.

A worker runs one task after another, as a process of `Processes` does, and keeps what it has read. What many jobs have
in common (models, weights, a street's files) is put into Ray's object store once, and each node fetches it once.
"""

import importlib
import io
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from city.arguments import host_and_port
from city.errors import InputError
from simulation.executors import Executor, reported_exit
from simulation.street_simulation import SimulationFailed

CONNECT_TIMEOUT_S = 5.0
MAX_RETRIES = 3
"""Reruns of a task after its worker or node died."""
MIN_PART_BYTES = 4096
"""Bytes and arrays of a job that are smaller stay in it."""

T = TypeVar("T")


class RayTasks(Executor):
    """Runs functions on the nodes of a cluster. Requires greenserve and the city's files, at the same path, on all of
    them."""

    moves_files = True
    """Models and results travel as bytes: nodes share no folder."""

    def __init__(self, address: str) -> None:
        """Connect. Raises InputError if Ray is not installed, or no cluster of its version answers.

        `address`: HOST:PORT of the cluster's head, or `auto` on one of its nodes.
        """
        self._ray, self._address = _connect(address), address

    def run(self, function: Callable[[Any], T], jobs: Sequence[Any], cpus: int = 1) -> Iterator[tuple[int, T]]:
        """Like `Executor.run`; also raises InputError if no node has enough CPUs."""
        largest = max((node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]), default=0)
        if largest < cpus:
            raise InputError(
                f"--workers {cpus}: no node of the Ray cluster {self._address} has that many CPUs; the largest has "
                f"{largest:g}"
            )
        remote = self._ray.remote(num_cpus=cpus, max_retries=MAX_RETRIES)(_call)
        stored, parts = self._ray.put(function), _Parts(self._ray.put)
        index_of = {remote.remote(stored, *parts.taken_out(job)): index for index, job in enumerate(jobs)}
        waiting = list(index_of)
        try:
            while waiting:
                (done, *_), waiting = self._ray.wait(waiting, num_returns=1)
                yield index_of[done], self._result(done)
        finally:
            for task in waiting:
                self._ray.cancel(task, force=True)

    def _result(self, task: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(task)
        except exceptions.RayTaskError as error:
            raise (error.cause or SimulationFailed((_lines(error) or ["a task on Ray failed"])[-1])) from None
        except exceptions.RayError as error:
            reason = (_lines(error) or [type(error).__name__])[0]
            raise SimulationFailed(f"a task on Ray failed {MAX_RETRIES + 1} times ({reason})") from None

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


def _lines(error: Exception) -> list[str]:
    """The lines of an error's text; [] for an error without text."""
    return str(error).strip().splitlines()


class _Parts:
    """The large bytes and arrays of jobs, each stored once, however many jobs have it."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        """`put`: stores a value and returns its reference."""
        self._put = put
        self._stored: dict[int, tuple[Any, Any]] = {}
        """By identity, a value, which must not be freed meanwhile, and its reference."""

    def taken_out(self, job: Any) -> tuple[Any, ...]:
        """(the pickled job without its parts, references of the parts)."""
        file, references = io.BytesIO(), []
        put, stored = self._put, self._stored

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> int | None:
                size = value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes) else 0
                if size < MIN_PART_BYTES:
                    return None
                if id(value) not in stored:
                    stored[id(value)] = value, put(value)
                references.append(stored[id(value)][1])
                return len(references) - 1

        Pickler(file, pickle.HIGHEST_PROTOCOL).dump(job)
        return file.getvalue(), *references


def _with_parts(job: bytes, parts: Sequence[Any]) -> Any:
    """The job that `_Parts.taken_out` has pickled."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, index: int) -> Any:
            return parts[index]

    return Unpickler(io.BytesIO(job)).load()


def _call(function: Callable[[Any], T], job: bytes, *parts: Any) -> T:
    with reported_exit():
        return function(_with_parts(job, parts))


def _connect(address: str) -> Any:
    """Connect to a cluster; return the module `ray`."""
    if address != "auto":
        host, port = host_and_port(address, "--ray")
        try:
            # ray.init would retry for minutes
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise InputError(
                f"--ray {address}: no Ray cluster answers there ({error.strerror or error}); start one with "
                "ray start --head"
            ) from None
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise InputError("--ray needs Ray; install greenserve[distributed]") from None
    try:
        ray.init(address=address, logging_level="ERROR", runtime_env={"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "3"}})
    except ConnectionError:
        raise InputError(f"--ray {address}: no Ray cluster is found; start one with ray start --head") from None
    except RuntimeError as error:
        raise InputError(f"--ray {address}: {error}") from None
    return ray
