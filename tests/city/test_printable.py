"""Control characters of untrusted names never reach a terminal or a log."""

import io
import logging
from unittest.mock import Mock

import numpy as np
import pytest

from city import program, text_table
from city.errors import InputError, ProgramFailed
from city.logs import TextFormatter
from city.printable import MAX_CHARS, MAX_WORD_CHARS, printable
from export.show import inspect_checkpoint
from serving.embedded import telemetry
from serving.errors import from_status

EVIL = "a\x1b[2Jb\u202ec\r\x9bd\u2066e\x00"
CLEAN = "a\ufffd[2Jb\ufffdc\ufffd\ufffdd\ufffde\ufffd"


def test_control_characters_and_bidirectional_marks_are_replaced():
    assert printable(EVIL) == CLEAN
    assert printable("Königstraße 東京 \N{ROMAN NUMERAL TWO}") == "Königstraße 東京 Ⅱ"
    assert printable("a\ud800b\nc\u2028d") == "a\ufffdb\ufffdc\ufffdd"


def test_long_names_and_long_lines_lose_their_middle():
    shortened = printable(f"model {'x' * 100_000}y: not found")
    assert len(shortened) < MAX_WORD_CHARS + 30 and shortened.endswith("xy: not found") and "x...x" in shortened
    assert len(printable("a b " * 100_000)) == MAX_CHARS
    assert printable("abcdefghij", 7) == "ab...ij"


@pytest.mark.parametrize("error", [InputError, ProgramFailed, lambda text: FileNotFoundError(2, "No such file", text)])
def test_error_line_of_a_program_is_printable(error):
    stream = io.StringIO()
    program.run(Mock(side_effect=error(EVIL + "x" * 100_000)), errors=stream)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable() and line.startswith("error: a\ufffd") and len(line) < 600


def test_log_lines_and_tracebacks_of_the_server_are_printable(monkeypatch, caplog):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter("server"))
    monkeypatch.setattr(telemetry.log, "handlers", [handler])
    caplog.set_level(logging.INFO, telemetry.log.name)
    telemetry.event("loaded", model=EVIL, version=1, path="x" * 100_000)
    try:
        raise ValueError(EVIL)
    except ValueError:
        telemetry.log.exception("loading of %s failed", EVIL)
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines) and max(map(len, lines)) < 700
    assert "model=" in lines[0] and f"loading of {CLEAN} failed" in lines[1] and "Traceback" in lines[2]


def test_texts_of_a_server_and_tables_are_printable():
    for code in ("NOT_FOUND", "INTERNAL"):
        assert CLEAN in str(from_status(code, EVIL)) and str(from_status(code, EVIL)).isprintable()
    assert all(line.isprintable() for line in text_table.render(("MODEL", "STATE"), [(EVIL, "x")]).split("\n"))


def test_inspect_prints_printable_names_of_variables(tmp_path, capsys):
    names = {f"actor/dense/{EVIL.replace(chr(0), '')}": np.zeros(3), f"actor/{'y' * 1000}/kernel": np.zeros(3)}
    np.savez(tmp_path / "a.npz", **{"actor/dense/kernel": np.zeros((3, 2)), **names})
    assert inspect_checkpoint.main([str(tmp_path / "a.npz")]) == 2
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).rstrip("\n").split("\n")
    assert all(line.isprintable() and len(line) < 1000 for line in lines)
    assert lines[-1].startswith("error: nothing would be exported")
