"""The reader of an earlier record runs beside the controller, and its failure costs a log line."""

import json
import logging
import sys

import pytest

from controller.operator.page import earlier_traffic
from controller.operator.page.earlier_traffic import EarlierTraffic

TUESDAY, MONDAY = "Tuesday's record", "Monday's record"
FOUND = {"480": [TUESDAY, 298.0, 21.0, 3600.0], "481": [MONDAY, 300.0, 20.0, None], "482": [MONDAY, 1.0, 0.0, 2.0]}
FINDS = f"import sys; print({json.dumps(json.dumps(FOUND))}); print('not read: x.mcap', file=sys.stderr)"


@pytest.fixture
def read_by(monkeypatch, tmp_path, caplog):
    """Starts another reader, and gives what it has found and the log."""

    def started(program):
        monkeypatch.setattr(
            earlier_traffic, "subprocess", SubprocessOf([sys.executable, "-c", program], earlier_traffic.subprocess)
        )
        caplog.set_level(logging.INFO, "controller")
        return EarlierTraffic(tmp_path, "plan")

    return started


class SubprocessOf:
    """The module subprocess with another command in the place of each."""

    def __init__(self, command, module):
        self.command, self.module = command, module

    def Popen(self, _, **options):
        return self.module.Popen(self.command, **options)

    def __getattr__(self, name):
        return getattr(self.module, name)


def test_figures_are_those_of_the_minute(read_by, caplog):
    earlier = read_by(FINDS)
    earlier._thread.join()
    figures = {"of": TUESDAY, "vehicles": 298, "halting": 21, "delay_s": 3600}
    assert earlier.at(28800) == earlier.at(28859.9) == figures
    assert earlier.at(28860)["of"] == MONDAY and earlier.at(28980) is earlier.at(0) is None
    assert [each.getMessage() for each in caplog.records] == [
        "the page compares traffic with Tuesday's record, Monday's record (not read: x.mcap)"
    ]


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("raise SystemExit('a line\\nno such folder')", " (no such folder)"),
        ("print('{')", " (Expecting property name enclosed in double quotes: line 2 column 1 (char 2))"),
        ("print('{}')", ""),
    ],
)
def test_a_reader_that_finds_nothing_costs_one_line(program, note, read_by, caplog):
    earlier = read_by(program)
    earlier._thread.join()
    assert [each.getMessage() for each in caplog.records] == [f"the page compares traffic with no earlier record{note}"]
    assert earlier.at(28800) is None


def test_a_reader_that_hangs_is_killed(read_by, caplog, monkeypatch):
    monkeypatch.setattr(earlier_traffic, "MAX_WAIT_S", 0.01)
    earlier = read_by("import time; time.sleep(1000)")
    earlier._thread.join()
    assert earlier._process.wait() < 0 and "timed out" in caplog.text


def test_closing_ends_the_reader_without_a_line(read_by, caplog):
    earlier = read_by("import time; time.sleep(1000)")
    earlier.close()
    assert earlier._process.returncode < 0 and not earlier._thread.is_alive() and caplog.text == ""


def test_the_reader_is_the_program_of_records_and_reads_what_is_older(tmp_path, caplog):
    caplog.set_level(logging.INFO, "controller")
    earlier = EarlierTraffic(tmp_path, "plan", lambda: 10**9)
    earlier._thread.join()
    assert caplog.text.rstrip().endswith("the page compares traffic with no earlier record")
    assert earlier._process.args[-3:] == [str(tmp_path), "plan", "19700101T000001Z-0-0000.mcap"]
