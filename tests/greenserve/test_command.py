"""The installed command `greenserve`: its subcommands, their errors and --help."""

import logging
import signal
import sys

import pytest

from greenserve.__main__ import COMMANDS, main


@pytest.fixture(autouse=True)
def unchanged_process():
    """Commands install signal handlers and log handlers; the test process keeps its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    root = logging.getLogger()
    log_handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = log_handlers
    root.setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def error_line(capsys):
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == 1 and lines[0].startswith("error: "), captured
    return lines[0]


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("flag", ["--no-such-flag", "--hel"])
def test_unknown_or_abbreviated_flag_gives_one_error_line_and_exit_code_2(command, flag, capsys):
    assert main([command, flag]) == 2
    error_line(capsys)


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert all(f" {command} {summary}" in words for command, (_, summary) in COMMANDS.items())


@pytest.mark.parametrize("argv", [["contrl"], ["contr"], [], ["--vers"]])
def test_unknown_or_missing_command_gives_one_error_line(argv, capsys):
    assert main(argv) == 2
    assert "greenserve --help" in error_line(capsys)


def test_missing_dependency_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "export.show.inspect_checkpoint", raising=False)
    for name in [name for name in sys.modules if name.startswith("export.checkpoints")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["inspect", "x.npz"]) == 2
    assert "; install greenserve with the extra" in error_line(capsys)


def test_missing_module_of_our_own_is_not_reported_as_a_missing_extra(monkeypatch):
    monkeypatch.setitem(COMMANDS, "serve", ("serving.none", ""))
    with pytest.raises(ModuleNotFoundError):
        main(["serve"])
