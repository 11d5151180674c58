"""`greenserve ledger`: which model drove which TL at a time, lines that were cut off or changed."""

import re
from datetime import timedelta

import pytest

from city.ledger_file import LedgerFile
from rollout.ledger_command import main
from tests.city.ledgers import BEGIN, ENDED, write
from tests.error_lines import assert_refused


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


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
