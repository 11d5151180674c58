"""Log a sample of Predict requests, with their responses, beside the requests.

    request's thread | run the model | add: copy to a record's bytes, queue | respond
    writer           |               each second: checksums, append to files

`add` never waits and never fails. A full queue drops logs; files that cannot be written lose those of that second. Both
are counted, and the first is named in one line. What is written goes to the kernel at once, without fsync: a killed
server loses a second at most, a power failure what the kernel has not written yet.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf.message import EncodeError

from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as pb
from serving import tf_record
from serving.embedded.prediction_log import logging_config
from serving.embedded.prediction_log.log_files import LogFiles
from serving.embedded.prediction_log.logging_config import LoggingConfig
from serving.embedded.telemetry.logs import event, log
from serving.embedded.telemetry.metrics import ServerMetrics

FLUSH_INTERVAL_S = 1.0
"""Wall time between two writes."""
MAX_QUEUED_BYTES = 64 << 20
"""Limit of the memory of records that wait for the writer; also of one record."""
CLOSE_TIMEOUT_S = 5.0
"""Wall time at the end in which what is queued is written."""
SLICE, PAUSE_S = 32, 0.00002
"""The writer pauses after so many records, so that requests never wait long for Python's interpreter lock."""
TAG = "serve"
"""Tag of the MetaGraph that the server loads."""


class PredictionLog:
    """The logs of all models. `sample` and `add` are thread-safe."""

    def __init__(
        self,
        root: Path | None,
        max_bytes: int,
        metrics: ServerMetrics,
        wall_clock: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Prepare, without logging: `configure` begins.

        Args:
            root: folder that all files lie below; None permits no logging_config.
            max_bytes: limit of all files together.
            metrics: count the logs.
            wall_clock: s since 1970.
            draw: random numbers from 0 up to 1.
        """
        self._root, self._metrics, self._wall_clock, self._draw = root, metrics, wall_clock, draw
        self._files = None if root is None else LogFiles(root, max_bytes, wall_clock)
        self._configs: Mapping[str, LoggingConfig] = {}
        self._lock = threading.Lock()
        """Held while the queue changes."""
        self._queue: list[tuple[Path, bytes]] = []
        """(prefix, record)."""
        self._queued_bytes = 0
        """Memory of records that are queued or being written."""
        self._has_dropped = False
        self._failing: set[Path] = set()
        """Prefixes whose newest write has failed."""
        self._wake = threading.Event()
        self._is_closing = False
        self._writer: threading.Thread | None = None

    def check(self, configs: Mapping[str, LoggingConfig]) -> None:
        """Raise StatusError unless the models' files lie in the folder of the logs."""
        logging_config.check(configs, self._root)

    def configure(self, configs: Mapping[str, LoggingConfig]) -> None:
        """Log these models' requests from now on, and no others. `configs`: by model, checked."""
        self._configs = dict(configs)
        if configs and self._writer is None:
            self._writer = threading.Thread(target=self._work, name="prediction_log", daemon=True)
            self._writer.start()

    def sample(self, model: str) -> LoggingConfig | None:
        """The logging_config of a model if this request of it is to be logged."""
        config = self._configs.get(model)
        return config if config is not None and self._draw() < config.sampling_rate else None

    def add(self, config: LoggingConfig, request: wire.PredictRequest, response: wire.PredictResponse) -> None:
        """Queue a request and its response for the writer."""
        try:
            record = self._record(config, request, response)
        except (EncodeError, SystemError, MemoryError):  # protobuf's errors for a message beyond 2 GiB
            record = b""
        with self._lock:
            is_queued = bool(record) and self._queued_bytes + len(record) <= MAX_QUEUED_BYTES
            is_first_drop = not is_queued and not self._has_dropped
            self._has_dropped |= not is_queued
            if is_queued:
                self._queue.append((config.filename_prefix, record))
                self._queued_bytes += len(record)
                if 2 * self._queued_bytes > MAX_QUEUED_BYTES:
                    self._wake.set()
        if not is_queued:
            self._metrics.count_logged("dropped")
        if is_first_drop:
            log.warning(
                "a log of model %s is dropped, because %d MiB of logs wait for %s; further ones are counted in "
                "serving_prediction_logs_total", request.model_spec.name, MAX_QUEUED_BYTES >> 20, self._root,
            )  # fmt: skip

    def _record(self, config: LoggingConfig, request: wire.PredictRequest, response: wire.PredictResponse) -> bytes:
        entry = pb.PredictionLog()
        metadata = entry.log_metadata
        metadata.model_spec.CopyFrom(response.model_spec)
        metadata.sampling_config.sampling_rate = config.sampling_rate
        metadata.saved_model_tags.append(TAG)
        metadata.timestamp_secs = int(self._wall_clock())
        entry.predict_log.request.CopyFrom(request)
        entry.predict_log.response.CopyFrom(response)
        return entry.SerializeToString()

    def flush(self) -> None:
        """Write what is queued. Called by the writer alone."""
        with self._lock:
            queue, self._queue = self._queue, []
        records: dict[Path, list[bytes]] = defaultdict(list)
        for prefix, record in queue:
            records[prefix].append(record)
        # an error of a prefix that is no longer logged must not hide the next one
        self._failing &= {config.filename_prefix for config in self._configs.values()} | records.keys()
        try:
            for prefix, batch in records.items():
                self._write(prefix, batch)
        finally:
            # also after an error, or the queue would stay full
            with self._lock:
                self._queued_bytes -= sum(len(record) for _, record in queue)

    def _write(self, prefix: Path, records: Sequence[bytes]) -> None:
        if self._files is None:
            return
        try:
            self._files.append(prefix, b"".join(_encoded(records)))
        except OSError as error:
            self._metrics.count_logged("failed", len(records))
            if not self._failing:
                log.error(
                    "prediction logs %s cannot be written: %s: %s; further ones are counted in "
                    "serving_prediction_logs_total; make room, or correct the permissions of %s",
                    prefix, error.filename or self._root, error.strerror or error, self._root,
                )  # fmt: skip
            self._failing.add(prefix)
            return
        self._metrics.count_logged("written", len(records))
        if prefix in self._failing:
            self._failing.remove(prefix)
            if not self._failing:
                event("prediction_logs_written_again", folder=self._root)

    def _work(self) -> None:
        """The writer's thread."""
        while not self._is_closing:
            self._wake.wait(FLUSH_INTERVAL_S)
            self._wake.clear()
            try:
                self.flush()
            except Exception:
                log.exception("writing the prediction logs failed")
        self.flush()

    def close(self) -> None:
        """Write what is queued, within CLOSE_TIMEOUT_S."""
        if self._writer is None:
            return
        self._is_closing = True
        self._wake.set()
        self._writer.join(CLOSE_TIMEOUT_S)
        if self._writer.is_alive():
            log.error(
                "the last prediction logs are missing: %s did not take them within %g s", self._root, CLOSE_TIMEOUT_S
            )


def _encoded(records: Sequence[bytes]) -> Iterator[bytes]:
    """The bytes of each record in a file."""
    for number, record in enumerate(records, start=1):
        yield tf_record.encode(record)
        if number % SLICE == 0:
            time.sleep(PAUSE_S)
