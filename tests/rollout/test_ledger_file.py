"""The ledger's file: appended lines, cut-off lines, changed ones, a clock that jumps; and its command."""

import errno
import os
import re
import shutil
from dataclasses import replace
from datetime import timedelta

import pytest

from city.errors import InputError
from rollout import ledger_file, model_files
from rollout.ledger import Line
from rollout.ledger_command import main
from rollout.ledger_file import LedgerFile
from serving.embedded.config import ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.models.version_policy import VersionPolicy
from tests.error_lines import assert_refused
from tests.rollout.ledgers import ADOPTED, BEGIN, BEGUN, ENDED, TL, line, time
from tests.serving.conftest import running


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def write(path, lines=ENDED):
    ledger = LedgerFile(path)
    for k, each in enumerate(lines):
        ledger.append(each, BEGIN + timedelta(seconds=10 * k))
    return ledger


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


def ledger(*argv, code=0):
    assert main([*map(str, argv)], "greenserve ledger") == code


def test_the_model_of_every_second_is_shown(path, capsys):
    write(path)
    at = [each.at for each in LedgerFile(path).lines if each.kind in ("adopt", "drives")]
    for when, number, until in ((at[0], "3", at[1]), (at[1], "4", "now")):
        ledger("at", when, "--tl", "SA101", "--ledger", path)
        row = capsys.readouterr().out.splitlines()[1].split()
        assert row[:4] == ["SA101", number, when, until]
    before = str(BEGIN - timedelta(milliseconds=1))
    ledger("at", before, "--ledger", path)
    assert capsys.readouterr().out.count("not in the ledger yet") == 2


def test_verify_finds_lines_that_were_cut_off_by_a_kept_digest(path, capsys):
    write(path)
    ledger("verify", "--ledger", path)
    digest = re.search(r"last line: (\w{64})", capsys.readouterr().out)[1]
    ledger("verify", "--line", digest, "--ledger", path)
    assert f"{len(ENDED)} lines follow the rules" in capsys.readouterr().out
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    ledger("verify", "--ledger", path)
    capsys.readouterr()
    ledger("verify", "--line", digest, "--ledger", path, code=2)
    assert_refused(capsys, "lines were cut off or replaced")


def test_lines_of_a_tl_are_listed_with_a_cut_off_end(path, capsys):
    write(path)
    with path.open("a") as stream:
        stream.write("{")
    ledger("show", "--tl", "SA101", "--ledger", path)
    shown = capsys.readouterr()
    assert "stage canary better" in shown.out and "SA101:4" in shown.out and "cut off after 1 bytes" in shown.err


def test_files_and_labels_other_than_the_ledgers_are_named(path, grid_models, tmp_path, capsys):
    shutil.copytree(grid_models / "SA101", tmp_path / "models" / "SA101")
    first = LedgerFile(path)
    model = model_files.of_version(tmp_path / "models", "SA101", 1)
    first.append(Line(0, "", "adopt", "ann", {"SA101": model}), BEGIN)
    with running(labelled(grid_models)) as server:
        flags = ("--models-dir", tmp_path / "models", "--server", f"127.0.0.1:{server.port}", "--ledger", path)
        ledger("verify", *flags)
        (tmp_path / "models" / "SA101" / "1" / "saved_model.pb").write_bytes(b"")
        ledger("verify", *flags, code=2)
        assert_refused(capsys, "SA101/1 has other files than in the ledger")
        first.append(Line(0, "", "adopt", "ann", {"SA101": replace(model, number=2)}), BEGIN)
        ledger("verify", *flags, code=2)
        assert_refused(capsys, "SA101/2 is missing; label stable of SA101 is on 1, in the ledger on 2")
    ledger("verify", *flags, code=2)
    assert_refused(capsys, "does not answer")


def labelled(models_dir):
    """A server's settings: version 1 of SA101 is stable."""
    model = ModelConfig("SA101", models_dir / "SA101", VersionPolicy(latest=None, specific=(1,)), {"stable": 1})
    return ServerConfig(port=0, models={"SA101": model}, poll_s=0)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("show",), ("there is no ledger", "pass --ledger")),
        (("at", "yesterday"), ("'yesterday' is not a time", "2026-11-24T08:15")),
    ],
)
def test_wrong_input_is_one_line(path, capsys, argv, parts):
    ledger(*argv, "--ledger", path, code=2)
    assert_refused(capsys, *parts)


def test_a_changed_ledger_is_one_line(path, capsys):
    write(path)
    path.write_text(path.read_text().replace('"SA101"', '"SA102"', 1))
    ledger("verify", "--ledger", path, code=2)
    assert_refused(capsys, str(path), "line 1 ")
