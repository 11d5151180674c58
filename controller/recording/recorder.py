"""The recorder writes a run's decision events to the files of a record, beside the decisions.

    decision loop  | add: copy readings, queue |   SUMO simulates                 | next decision
    thread         |                           | encode and write | flush, each s |

`add` never waits. A full queue drops steps; an error, such as a full disk, ends the record and never the run.

What is where, and when:
- A chunk goes to the kernel every FLUSH_INTERVAL_S: a process that is killed loses that time at most.
- A file that is finished, because of its size, a new hour or the end of the run, is on the disk (fsync of the file, and
  of the folder when it was created). Before that, a power failure may take what the kernel has not written yet, usually
  half a minute.
- A new file begins with the state of the decision loop, so that it can be replayed alone. Only the decision loop can
  give it, after a step: `add` asks for it once the hour is over or the thread has found the file complete, and the file
  ends with that step. `add` also asks each STATE_INTERVAL_S, and the state goes among the steps.
- The traffic of each simulated minute goes to a small file beside the record (traffic_minutes).
- `log_time` is simulated time. `publish_time` is the wall clock when the recorder is made plus time.monotonic since
  then, so that it never goes back.
"""

import contextlib
import logging
import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from datetime import date
from typing import IO, Any, NamedTuple

from numpy.typing import NDArray

from city.errors import InputError
from controller.events import DecisionEvent
from controller.recording import loop_state, run_start, traffic_minutes
from controller.recording.messages import Encoder, snapshot
from controller.recording.record_folder import RecordFolder, file_name, is_in_place
from controller.recording.record_writer import NS, STEP, TL, RecordWriter, gzipped
from controller.recording.run_start import RunStart
from controller.telemetry.metrics import RecordMetrics
from controller.telemetry.traffic import TrafficMeter
from protos.loop_state_pb2 import LoopState

log = logging.getLogger("controller")

FLUSH_INTERVAL_S = 1.0
"""Wall time between two chunks."""
MAX_FILE_BYTES = 512_000_000
"""Size at which a new file begins; viewers load 1 GB at most."""
MAX_INDEX_ENTRIES = 250_000
"""Entries of a file's index at which a new file begins: they are in memory, and are written at once."""
MAX_FILE_SHARE = 0.25
"""A file's share of the folder's limit, so that deleting the oldest file deletes a part of the record only."""
FILE_INTERVAL_S = 3600
"""A new file begins at each full hour of the wall clock."""
STATE_INTERVAL_S = 300.0
"""Simulated time between two states of the decision loop: what a replay leaves out after a damaged part, at most."""
ROOM_INTERVAL_S = 60.0
"""Wall time between two looks at the folder's size."""
MAX_QUEUED_STEPS = 4096
MAX_QUEUED_BYTES = 64_000_000
"""Bound of the queue's memory, as `_memory` estimates it."""
TL_BYTES = 2000
"""Memory of a TL's decision or states, without its observation."""
DETECTOR_CHANGE_BYTES = 120
"""Memory of a vehicle that came onto a detector or left it."""
CLOSE_TIMEOUT_S = 15.0
"""Wall time after the run's end in which what is queued is written."""
SLICE_S, PAUSE_S = 0.0005, 0.00002
"""The thread pauses after each slice, so that the decision loop never waits long for Python's interpreter lock."""


class Recorder:
    """A subscriber that records the run."""

    def __init__(
        self,
        folder: RecordFolder,
        run: RunStart,
        metrics: RecordMetrics,
        max_file_bytes: int = MAX_FILE_BYTES,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        on_end_by_error: Callable[[str], None] = lambda error: None,
        traffic: TrafficMeter | None = None,
    ) -> None:
        """Prepare the record; the first step begins its first file. Raises OSError if a network file cannot be read.

        Args:
            folder: folder of the files.
            run: what the run begins with.
            metrics: count what is recorded.
            max_file_bytes: size at which a new file begins.
            clock: the clock of the events' `monotonic_s`.
            wall_clock_ns: the wall clock in ns since 1970, read once.
            on_end_by_error: called once, in any thread, with the error that ends the record.
            traffic: of the run, if it is kept by minute; it gets the events before the recorder.
        """
        self._folder = folder
        self._metrics = metrics
        self._on_end_by_error = on_end_by_error
        self._traffic = traffic
        self._minute = -1
        """Newest simulated minute whose traffic is kept."""
        max_file_bytes = min(max_file_bytes, int(MAX_FILE_SHARE * folder.max_bytes))
        self._files = _Files(folder, run, metrics, max_file_bytes, wall_clock_ns() - round(clock() * NS))
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        """None: the run has ended."""
        self._hour = 0
        """Hour of the file to which the newest step belongs; 0 before the first one."""
        self._ended_files = 0
        self._state_due_s = -math.inf
        """Simulated second from which on the decision loop's state is asked for."""
        self._has_states = True
        """False if the decision loop's state cannot be saved."""
        # each count has one writer: the decision loop counts what it adds, the thread what it takes
        self._added_steps = self._added_bytes = self._taken_steps = self._taken_bytes = 0
        self._dropped_steps = 0
        self._has_stopped = False
        """True if an error has ended the record."""
        self._thread: threading.Thread | None = None

    def add(self, event: DecisionEvent) -> None:
        if self._has_stopped:
            return
        memory = _memory(event)
        queued_steps = self._added_steps - self._taken_steps
        is_full = queued_steps >= MAX_QUEUED_STEPS or self._added_bytes - self._taken_bytes + memory > MAX_QUEUED_BYTES
        if is_full and queued_steps:
            self._drop(event, queued_steps)
            return
        ends_file = self._ends_file(event)
        state = self._state_after(event, ends_file)
        self._added_steps += 1
        self._added_bytes += memory
        self._queue.put(_Queued(snapshot(event), memory, state, ends_file, self._traffic_at(event)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="record", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                self._stop(error)

    def _ends_file(self, event: DecisionEvent) -> bool:
        """True if a new file is due after this step, and the state is known there."""
        hour = self._files.publish_ns(event) // (FILE_INTERVAL_S * NS)
        self._hour = self._hour or hour
        # a complete file stays complete until the thread has begun the next one
        is_complete = self._files.is_complete and self._ended_files < self._files.number
        if event.state is None or (hour == self._hour and not is_complete):
            return False
        self._hour = hour
        self._ended_files += 1
        return True

    def _state_after(self, event: DecisionEvent, ends_file: bool) -> LoopState | None:
        """The decision loop's state after this step, if one is due."""
        if math.isinf(self._state_due_s):
            self._state_due_s = event.at_s + STATE_INTERVAL_S
        is_due = ends_file or event.at_s >= self._state_due_s
        if event.state is None or not is_due or not self._has_states:
            return None
        self._state_due_s = event.at_s + STATE_INTERVAL_S
        try:
            return LoopState(**loop_state.values(event.state()))
        except Exception as error:  # noqa: BLE001 - such as one of a dialect of the user's own; the steps are recorded
            self._has_states = False
            log.warning(
                "a replay can begin at the run's beginning alone, because the state of the decisions cannot be saved: "
                "%s: %s",
                type(error).__name__,
                error,
            )
            return None

    def _traffic_at(self, event: DecisionEvent) -> dict[str, float | None] | None:
        """The city's traffic at the first decision of a simulated minute."""
        minute = int(event.at_s // traffic_minutes.MINUTE_S)
        if self._traffic is None or not event.decisions or minute == self._minute:
            return None
        self._minute = minute
        return self._traffic.recent().totals()

    def close(self) -> None:
        """Write what is queued and finish the file, within CLOSE_TIMEOUT_S."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._metrics.stopped.set(1)
            log.error(
                "the record is not finished, because %s did not take it within %g s: %d steps are missing at its end",
                self._folder.path,
                CLOSE_TIMEOUT_S,
                self._added_steps - self._taken_steps,
            )
        elif self._dropped_steps:
            log.warning("%d steps are missing in the record", self._dropped_steps)

    def _drop(self, event: DecisionEvent, queued_steps: int) -> None:
        self._metrics.dropped_steps.inc()
        self._dropped_steps += 1
        if self._dropped_steps == 1:
            log.warning(
                "second %g: the step is missing in the record, because %s is too slow and %d steps wait for it; "
                "further ones are counted in controller_record_dropped_steps_total",
                event.at_s,
                self._folder.path,
                queued_steps,
            )

    def _work(self) -> None:
        files = self._files
        try:
            while True:
                try:
                    queued = self._queue.get(timeout=files.flush_if_due())
                except queue.Empty:
                    continue
                if queued is None:
                    break
                self._taken_steps += 1
                self._taken_bytes += queued.memory
                files.add(queued.event, queued.state, queued.ends_file)
                files.add_traffic(queued.event.at_s, queued.traffic)
            files.finish()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the record and not the run
            self._stop(error)
            with contextlib.suppress(queue.Empty):  # queued steps are not written any more
                while True:
                    self._queue.get_nowait()
        finally:
            files.close()

    def _stop(self, error: Exception) -> None:
        self._has_stopped = True
        self._metrics.stopped.set(1)
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        log.error(
            "the record ends, and control goes on without it: %s: %s; see GreenserveRecordStopped in docs/runbook.md",
            self._files.path,
            reason,
        )
        self._on_end_by_error(f"{self._files.path}: {reason}")
        log.debug("the record's error", exc_info=error)


class _Queued(NamedTuple):
    """A step on its way to the file."""

    event: DecisionEvent
    memory: int
    """In bytes, as `_memory` estimates it."""
    state: LoopState | None
    """State of the decision loop after the step, if it is recorded."""
    ends_file: bool
    """True if a new file begins after the step."""
    traffic: dict[str, float | None] | None
    """The city's figures in its simulated minute, if it is the minute's first step with decisions."""


class _Files:
    """The files of a run, one after another, in the recorder's thread."""

    def __init__(
        self,
        folder: RecordFolder,
        run: RunStart,
        metrics: RecordMetrics,
        max_file_bytes: int,
        wall_clock_offset_ns: int,
    ) -> None:
        """`wall_clock_offset_ns`: the wall clock in ns since 1970 when the events' clock is 0."""
        self._folder = folder
        self._metrics = metrics
        self._max_file_bytes = max_file_bytes
        self._wall_clock_offset_ns = wall_clock_offset_ns
        self._encoder = Encoder(run)
        self._run_id = secrets.token_hex(6)
        self._city = run_start.encode(run, self._run_id, 0, 0)
        self._traffic_path = traffic_minutes.path_of(
            folder.path, run_start.plan_digest(self._city.contracts, self._city.signals)
        )
        self._keeps_traffic = True
        # those with which the run began, in all its files
        self._network_files = {name: gzipped(path) for name, path in run.network_files.items()}
        self.path = folder.path
        """The newest file, or the folder before there is one."""
        self.number = 0
        """Files that were begun."""
        self.is_complete = False
        """True if the file is large enough that a new one should begin."""
        self._state: LoopState | None = None
        """State of the decision loop before the next file."""
        self._steps = self._bytes = 0
        self._open: tuple[IO[bytes], RecordWriter] | None = None
        self._unflushed_steps, self._flushed_bytes = 0, 0
        self._flush_due_s = self._room_due_s = math.inf

    def publish_ns(self, event: DecisionEvent) -> int:
        """The wall clock of a step, in ns since 1970."""
        return self._wall_clock_offset_ns + round(event.monotonic_s * NS)

    def add(self, event: DecisionEvent, state: LoopState | None = None, ends_file: bool = False) -> None:
        """Write a step, and the state of the decision loop after it. Raises OSError."""
        publish_ns = self.publish_ns(event)
        if self._open is None:
            self._open = self._begin_file(event, publish_ns)
        stream, writer = self._open
        pause_at_s = time.perf_counter() + SLICE_S
        writer.add_message(STEP, self._encoder.step(event), publish_ns)
        for tl, tl_step in self._encoder.tl_steps(event):
            writer.add_message(TL + tl, tl_step, publish_ns)
            if time.perf_counter() > pause_at_s:
                time.sleep(PAUSE_S)
                pause_at_s = time.perf_counter() + SLICE_S
        self._unflushed_steps += 1
        self._flush_due_s = min(self._flush_due_s, time.monotonic() + FLUSH_INTERVAL_S)
        if ends_file:
            self._finish_file()
            self._state = state
        else:
            if state is not None:
                writer.add_state(state, publish_ns)
            self.is_complete = stream.tell() >= self._max_file_bytes or writer.index_entries >= MAX_INDEX_ENTRIES

    def add_traffic(self, at_s: float, traffic: dict[str, float | None] | None) -> None:
        """Keep the traffic of a simulated minute, if there is one; an error ends that, and not the record."""
        if traffic is None or not self._keeps_traffic:
            return
        began = date.fromtimestamp(self._city.begin_unix_ns / NS)
        try:
            traffic_minutes.append(self._traffic_path, began, int(at_s // traffic_minutes.MINUTE_S), traffic)
        except (OSError, InputError) as error:
            self._keeps_traffic = False
            log.warning("later runs cannot compare their traffic with this one: %s", error)

    def flush_if_due(self) -> float | None:
        """Hand what is written to the kernel, if it is time. Raises OSError.

        Returns the wall time until it is, or None if nothing is written that has not been handed over.
        """
        wait_s = self._flush_due_s - time.monotonic()
        if self._open is None or wait_s > 0:
            return None if math.isinf(wait_s) else wait_s
        stream, writer = self._open
        writer.flush()
        self._count(stream)
        if not is_in_place(stream, self.path):
            raise FileNotFoundError(0, "the file has been deleted while it was written")
        if time.monotonic() >= self._room_due_s:
            self._make_room()
        return None

    def finish(self) -> None:
        """Finish the last file. Raises OSError."""
        if self._open is not None:
            self._finish_file()
        log.info("recorded %d steps; files: %d, %.1f MB", self._steps, self.number, self._bytes / 1e6)

    def close(self) -> None:
        """Close the file, also after an error."""
        if self._open is not None:
            stream, self._open = self._open[0], None
            with contextlib.suppress(OSError):  # it is the error that ended the record
                stream.close()

    def _begin_file(self, event: DecisionEvent, publish_ns: int) -> tuple[IO[bytes], RecordWriter]:
        if self.number == 0:
            self._city.begin_unix_ns = publish_ns
        self._city.file_number = self.number
        name = file_name(publish_ns, self._run_id, self.number)
        self.path = self._folder.path / name
        self._make_room()
        stream = self._folder.create(name)
        try:
            writer = RecordWriter(stream, self._city, self._network_files, publish_ns, event.at_s, self._state)
            writer.flush()
        except BaseException:
            stream.close()
            raise
        log.info("recording into %s", self.path)
        self.is_complete = False
        self.number += 1
        self._flushed_bytes = 0
        return stream, writer

    def _make_room(self) -> None:
        self._folder.make_room(self._max_file_bytes, self.path.name)
        self._room_due_s = time.monotonic() + ROOM_INTERVAL_S

    def _finish_file(self) -> None:
        assert self._open is not None
        stream, writer = self._open
        writer.finish()
        stream.flush()
        self._count(stream)
        os.fsync(stream.fileno())
        self._open = None
        stream.close()

    def _count(self, stream: IO[bytes]) -> None:
        """Count what has gone to the kernel."""
        size = stream.tell()
        self._metrics.steps.inc(self._unflushed_steps)
        self._metrics.bytes.inc(size - self._flushed_bytes)
        self._steps += self._unflushed_steps
        self._bytes += size - self._flushed_bytes
        self._unflushed_steps = 0
        self._flushed_bytes = size
        self._flush_due_s = math.inf


def _memory(event: DecisionEvent) -> int:
    """Memory of an event in bytes, estimated."""
    arrays: list[NDArray[Any]] = [decision.observation for decision in event.decisions]
    if event.decisions:
        readings = event.readings
        arrays += [readings.counts, readings.mean_length_m, readings.outflow, *readings.by_vehicle]
    tls = len(event.decisions) + sum(len(sent.states) for sent in event.sent)
    nbytes = sum(array.nbytes for array in arrays)
    return nbytes + TL_BYTES * tls + DETECTOR_CHANGE_BYTES * len(event.detector_changes)
