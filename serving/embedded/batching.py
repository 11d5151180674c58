"""Batching (--enable_batching): calls that wait at the same moment are run as one.

Parameters, rules and words are those of tensorflow/serving's batching_session.cc
and of TensorFlow's shared_batch_scheduler.h. It pays for models that cost more
than their call; a 64-64 actor costs 15 us and is faster without.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from city.errors import InputError
from protos import model_server_config_pb2 as config_pb
from serving.embedded import deadline
from serving.embedded.logs import log
from serving.embedded.status import StatusError, deadline_exceeded, failed_precondition, invalid_argument, unavailable

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Batching:
    """The names and defaults are BatchingParameters'."""

    max_batch_size: int = 1000
    batch_timeout_s: float = 0.0
    max_enqueued_batches: int = 10
    num_batch_threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False


def of_file(path: Path) -> Batching:
    """Read BatchingParameters as text. Raises InputError."""
    told = config_pb.BatchingParameters()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), told)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise InputError(f"{path}: cannot be read as BatchingParameters: {error}") from None
    given = {
        name: getattr(told, name).value
        for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads")
        if told.HasField(name)
    }
    for name, value in given.items():
        if not 1 <= value <= 1_000_000:
            raise InputError(f"{path}: {name} {value} must lie between 1 and 1000000")
    timeout_us = told.batch_timeout_micros.value
    if not 0 <= timeout_us <= 60_000_000:
        raise InputError(f"{path}: batch_timeout_micros {timeout_us} must lie between 0 and a minute")
    sizes = tuple(told.allowed_batch_sizes)
    largest = given.get("max_batch_size", Batching.max_batch_size)
    if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != largest):
        raise InputError(f"{path}: allowed_batch_sizes must rise from 1 at least and end with max_batch_size {largest}")
    return Batching(
        **given,
        batch_timeout_s=timeout_us / 1e6,
        allowed_batch_sizes=sizes,
        pad_variable_length_inputs=told.pad_variable_length_inputs,
    )


@dataclass(frozen=True)
class Task:
    """One call that waits for its batch."""

    inputs: Arrays
    size: int
    end_s: float | None = None
    """When its caller stops waiting (time.monotonic)."""
    answer: "Future[list[NDArray[Any]]]" = field(default_factory=Future)


@dataclass
class Queue:
    """The calls of one model, signature and choice of outputs, in batches; the last one is still open."""

    session: Any
    signature: str
    outputs: tuple[str, ...]
    batches: deque["Batch"] = field(default_factory=deque)


@dataclass
class Batch:
    since_s: float
    tasks: list[Task] = field(default_factory=list)
    size: int = 0

    def drop_late(self, now_s: float) -> None:
        """Leave out the calls that nobody waits for any more."""
        self.tasks = [task for task in self.tasks if task.end_s is None or task.end_s > now_s]
        self.size = sum(task.size for task in self.tasks)


def enqueue(queue: Queue, task: Task, parameters: Batching, now_s: float) -> None:
    """Put a call into the open batch, or into a new one. Raises StatusError where there is no room."""
    if task.size > parameters.max_batch_size:
        raise invalid_argument(f"Task size {task.size} is larger than maximum input batch size {parameters.max_batch_size}")
    if not queue.batches or queue.batches[-1].size + task.size > parameters.max_batch_size:
        if len(queue.batches) >= parameters.max_enqueued_batches:
            raise unavailable("The batch scheduling queue to which this task was submitted is full")
        queue.batches.append(Batch(now_s))
    queue.batches[-1].tasks.append(task)
    queue.batches[-1].size += task.size


def wait_s(queue: Queue, parameters: Batching, now_s: float) -> float | None:
    """Seconds until the first batch is to be run; 0: now; None: there is none."""
    if not queue.batches:
        return None
    first = queue.batches[0]
    if len(queue.batches) > 1 or first.size >= parameters.max_batch_size:
        return 0.0
    return max(first.since_s + parameters.batch_timeout_s - now_s, 0.0)


class BatchScheduler:
    """Threads that run the batches of all models."""

    def __init__(self, parameters: Batching) -> None:
        self.parameters = parameters
        self._work = threading.Condition()
        self._queues: dict[tuple[int, str, tuple[str, ...]], Queue] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"batch-{i}", daemon=True) for i in range(parameters.num_batch_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, session: Any, signature: str, outputs: tuple[str, ...], task: Task) -> None:
        """Have a call run with others. Raises StatusError."""
        key = (id(session), signature, outputs)
        with self._work:
            if self._stopping:
                raise unavailable("the server is going away")
            queue = self._queues.get(key) or Queue(session, signature, outputs)
            enqueue(queue, task, self.parameters, time.monotonic())
            self._queues[key] = queue
            self._work.notify()

    def stop(self) -> None:
        """Run what waits, then end the threads."""
        with self._work:
            self._stopping = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            queue, batch = found
            try:
                run_batch(queue, batch, self.parameters)
            except Exception as error:
                log.exception("a batch failed")
                for task in batch.tasks:
                    if not task.answer.done():
                        task.answer.set_exception(error)
                del task
            # a thread that waits must not keep a model that is served no more
            del found, queue, batch

    def _next(self) -> tuple[Queue, Batch] | None:
        """The batch that is due first; None once the scheduler stops."""
        with self._work:
            while True:
                now_s = time.monotonic()
                waits = [
                    # of those that are due, who has waited longest comes first: a busy model must not starve the others
                    (wait, queue.batches[0].since_s, key)
                    for key, queue in self._queues.items()
                    if (wait := self._wait_s(queue, now_s)) is not None
                ]
                if waits:
                    wait, _, key = min(waits)
                    if wait <= 0:
                        queue = self._queues[key]
                        batch = queue.batches.popleft()
                        batch.drop_late(now_s)
                        if not queue.batches:
                            # a queue holds its model: one that waits for nothing must not keep an old version
                            del self._queues[key]
                        return queue, batch
                    self._work.wait(wait)
                elif self._stopping:
                    return None
                else:
                    self._work.wait()

    def _wait_s(self, queue: Queue, now_s: float) -> float | None:
        wait = wait_s(queue, self.parameters, now_s)
        return 0.0 if self._stopping and wait is not None else wait


class BatchingSession:
    """A session whose runs are batched."""

    def __init__(self, session: Any, scheduler: BatchScheduler) -> None:
        self._session, self._scheduler = session, scheduler
        self.definitions, self.signatures = session.definitions, session.signatures

    def run(self, signature: str, inputs: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """As Session.run. Raises StatusError."""
        sizes = set()
        for array in inputs.values():
            if array.ndim == 0:
                raise invalid_argument("Batching session Run() input tensors must have at least one dimension.")
            sizes.add(array.shape[0])
        if len(sizes) > 1:
            raise invalid_argument("Batching session Run() input tensors must have equal 0th-dimension size.")
        if not sizes or sizes == {0}:
            return list(self._session.run(signature, inputs, outputs))
        task = Task(inputs, sizes.pop(), deadline.end_s())
        self._scheduler.submit(self._session, signature, tuple(outputs), task)
        try:
            return task.answer.result(None if task.end_s is None else max(task.end_s - time.monotonic(), 0.0))
        except TimeoutError:
            raise deadline_exceeded("the deadline passed while the call waited for its batch") from None


def run_batch(queue: Queue, batch: Batch, parameters: Batching) -> None:
    """Run a batch and give every call its rows."""
    if not batch.tasks:
        return
    try:
        inputs = merged(batch.tasks, parameters)
        rows = next(size for size in (*parameters.allowed_batch_sizes, batch.size) if size >= batch.size)
        if rows > batch.size:
            # filled up with its first row, whose answers nobody gets
            inputs = {key: np.concatenate([a, np.repeat(a[:1], rows - batch.size, axis=0)]) for key, a in inputs.items()}
        values = queue.session.run(queue.signature, inputs, queue.outputs)
        for value in values:
            if value.ndim == 0 or value.shape[0] != rows:
                raise failed_precondition(
                    "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors"
                )
    except StatusError as error:
        for task in batch.tasks:
            task.answer.set_exception(StatusError(error.code, str(error)))
        return
    at = 0
    for task in batch.tasks:
        task.answer.set_result([value[at : at + task.size] for value in values])
        at += task.size


def merged(tasks: Sequence[Task], parameters: Batching) -> dict[str, NDArray[Any]]:
    """The inputs of several calls one below the other. Raises StatusError where their shapes do not fit."""
    if len(tasks) == 1:
        return dict(tasks[0].inputs)
    found = {}
    for key in tasks[0].inputs:
        arrays = [task.inputs[key] for task in tasks]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            if not parameters.pad_variable_length_inputs:
                raise failed_precondition(
                    f"Tensors with name '{key}' from different tasks have different shapes and padding is turned off. "
                    "Set pad_variable_length_inputs to true, or ensure that all tensors with the same name have equal "
                    "dimensions starting with the first dim."
                )
            if len({len(shape) for shape in shapes}) > 1:
                raise failed_precondition(f"Tensors with name '{key}' from different tasks have different rank")
            shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
            arrays = [_padded(array, shape) for array in arrays]
        found[key] = np.concatenate(arrays)
    return found


def _padded(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """With the first value of each tensor at the end of its rows, as tensorflow/serving's batching_util.cc."""
    if array.shape[1:] == shape or not array.size:
        return array if array.shape[1:] == shape else np.zeros((array.shape[0], *shape), array.dtype)
    # not np.pad: it would take the zero bytes off the end of a text
    found = np.empty((array.shape[0], *shape), array.dtype)
    found.fill(array.reshape(-1)[0])
    found[tuple(map(slice, array.shape))] = array
    return found
