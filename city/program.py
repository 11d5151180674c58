"""How every program runs: exit codes, errors in one line, interrupts, and tables of subcommands."""

import contextlib
import errno
import importlib
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from city import logs
from city.errors import InputError, ProgramFailed, path_errors_as_input_errors
from city.interrupts import InterruptContext
from city.printable import printable

FAILED, WRONG_INPUT, GATE_FAILED = 1, 2, 3
"""Exit codes beside 0: the work failed; the input is wrong; a candidate or too many networks fail at a gate."""
OWN_PACKAGES = {
    *("city", "controller", "environment", "evaluation", "export", "greenserve", "pretraining", "protos"),
    *("records", "rollout", "rounds", "serving", "signals", "simulation", "training"),
}
EXTRAS = {
    **dict.fromkeys(("lz4", "mcap", "zstandard"), "record"),
    **dict.fromkeys(("matplotlib", "pyarrow", "scipy"), "evaluation"),
    "ray": "distributed",
}
"""By package that one extra alone installs, that extra."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(
    body: Callable[[], int],
    interrupted: Callable[[], str] = lambda: "interrupted",
    takes_signals: bool = True,
    errors: TextIO | None = None,
) -> int:
    """Run a program and return its exit code; an expected error is printed as one line.

    Args:
        body: the program; returns an exit code. It also does the slow imports, so that an interrupt of them is one
            line.
        interrupted: returns the message after SIGTERM or Ctrl-C.
        takes_signals: whether SIGTERM and Ctrl-C raise KeyboardInterrupt in `body`; a daemon installs its own handlers.
        errors: where error lines go (default: stderr).
    """
    # TensorFlow's start-up log would bury the program's own lines; child processes inherit the setting
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    interrupts = InterruptContext()
    try:
        with path_errors_as_input_errors(), interrupts if takes_signals else contextlib.nullcontext():
            code = body()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _is_stdout_broken():
            raise
        # the reader, such as head, has what it needs; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        # a library may have turned the interrupt into an error of its own
        if interrupts.received or isinstance(error, KeyboardInterrupt):
            expected: tuple[str, int] | None = (interrupted(), FAILED)
        else:
            expected = _expected(error)
        if expected is None:
            raise
        message, code = expected
        # any message may contain names from untrusted files
        line = printable(" ".join(message.split()))
        print(logs.error_line(line) if errors is None else f"error: {line}", file=errors or sys.stderr, flush=True)
        return code


def _is_stdout_broken() -> bool:
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False  # not a file of the system
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _expected(error: Exception) -> tuple[str, int] | None:
    """(message, exit code) of an error that users can cause; None for a bug, which gets a traceback."""
    if isinstance(error, InputError):
        return str(error), WRONG_INPUT
    if isinstance(error, ProgramFailed):
        return str(error), FAILED
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) not in OWN_PACKAGES:
        of_command = "greenserve with the extra of this command, such as greenserve[serving]"
        extra = f"greenserve[{EXTRAS[package]}]" if package in EXTRAS else of_command
        return f"{error}; install {extra}", WRONG_INPUT
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK_ERRORS):
        is_input = error.errno in (*_DISK_ERRORS, errno.ENOENT)
        return f"{error.filename or 'a file'}: {error.strerror or error}", WRONG_INPUT if is_input else FAILED
    return None


def print_line(line: str) -> None:
    """Print a line to stderr and flush, so that a log file shows the program's progress."""
    print(line, file=sys.stderr, flush=True)


Main = Callable[[list[str], str], int]
"""A program's main: (arguments, its name in messages) -> exit code."""


def load(entry: str) -> Main:
    """Import a program's main function, given as `module` or `module:function`."""
    module, _, function = entry.partition(":")
    program: Main = getattr(importlib.import_module(module), function or "main")
    return program


def run_subcommand(argv: Sequence[str] | None, prog: str, subcommands: Mapping[str, str], otherwise: Main) -> int:
    """Run the subcommand that the first argument names, or the program itself.

    Args:
        argv: the arguments (default: those of this process).
        prog: the program's name.
        subcommands: name -> main function, as `load` takes it.
        otherwise: the program without a subcommand.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in subcommands:
        return otherwise(arguments, prog)
    name = arguments[0]
    # inside `run`: the import may fail or be interrupted, like the program itself
    return run(lambda: load(subcommands[name])(arguments[1:], f"{prog} {name}"), takes_signals=False)
