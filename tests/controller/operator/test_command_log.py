"""The log of operators' commands: what a restart, a cut-off file and a full disk leave of it."""

import csv
import io
import os

import pytest

from controller.operator import command_log
from controller.operator.command_log import CommandLog, as_csv, lines
from protos import control_pb2 as pb


def command(target="SA101", action="set-mode", value="fixed", author="ann", reason="", at_s=5.0, number=0):
    return pb.Command(
        number=number, at_s=at_s, action=action, target=target, value=value, author=author, reason=reason, unix_s=1e9
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "operator.jsonl"


def written(path, *commands):
    log = CommandLog(path)
    log.read()
    for each in commands:
        log.add(each)
    log.write()
    return log


def targets(path):
    return [each.target for each in CommandLog(path).read()]


def test_commands_are_read_as_they_were_written(path):
    first = command(reason="roadworks, “Main Street”")
    written(path, first)
    written(path, command("", "pause", "", "bob", at_s=7.5))
    again = CommandLog(path).read()
    assert again == [first, command("", "pause", "", "bob", at_s=7.5)]


def test_a_file_that_is_cut_off_anywhere_loses_its_last_command_alone(path, caplog):
    written(path, command("SA101"), command("SA102"))
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for size in range(first_line + 1, len(whole) - 1, 9):
        caplog.clear()
        path.write_bytes(whole[:size])
        written(path, command("SA103"))
        assert len(caplog.records) == 1 and "unreadable lines" in caplog.text and ": 1 of 2;" in caplog.text
        assert path.read_bytes().startswith(whole[:size])
        assert targets(path) == ["SA101", "SA103"]


def test_a_line_without_its_end_is_whole(path, caplog):
    written(path, command("SA101"))
    path.write_bytes(path.read_bytes()[:-1])
    written(path, command("SA102"))
    assert targets(path) == ["SA101", "SA102"] and not caplog.records


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 100_000, b'{"action": "pause", "at_s": NaN}', b'{"action": 5}',
        b'{"action": "pause", "unix_s": 1e300}', b'{"action": "pause", "author": "\\u001b[2J"}', b'{"of": "later"}',
    ],
)  # fmt: skip
def test_an_unreadable_line_is_one_warning_and_stays(path, caplog, line):
    path.write_bytes(line + b"\n")
    written(path, command("SA101"))
    (warning,) = caplog.records
    assert "1 of 1" in warning.getMessage() and "\n" not in warning.getMessage()
    assert path.read_bytes().startswith(line) and targets(path) == ["SA101"]


def test_a_full_disk_is_one_warning_and_later_each_command_is_there_once(path, caplog, monkeypatch):
    log = written(path, command("SA101"))
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for target in ("SA102", "SA103"):
            log.add(command(target))
            log.write()
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
    assert targets(path) == ["SA101"] and not log.has_new
    log.add(command("SA104"))
    log.write()
    assert targets(path) == ["SA101", "SA102", "SA103", "SA104"]


def test_of_a_long_file_the_end_is_read(path, monkeypatch, caplog):
    written(path, *(command(f"T{k}") for k in range(100)))
    size = len(path.read_bytes())
    monkeypatch.setattr(command_log, "MAX_READ_BYTES", size)
    assert len(targets(path)) == 100
    monkeypatch.setattr(command_log, "MAX_READ_BYTES", size - 1)
    assert targets(path) == [f"T{k}" for k in range(1, 100)] and not caplog.records
    monkeypatch.setattr(command_log, "MAX_READ_BYTES", size // 2)
    assert len(targets(path)) in (49, 50) and targets(path)[-1] == "T99" and not caplog.records


def test_without_a_file_nothing_is_kept():
    log = CommandLog(None)
    log.add(command())
    log.write()
    assert log.read() == [] and not log.has_new


def test_csv_is_what_spreadsheets_read():
    header, row = csv.reader(io.StringIO(as_csv([command(reason='"full", at\tfive')])))
    assert header == ["time", "second", "action", "target", "value", "author", "reason"]
    assert row == ["2001-09-09T01:46:40Z", "5", "set-mode", "SA101", "fixed", "ann", '"full", at\tfive']


def test_tls_of_one_command_are_one_line():
    commands = [command("SA101", reason="roadworks"), command("SA102", reason="roadworks"), command("SA103")]
    commands += [command("A", "acknowledge", "", number=4), command("B", "acknowledge", "", number=5)]
    commands += [command("", "step", "30", number=6)]
    assert [text for _, text in lines(commands)] == [
        "SA101, SA102 set to fixed, by ann: roadworks", "SA103 set to fixed, by ann", "alarm A acknowledged, by ann",
        "alarm B acknowledged, by ann", "step to second 30, by ann",
    ]  # fmt: skip
