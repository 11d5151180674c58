"""The memory of the commands that read records does not grow with a record's length."""

import copy
import gc
import tracemalloc
from collections import Counter

import pytest

from controller.recording.record_writer import RecordWriter
from protos import record_pb2 as record
from records.command import main
from records.record_reader import RecordReader
from records.recorded_run import RecordedRun
from records.replay import Replay
from tests.records.recorded_city import RecordedCity
from tests.records.replayed_city import record_run
from tests.records.update import path, sample_city

PROG = "greenserve record"
TLS = 1000
INTERVAL_S = 900
"""Between two decisions, so that a day is written in a minute."""


def write_city(file, hours):
    """A file with 1,000 TLs, each of which decides and shows as one of the sample city does."""
    with RecordReader(path("sample-city")) as reader:
        template = next(contract for contract in reader.city.contracts if contract.tl == "SA101")
        decided = next(step.tls["SA101"] for step in reader.steps() if "SA101" in step.tls)
    state = decided.states[0].permitted[0]
    city = record.City(run="a1b2c3")
    for k in range(TLS):
        contract = city.contracts.add()
        contract.CopyFrom(template)
        contract.tl, contract.signal_ids[0] = f"SA{k}", f"signal{k}"
        city.signals.add(id=f"signal{k}", shown=state)
    with file.open("wb") as stream:
        writer = RecordWriter(stream, city, {}, 0)
        for number in range(round(hours * 3600 / INTERVAL_S)):
            at_s = number * INTERVAL_S
            shown = [dict(begin_s=at_s - INTERVAL_S, end_s=at_s, states=[state] * TLS)] if number else []
            decided.number, decided.at_s = number, at_s
            step = record.Step(number=number, at_s=at_s, due=range(TLS), shown=shown)
            writer.add(step, {f"SA{k}": decided for k in range(TLS)}, number)
            writer.flush()
        writer.finish()
    return file


def peak_bytes(function):
    """(result, the most memory that a call takes)."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_of_commands_with_24_h_of_1000_tls_is_that_of_an_hour(tmp_path, capsys):
    hour, day = write_city(tmp_path / "hour.mcap", 1), write_city(tmp_path / "day.mcap", 24)
    for command, flags in (
        ("info", []),
        ("show", ["--tl", "SA7"]),
        ("show", ["--tl", "SA7", "--from", "00:30"]),
        ("export", ["--csv", tmp_path / "tables"]),
    ):
        peaks = []
        for file in (hour, day):
            code, peak = peak_bytes(lambda: main([command, str(file), *map(str, flags)], PROG))  # noqa: B023 - called at once
            assert (code, capsys.readouterr().err) == (0, "")
            peaks.append(peak)
        # what a reader that seeks holds of each chunk is some 100 bytes
        assert peaks[1] < 1.3 * peaks[0] + 4e6, (command, flags, peaks)
    assert sum(1 for _ in (tmp_path / "tables" / "decisions.csv").open()) == 1 + 24 * 3600 / INTERVAL_S * TLS


def write_hours(file, recorded_city, hours):
    """A run of the sample city, with its detectors, over and over."""
    steps, begin_s = [], 0.0
    length_s = recorded_city.steps[-1][0].shown[-1].end_s
    while begin_s < hours * 3600:
        for step, tl_steps, publish_ns in recorded_city.steps:
            step, tl_steps = copy.deepcopy((step, tl_steps))
            step.number = len(steps)
            for moved in (
                step,
                *step.commands,
                *tl_steps.values(),
                *(states for tl in tl_steps.values() for states in tl.states),
            ):
                moved.at_s += begin_s
            for shown in step.shown:
                shown.begin_s, shown.end_s = shown.begin_s + begin_s, shown.end_s + begin_s
            step.detectors.time_s[:] = [time_s + begin_s for time_s in step.detectors.time_s]
            steps.append((step, tl_steps, publish_ns))
        begin_s += length_s
    return RecordedCity(recorded_city.start, steps).write(file)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_export_of_events_holds_those_of_one_signal(recorded_city, tmp_path, capsys):
    for hours in (1, 4):
        file = write_hours(tmp_path / f"{hours}.mcap", recorded_city, hours)
        code, peak = peak_bytes(lambda: main(["export", str(file), "--atspm", str(tmp_path / "atspm")], PROG))  # noqa: B023
        assert (code, capsys.readouterr().err) == (0, "")
        with (tmp_path / "atspm" / "events.csv").open() as rows:
            events = Counter(row.split(",")[1] for row in rows)
        most = max(events.values())
        with capsys.disabled():
            print(f"\n{hours} h, {events.total()} events, at most {most} of a signal: {peak / 1e6:.1f} MB")
        # an event and what it is made from are some 200 bytes
        assert peak < 4e6 + 300 * most, (hours, peak, most)
        assert events.total() > 6 * most


@pytest.mark.slow
def test_memory_of_a_replay_is_flat(tmp_path):
    record_run(tmp_path / "run.mcap", sample_city(), 900, steps_a_file=50)
    held_bytes = []

    def measure(step, tls, publish_ns):
        if step.number % 90 == 89:
            gc.collect()
            held_bytes.append(tracemalloc.get_traced_memory()[0])

    replay = Replay(RecordedRun([tmp_path]), on_step=measure)
    peak_bytes(replay.run)
    assert replay.differences.first is None and len(held_bytes) == 3
    assert held_bytes[2] < 1.2 * held_bytes[0], held_bytes
