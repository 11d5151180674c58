"""The log of daemons: UTC, text or JSON."""

import json
import logging
import re
import subprocess
import sys

import pytest

from city import logs
from city.logs import JsonFormatter, TextFormatter
from tests.conftest import GRID, ROOT

TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) ")


def record(message, **fields):
    made = logging.LogRecord("x", logging.WARNING, "", 0, message, None, None)
    made.created, made.msecs, made.fields = 1763691594.639, 639.0, fields
    return made


def test_time_is_utc_in_both_formats(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    made = record("loaded", model="a b", ms=14.2)
    assert TextFormatter("server").format(made) == '2025-11-21T02:19:54.639Z WARNING loaded model="a b" ms=14.2'
    assert json.loads(JsonFormatter("server").format(made)) == {
        "time": "2025-11-21T02:19:54.639Z",
        "level": "WARNING",
        "program": "server",
        "message": "loaded",
        "model": "a b",
        "ms": 14.2,
    }


def test_format_behind_two_hyphens_is_sumos(monkeypatch):
    used = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: used.extend(options["handlers"]))
    logs.configure(["--sumo", "x", "--", "--log-format", "json"], "controller")
    logs.configure(["--log-format", "json", "--", "--log-format", "text"], "controller")
    assert [type(handler.formatter) for handler in used] == [TextFormatter, JsonFormatter]


def test_json_is_one_line_with_its_own_keys_whatever_a_record_says():
    line = JsonFormatter("server").format(record("a\nb\u202e", level="x", path=GRID))
    assert line.isascii() and "\n" not in line
    assert (json.loads(line)["level"], json.loads(line)["path"]) == ("WARNING", str(GRID))


def test_traceback_is_part_of_its_json_line():
    try:
        raise ValueError("odd")
    except ValueError:
        made = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    assert "ValueError: odd" in json.loads(JsonFormatter("server").format(made))["exception"]


@pytest.mark.parametrize(
    ("program", "flags", "chosen"),
    [
        ("controller", ("--city", str(GRID / "city.toml"), "--server", "127.0.0.1:1"), "json"),
        ("controller", ("--city", str(GRID / "city.toml"), "--server", "127.0.0.1:1"), "text"),
        ("controller.guard", ("--sumo", "nonsense"), "json"),
        ("serving", ("--models-dir", "nowhere"), "json"),
        ("greenserve", ("replay", "nowhere", "--page", "127.0.0.1:0"), "json"),
    ],
)
def test_every_daemon_has_both_formats_and_its_last_line_says_why_it_ended(program, flags, chosen):
    command = [sys.executable, "-m", program, *flags, "--log-format", chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    *logged, error = done.stderr.splitlines()
    if chosen == "json":
        last = [json.loads(line) for line in done.stderr.splitlines()][-1]
        assert last["level"] == "ERROR" and last["message"] and last["time"].endswith("Z")
    else:
        assert error.startswith("error: ") and all(TEXT_LINE.match(line) for line in logged)
    assert done.returncode in (1, 2)
