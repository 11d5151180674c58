"""The recorder: what its files contain, when they are written, and what fails without delaying a decision."""

import copy
import json
import logging
import os
import shutil
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from controller.events import DecisionEvent, LoopState
from controller.recording import recorder as recording
from controller.recording.messages import Encoder, snapshot
from controller.recording.record_folder import NAME, RecordFolder
from controller.recording.record_writer import NS
from controller.recording.recorder import Recorder
from controller.recording.run_start import RunStart
from controller.telemetry.metrics import RecordMetrics
from records.record_reader import RecordReader
from records.recorded_run import RecordedRun
from records.replay import Replay
from signals.policy import Answer
from tests.controller.decision_events import Events
from tests.records.replayed_city import read, run_city
from tests.waiting import wait_until

NOON_NS = 1_790_006_400 * NS
"""2026-09-21 16:00:00 UTC, a full hour."""
GB = 1_000_000_000


class ControlledRun(NamedTuple):
    run: RunStart
    events: list[DecisionEvent]

    def paced(self, interval_s: float, begin_s: float = 1000.0) -> list[DecisionEvent]:
        """The events with readings that arrived every interval_s of wall time."""
        return [replace(event, monotonic_s=begin_s + k * interval_s) for k, event in enumerate(self.events)]


class Snapshots(Events):
    """The events of a run, each with the state of its step."""

    def add(self, event):
        # only the loop of now can give the state of now
        state = copy.deepcopy(event.state()) if event.state is not None else None
        self.append(replace(snapshot(event), state=None if state is None else lambda: state))


@pytest.fixture(scope="module")
def controlled(grid_city):
    snapshots = Snapshots()
    run = run_city(grid_city, 150, "--seed", "1", subscribe=lambda run: [snapshots], releases_until_s=None)
    return ControlledRun(run, snapshots)


@pytest.fixture
def metrics():
    return RecordMetrics(CollectorRegistry())


@pytest.fixture
def flushed_each_step(monkeypatch):
    monkeypatch.setattr(recording, "FLUSH_INTERVAL_S", 0.0)


def record(folder, run, events, metrics, wall_clock_ns=lambda: NOON_NS, waits=False, **settings):
    """Record events; the clock is that of the first one. `waits`: each until it is flushed, with flushed_each_step."""
    folder = folder if isinstance(folder, RecordFolder) else RecordFolder(folder, 20 * GB)
    recorder = Recorder(
        folder, run, metrics, clock=lambda: events[0].monotonic_s, wall_clock_ns=wall_clock_ns, **settings
    )
    for k, event in enumerate(events):
        recorder.add(event)
        if waits:
            wait_until(lambda k=k: value(metrics.steps) == k + 1)
    recorder.close()
    return sorted(folder.path.glob("*.mcap")) if folder.path.is_dir() else []


def value(metric):
    return metric.collect()[0].samples[0].value


def the_warning(caplog):
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return line


@pytest.fixture
def recorder(controlled, metrics, tmp_path):
    return Recorder(RecordFolder(tmp_path, 20 * GB), controlled.run, metrics)


def test_file_has_every_step_as_it_was_encoded(controlled, metrics, tmp_path):
    run = replace(controlled.run, control=replace(controlled.run.control, record=tmp_path))  # as in city.toml
    (path,) = record(tmp_path, run, controlled.events, metrics)
    city, steps, missing = read(path)
    encoder = Encoder(controlled.run)
    assert [(each.step, each.tls) for each in steps] == [encoder.encode(event) for event in controlled.events]
    assert not missing and len(city.contracts) == 8 and len(steps) == len(controlled.events) > 40
    assert json.loads(city.controller)["hold_s"] == 15 and json.loads(city.controller)["record"] is None
    assert value(metrics.steps) == len(steps) and value(metrics.bytes) == path.stat().st_size
    assert value(metrics.stopped) == value(metrics.dropped_steps) == 0


def test_wall_clock_that_jumps_changes_no_time(controlled, metrics, tmp_path):
    clock = iter([NOON_NS])  # read once: a second time is an error, which would end the record
    (path,) = record(tmp_path, controlled.run, controlled.paced(2.0), metrics, lambda: next(clock))
    city, steps, missing = read(path)
    assert not missing and city.begin_unix_ns == NOON_NS
    assert [each.publish_ns for each in steps] == [NOON_NS + 2 * k * NS for k in range(len(controlled.events))]


def test_file_of_a_size_is_followed_by_another(controlled, metrics, tmp_path, flushed_each_step):
    paths = record(tmp_path, controlled.run, controlled.events, metrics, waits=True, max_file_bytes=30_000)
    assert len(paths) > 2
    numbers = []
    for k, path in enumerate(paths):
        city, steps, missing = read(path)
        assert not missing and city.file_number == k and city.begin_s == 0 and city.run in path.name
        assert path.stat().st_size < 60_000 and NAME.fullmatch(path.name)
        numbers += [each.step.number for each in steps]
        with RecordReader(path) as reader:
            list(reader.steps())
            assert list(reader.attachments) == list(city.network_files)
    assert numbers == list(range(len(controlled.events)))


def test_file_with_a_large_index_is_followed_by_another(controlled, metrics, tmp_path, flushed_each_step, monkeypatch):
    monkeypatch.setattr(recording, "MAX_INDEX_ENTRIES", 60)
    assert len(record(tmp_path, controlled.run, controlled.events, metrics, waits=True)) > 3


def test_file_begins_at_each_full_hour(controlled, metrics, tmp_path):
    # 31 steps, one every 5 minutes, from 15:58 on; the first one of an hour ends the file
    paths = record(tmp_path, controlled.run, controlled.paced(300.0)[:31], metrics, lambda: NOON_NS - 120 * NS)
    assert [path.name[9:13] for path in paths] == ["1558", "1608", "1708", "1808"]
    assert [len(read(path)[1]) for path in paths] == [2, 12, 12, 5]


def test_each_file_of_a_run_is_replayed_alone(controlled, metrics, tmp_path):
    # a new file about every 12 steps
    paths = record(tmp_path, controlled.run, controlled.paced(300.0), metrics)
    assert len(paths) > 3
    for path in reversed(paths):
        run = RecordedRun([path])
        replay = Replay(run)
        replay.run()
        assert (path.name, str(replay.differences.first)) == (path.name, "None")
        assert replay.replayed_steps == len(read(path)[1]) and not run.ended


def test_state_is_recorded_from_time_to_time(controlled, metrics, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "STATE_INTERVAL_S", 30.0)
    (path,) = record(tmp_path, controlled.run, controlled.events, metrics)
    steps = read(path)[1]
    known = [each.step.at_s for each in steps if each.state is not None]
    assert len(known) > 2 and all(30 <= after - before < 45 for before, after in pairwise(known))
    for each in steps:
        assert each.state is None or each.state.next_number == each.step.number
    replay = Replay(RecordedRun([path]))
    replay.run()
    assert replay.differences.first is None and replay.replayed_steps == len(steps) and not replay.holes


def test_state_that_cannot_be_saved_is_one_warning_and_ends_no_record(controlled, metrics, tmp_path, caplog):
    fails = Mock(side_effect=TypeError("a dialect of the user's own"))
    events = [replace(event, state=fails) for event in controlled.paced(300.0)]
    paths = record(tmp_path, controlled.run, events, metrics)
    assert sum(len(read(path)[1]) for path in paths) == len(events) and len(paths) > 3
    assert value(metrics.stopped) == 0
    assert "cannot be saved: TypeError: a dialect of the user's own" in the_warning(caplog)


def test_new_file_waits_for_a_step_after_which_the_state_is_known(controlled, metrics, tmp_path):
    events = [replace(event, state=event.state if k > 14 else None) for k, event in enumerate(controlled.paced(300.0))]
    paths = record(tmp_path, controlled.run, events[:20], metrics)
    assert [len(read(path)[1]) for path in paths] == [16, 4]


def test_run_without_steps_writes_no_file(recorder, tmp_path):
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_two_recorders_in_one_folder_delete_neither_ones_open_file(controlled, tmp_path, flushed_each_step):
    all_metrics = [RecordMetrics(CollectorRegistry()) for _ in range(2)]
    recorders = [Recorder(RecordFolder(tmp_path, 200_000), controlled.run, each) for each in all_metrics]
    events = [
        replace(event, number=k, state=lambda k=k: LoopState(k + 1, 0.0, False, {}, [], []))
        for k, event in enumerate(controlled.events * 4)
    ]
    for k, event in enumerate(events):
        for recorder in recorders:
            recorder.add(event)
        wait_until(lambda k=k: all(value(each.steps) == k + 1 for each in all_metrics))
    for recorder in recorders:
        recorder.close()
    files = [read(path) for path in sorted(tmp_path.iterdir())]
    assert all(not missing for _, _, missing in files)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 300_000
    by_run = {}
    for city, steps, _ in files:
        by_run.setdefault(city.run, []).append((city.file_number, steps[-1].step.number))
    # the newest file of each is there, to its last step, and the oldest ones are not
    assert len(by_run) == 2
    for of_run in by_run.values():
        assert max(of_run)[1] == len(events) - 1 and min(of_run)[0] > 0


class WatchedStream:
    def __init__(self, stream, write):
        self._stream, self._write = stream, write

    def write(self, data):
        return self._write(self._stream, data)

    def __getattr__(self, name):
        return getattr(self._stream, name)


class WatchedDisk(RecordFolder):
    """A folder; `write` writes to its files."""

    def __init__(self, path, write):
        super().__init__(path, 20 * GB)
        self._write = write

    def create(self, name):
        return WatchedStream(super().create(name), self._write)


def full_disk(path, room_bytes):
    """A folder on a disk that is full after some bytes of a file."""

    def write(stream, data):
        room = room_bytes - stream.tell()
        if len(data) <= room:
            return stream.write(data)
        stream.write(data[:room])
        stream.flush()
        raise OSError(28, "No space left on device")

    return WatchedDisk(path, write)


@pytest.mark.parametrize("room_bytes", [0, 40_000], ids=["at the begin", "later"])
def test_full_disk_ends_the_record_with_one_line(controlled, metrics, tmp_path, caplog, room_bytes, flushed_each_step):
    errors = []
    recorder = Recorder(full_disk(tmp_path, room_bytes), controlled.run, metrics, on_end_by_error=errors.append)
    with caplog.at_level(logging.INFO, "controller"):
        for event in controlled.events:
            recorder.add(event)
        wait_until(lambda: value(metrics.stopped) == 1)
        recorder.add(controlled.events[0])
        recorder.close()
    error = the_warning(caplog)
    assert "No space left on device" in error and str(tmp_path) in error and "GreenserveRecordStopped" in error
    assert len(errors) == 1 and errors[0].endswith(": No space left on device")
    if room_bytes:
        (path,) = tmp_path.iterdir()
        _, steps, missing = read(path)
        assert 0 < len(steps) < len(controlled.events) and "cut off after byte" in missing
        # what of the newest step is on the disk may be whole, although the disk was full before its chunk's index
        assert 0 <= len(steps) - value(metrics.steps) <= 1


@pytest.fixture
def slow(controlled, metrics, tmp_path, flushed_each_step):
    """(a disk that blocks after 20 kB until `go_on` is set, its recorder)."""
    disk = SimpleNamespace(go_on=threading.Event(), is_blocked=threading.Event())

    def write(stream, data):
        if stream.tell() >= 20_000:
            disk.is_blocked.set()
            disk.go_on.wait(60)
        return stream.write(data)

    return disk, Recorder(WatchedDisk(tmp_path, write), controlled.run, metrics)


@pytest.mark.parametrize("limit", ["MAX_QUEUED_STEPS", "MAX_QUEUED_BYTES"])
def test_slow_disk_makes_a_hole_and_delays_nothing(controlled, metrics, tmp_path, caplog, monkeypatch, limit, slow):
    size = 5 if limit == "MAX_QUEUED_STEPS" else 5 * recording._memory(controlled.events[1])
    monkeypatch.setattr(recording, limit, size)
    disk, recorder = slow
    recorder.add(controlled.events[0])
    assert disk.is_blocked.wait(20)
    begin_s = time.monotonic()
    for event in controlled.events[1:20]:
        recorder.add(event)
    assert time.monotonic() - begin_s < 1
    disk.go_on.set()
    wait_until(lambda: value(metrics.steps) == 20 - value(metrics.dropped_steps))
    for event in controlled.events[20:25]:
        recorder.add(event)
        wait_until(lambda number=event.number: value(metrics.steps) == number + 1 - value(metrics.dropped_steps))
    recorder.close()
    _, steps, missing = read(next(tmp_path.iterdir()))
    numbers = [each.step.number for each in steps]
    dropped = int(value(metrics.dropped_steps))
    assert "missing" in missing and 10 < dropped < 16 and value(metrics.stopped) == 0
    assert len(numbers) == 25 - dropped and numbers == sorted(set(numbers))
    assert numbers[:5] == [0, 1, 2, 3, 4] and numbers[-5:] == [20, 21, 22, 23, 24]
    first, last = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert "is too slow" in first and last.startswith(f"{dropped} steps are missing")


def opened(descriptor):
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_name_of_a_new_file_and_its_content_are_on_the_disk(controlled, metrics, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(opened(descriptor)))
    (path,) = record(tmp_path, controlled.run, controlled.events, metrics)
    assert synced == [tmp_path, path]


def test_end_of_a_run_does_not_wait_for_a_hanging_disk(controlled, metrics, tmp_path, caplog, monkeypatch, slow):
    monkeypatch.setattr(recording, "CLOSE_TIMEOUT_S", 0.2)
    disk, recorder = slow
    for event in controlled.events[:10]:
        recorder.add(event)
    assert disk.is_blocked.wait(20)
    begin_s = time.monotonic()
    recorder.close()
    assert time.monotonic() - begin_s < 5
    assert value(metrics.stopped) == 1
    assert any("the record is not finished" in record.getMessage() for record in caplog.records)
    disk.go_on.set()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_folder_or_file_that_vanishes_ends_the_record(controlled, metrics, tmp_path, caplog, what, flushed_each_step):
    folder = tmp_path / "record"
    folder.mkdir()
    recorder = Recorder(RecordFolder(folder, 20 * GB), controlled.run, metrics)
    recorder.add(controlled.events[0])
    wait_until(lambda: value(metrics.steps) == 1)
    shutil.rmtree(folder) if what == "folder" else next(folder.iterdir()).unlink()
    recorder.add(controlled.events[1])
    wait_until(lambda: value(metrics.stopped) == 1)
    recorder.close()
    assert "the file has been deleted while it was written" in the_warning(caplog)


def test_step_that_cannot_be_encoded_ends_the_record(
    controlled, metrics, recorder, tmp_path, caplog, flushed_each_step
):
    event = controlled.events[1]
    broken = replace(event, decisions=(event.decisions[0]._replace(tl="SA999"),))
    for each in (controlled.events[0], broken, *controlled.events[2:]):
        recorder.add(each)
    wait_until(lambda: value(metrics.stopped) == 1)
    recorder.close()
    assert "KeyError: 'SA999'" in the_warning(caplog)
    assert [each.step.number for each in read(next(tmp_path.iterdir()))[1]] == [0]


@pytest.mark.parametrize(("action", "values"), [(np.array(["green"]), 0), (np.array([np.nan, 3.0]), 2), (None, 1)])
def test_invalid_action_and_text_are_recorded(controlled, metrics, tmp_path, action, values):
    event = controlled.events[0]
    decisions = [
        event.decisions[0]._replace(answer=Answer(action), failure="InvalidAction: \ud800"),
        event.decisions[1]._replace(answer=RuntimeError("\udcff"), failure="RuntimeError"),
    ]
    (path,) = record(tmp_path, controlled.run, [replace(event, decisions=tuple(decisions))], metrics)
    _, (step,), _ = read(path)
    first, second = (step.tls[each.tl].decision for each in decisions)
    assert first.failure == "InvalidAction: ?" and not first.error and len(first.action) == values
    assert (second.error, second.error_text) == ("RuntimeError", "?")


def test_readings_are_those_of_the_step_although_the_next_one_replaces_them(controlled, tmp_path, slow):
    disk, recorder = slow
    recorder.add(controlled.events[0])
    assert disk.is_blocked.wait(20)
    readings = replace(controlled.events[1].readings, counts=np.full_like(controlled.events[1].readings.counts, 7))
    recorder.add(replace(controlled.events[1], readings=readings))
    readings.counts[:] = 8
    disk.go_on.set()
    recorder.close()
    assert set(read(next(tmp_path.iterdir()))[1][1].step.readings.vehicles) == {7}
