"""The reader of an earlier record runs beside the controller, and its failure costs a log line."""

import datetime
import json
import logging
import sys
import time

import pytest

from controller.operator.page.earlier_traffic import EarlierTraffic, _name

FOUND = {
    "begin_unix_s": 1.0,
    "minutes": {"480": [298.0, 21.0, 3600.0], "481": [300.0, 20.0, None]},
    "skipped": ["x.mcap: is cut"],
}


def read_by(program, tmp_path, caplog):
    """What another reader has found, and the log."""
    earlier = EarlierTraffic(tmp_path, "plan")
    earlier._command = [sys.executable, "-c", program]
    with caplog.at_level(logging.INFO, "controller"):
        earlier.start()
        earlier._thread.join()
    return earlier, caplog.text


def test_figures_are_those_of_the_minute(tmp_path, caplog):
    earlier, text = read_by(f"print({json.dumps(json.dumps(FOUND))})", tmp_path, caplog)
    of = "the record of 1970-01-01"
    assert earlier.at(28800) == earlier.at(28859.9) == {"of": of, "vehicles": 298, "halting": 21, "delay_s": 3600}
    assert earlier.at(28860)["delay_s"] is None and earlier.at(28920) is earlier.at(0) is None
    assert (
        text.count("\n") == 1 and "compares traffic with the record of 1970-01-01, 2 minutes; not read: x.mcap" in text
    )


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit('no such folder')", "compares with no earlier record: no such folder"),
        ("print('{')", "compares with no earlier record: Expecting property name"),
        ("""print('{"begin_unix_s": null, "minutes": {}, "skipped": []}')""", "with no record: none has the same plan"),
        ("""print('{"begin_unix_s": 1e300, "minutes": {}, "skipped": []}')""", "compares with no earlier record: "),
    ],
)
def test_a_reader_that_finds_nothing_costs_one_line(program, message, tmp_path, caplog):
    earlier, text = read_by(program, tmp_path, caplog)
    assert text.count("\n") == 1 and message in text and earlier.at(28800) is None


def test_closing_ends_the_reader(tmp_path, caplog):
    earlier = EarlierTraffic(tmp_path, "plan")
    earlier._command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with caplog.at_level(logging.INFO, "controller"):
        earlier.start()
        while earlier._process is None:
            time.sleep(0.001)
        earlier.close()
    assert earlier._process.returncode is not None and not earlier._thread.is_alive() and caplog.text == ""
    never_started = EarlierTraffic(tmp_path, "plan")
    never_started.close()
    never_started.start()
    never_started._thread.join()
    assert never_started._process is None


def test_the_reader_is_the_one_of_records_and_reads_what_is_older(tmp_path, caplog):
    earlier = EarlierTraffic(tmp_path, "plan")
    with caplog.at_level(logging.INFO, "controller"):
        earlier.start()
        earlier._thread.join()
    assert "compares traffic with no record: none has the same plan" in caplog.text
    assert earlier._command[-1].startswith(f"{datetime.datetime.now(datetime.UTC):%Y%m%dT}")


@pytest.mark.parametrize(
    ("days", "name"),
    [
        (0, "today's record"),
        (1, "Tuesday's record"),
        (6, "Thursday's record"),
        (7, "the record of 2026-11-18"),
        (-1, "the record of 2026-11-26"),
    ],
)
def test_a_record_is_named_by_its_day(days, name):
    now = datetime.datetime(2026, 11, 25, 12).timestamp()
    assert _name(now - days * 86400, now) == name
