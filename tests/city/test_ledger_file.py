"""The ledger's file: appended lines, cut-off lines, changed ones, a clock that jumps."""

import errno
import os
from datetime import timedelta

import pytest

from city import ledger_file
from city.errors import InputError
from city.ledger_file import LedgerFile
from tests.city.ledgers import ADOPTED, BEGIN, BEGUN, ENDED, TL, line, time, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_lines_are_read_again(path):
    written = write(path)
    read = LedgerFile(path)
    assert read.state == written.state and read.lines == written.lines and len(read.lines) == len(ENDED)


def test_a_line_that_breaks_a_rule_is_not_written(path):
    ledger = write(path, BEGUN)
    before = path.read_bytes()
    with pytest.raises(InputError, match="SA101 is in rollout r1"):
        ledger.append(line("begin", tls=TL, number=5, rollout="r2"), BEGIN + timedelta(seconds=20))
    assert path.read_bytes() == before and ledger.state == LedgerFile(path).state


def test_two_processes_append_in_turns(path):
    first = write(path, ADOPTED)
    second = LedgerFile(path)
    first.append(line("begin", tls=TL), BEGIN + timedelta(seconds=10))
    with pytest.raises(InputError, match="SA101 is in rollout r1"):
        second.append(line("begin", tls=TL, rollout="r2"), BEGIN + timedelta(seconds=20))
    second.append(line("pause", author="bob"), BEGIN + timedelta(seconds=30))
    first.read()
    assert first.state == second.state and first.state.rollouts["r1"].is_paused


def test_a_clock_that_went_back_does_not_end_the_ledger(path):
    ledger = write(path, BEGUN)
    assert ledger.append(line("pause"), BEGIN - timedelta(days=1)).at == time(10)
    assert LedgerFile(path).state == ledger.state


def test_every_changed_line_but_the_last_is_found(path):
    write(path)
    lines = path.read_text().splitlines()
    for k in range(len(lines) - 1):
        path.write_text("\n".join([*lines[:k], lines[k].replace('"ann"', '"bob"'), *lines[k + 1 :]]) + "\n")
        with pytest.raises(InputError, match=rf"line ({k + 1}|{k + 2}) .*restore the file from its copy"):
            LedgerFile(path)
        path.write_text("\n".join([*lines[:k], *lines[k + 1 :]]) + "\n")
        with pytest.raises(InputError, match=rf"line {k + 1} is numbered {k + 1}"):
            LedgerFile(path)


def test_every_cut_of_the_last_line_is_left_out_and_replaced(path):
    write(path, BEGUN)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first + 1, len(whole)):
        path.write_bytes(whole[:size])
        ledger = LedgerFile(path)
        assert len(ledger.lines) == 1 and f"cut off after {size - first} bytes" in ledger.cut_off
    ledger.append(BEGUN[1], BEGIN + timedelta(seconds=10))
    assert path.read_bytes() == whole and not LedgerFile(path).cut_off


def test_a_full_volume_leaves_the_ledger_as_it_was(path, monkeypatch):
    ledger = write(path, ADOPTED)
    before, pwrite = path.read_bytes(), os.pwrite

    def full(descriptor, data, offset):
        if offset > len(before):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data[:50], offset)

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file.os, "pwrite", full)
        with pytest.raises(InputError, match="No space left on device; make room there"):
            ledger.append(BEGUN[1], BEGIN + timedelta(seconds=10))
    assert path.read_bytes() == before
    ledger.append(BEGUN[1], BEGIN + timedelta(seconds=10))
    assert LedgerFile(path).state == ledger.state


def test_a_ledger_that_becomes_shorter_or_vanishes_is_refused(path):
    ledger = write(path, BEGUN)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="has become shorter"):
        ledger.append(line("pause"), BEGIN + timedelta(seconds=20))
    path.unlink()
    with pytest.raises(InputError, match="has been removed"):
        ledger.read()
    with pytest.raises(InputError):
        ledger.append(line("pause"), BEGIN + timedelta(seconds=20))
