"""How every program ends: exit code and one line for each kind of error, and a traceback for an error of the program's
own."""

import errno
import io
import os
import pickle
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from city import program
from city.errors import InputError, ProgramFailed, errors_about
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("a.toml: wrong; correct it"), 2, "error: a.toml: wrong; correct it"),
        (ProgramFailed("SUMO ended"), 1, "error: SUMO ended"),
        (
            PermissionError(errno.EACCES, "Permission denied", "out"),
            2,
            "error: out: Permission denied; name another path",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file", "a"), 2, "error: a: No such file"),
        (OSError(errno.EMFILE, "Too many open files", "a"), 1, "error: a: Too many open files"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: a file: No space left on device"),
        (KeyboardInterrupt(), 1, "error: interrupted"),
    ],
)
def test_expected_error_is_one_line_with_its_exit_code(capsys, error, code, line):
    assert program.run(Mock(side_effect=error)) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", line + "\n")


@pytest.mark.parametrize(
    ("name", "extra"),
    [("mcap", "greenserve[record]"), ("tensorflow.core", "greenserve with the extra of this command")],
)
def test_missing_package_names_the_extra_and_a_missing_module_of_our_own_does_not(capsys, name, extra):
    assert program.run(Mock(side_effect=ModuleNotFoundError(f"No module named '{name}'", name=name))) == 2
    assert f"error: No module named '{name}'; install {extra}" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        program.run(Mock(side_effect=ModuleNotFoundError("No module named 'city.none'", name="city.none")))


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), OSError("without a file"), ConnectionResetError(), BrokenPipeError()]
)
def test_error_of_the_program_itself_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        program.run(Mock(side_effect=error))


def test_exit_code_of_the_body_and_another_stream_for_errors(capsys):
    assert program.run(lambda: 3) == 3
    stream = io.StringIO()
    assert program.run(Mock(side_effect=InputError("wrong")), errors=stream) == 2
    assert stream.getvalue() == "error: wrong\n" and capsys.readouterr().err == ""


def test_interrupt_that_a_library_turned_into_another_error_is_an_interrupt(capsys):
    def body():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            raise RuntimeError("a library's") from None

    assert program.run(body, lambda: "interrupted; --resume continues") == 1
    assert capsys.readouterr().err == "error: interrupted; --resume continues\n"


def test_reader_that_has_gone_ends_a_program_quietly():
    code = "from city import program; program.run(lambda: print('x' * 100_000) or 0)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(30) == 0
    process.stderr.close()


def test_first_argument_chooses_the_subcommand(monkeypatch):
    called = []
    monkeypatch.setattr(program, "load", lambda entry: lambda argv, prog: called.append((entry, argv, prog)) or 5)
    otherwise = lambda argv, prog: called.append(("otherwise", argv, prog)) or 6  # noqa: E731
    assert program.run_subcommand(["status", "A"], "serve", {"status": "module:status"}, otherwise) == 5
    assert program.run_subcommand(["--help"], "serve", {"status": "module:status"}, otherwise) == 6
    assert called == [("module:status", ["A"], "serve status"), ("otherwise", ["--help"], "serve")]


def test_the_innermost_subject_begins_the_message_once():
    with pytest.raises(InputError) as refusal, errors_about("outer"), errors_about("in\nner"):
        raise InputError("is wrong;  fix it")
    assert str(refusal.value) == "in ner: is wrong; fix it"
    with pytest.raises(InputError) as copy, errors_about("file"):  # an error of another process
        raise pickle.loads(pickle.dumps(refusal.value))
    assert str(copy.value) == "in ner: is wrong; fix it"
