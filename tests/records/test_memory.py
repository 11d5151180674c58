"""The memory of the commands that read records does not grow with a record's length."""

import copy
import tracemalloc
from collections import Counter

import pytest

from records.command import main
from tests.records.recorded_city import RecordedCity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOURS = (1, 3)


@pytest.fixture(scope="module")
def records(recorded_city, tmp_path_factory):
    """Files of HOURS: a run of the sample city, with its detectors, over and over."""
    folder = tmp_path_factory.mktemp("hours")
    return [write_hours(folder / f"{hours}.mcap", recorded_city, hours) for hours in HOURS]


def write_hours(file, recorded_city, hours):
    steps, begin_s = [], 0.0
    length_s = recorded_city.steps[-1][0].shown[-1].end_s
    while begin_s < hours * 3600:
        for step, tl_steps, publish_ns in recorded_city.steps:
            step, tl_steps = copy.deepcopy((step, tl_steps))
            for numbered in (step, *tl_steps.values()):
                numbered.number = len(steps)
            states = [states for tl in tl_steps.values() for states in tl.states]
            for moved in (step, *step.commands, *tl_steps.values(), *states):
                moved.at_s += begin_s
            for shown in step.shown:
                shown.begin_s, shown.end_s = shown.begin_s + begin_s, shown.end_s + begin_s
            step.detectors.time_s[:] = [time_s + begin_s for time_s in step.detectors.time_s]
            steps.append((step, tl_steps, publish_ns))
        begin_s += length_s
    return RecordedCity(recorded_city.start, steps).write(file, flush_every=100)


def peak_bytes(capsys, command, file, *flags):
    """The most memory that a command takes."""
    tracemalloc.start()
    try:
        assert main([command, str(file), *flags], "greenserve record") == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("info", []),
        ("show", ["--tl", "SA101", "--from", "00:30"]),
        ("export", ["--csv", "tables"]),
    ],
)
def test_memory_of_a_command_with_many_hours_is_that_of_one(records, tmp_path, monkeypatch, capsys, command, flags):
    monkeypatch.chdir(tmp_path)
    hour, many = (peak_bytes(capsys, command, file, *flags) for file in records)
    assert many < 1.2 * hour + 1e6


def test_an_export_of_events_holds_those_of_one_signal(records, tmp_path, capsys):
    for file in records:
        peak = peak_bytes(capsys, "export", file, "--atspm", str(tmp_path / "atspm"))
        with (tmp_path / "atspm" / "events.csv").open() as rows:
            events = Counter(row.split(",")[1] for row in rows)
        most = max(events.values())
        # an event and what it is made from are some 200 bytes
        assert peak < 4e6 + 300 * most, (file, peak, most)
        assert events.total() > 6 * most
