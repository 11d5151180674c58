"""Interleaved benchmark cases: each runs in a process of its own and advances by one part of its work per turn.

Other load on a machine lasts for tenths of a second or for minutes. It disturbs some of
several consecutive runs; interleaved cases share the disturbance, so their ratio holds.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
MAX_QUOTED = 2000
"""Characters of a failed case's stderr in its error."""


class Command(NamedTuple):
    """The command of a case's process."""

    arguments: Sequence[str]
    """Arguments of Python."""
    environment: Mapping[str, str | None] = {}
    """Environment variables of the process; `None` unsets one."""


def serve_turns(progress: Iterator[float]) -> None:
    """Run one case in its process.

    `progress` does the work; it yields its position first when it is set up, then after
    each step.
    """
    # stdout carries the protocol; prints of the case or a library go to stderr
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    next(progress)
    print("ready", file=protocol, flush=True)
    for line in sys.stdin:
        until = float(line)
        begin = time.perf_counter()
        for reached in progress:
            if reached >= until:
                break
        print(time.perf_counter() - begin, file=protocol, flush=True)
    for _ in progress:
        raise RuntimeError("the case has work left after its last turn")


class _Case:
    """The process of a case, and its stderr."""

    def __init__(self, command: Command) -> None:
        self._arguments = command.arguments
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the case
        environment = {
            name: value for name, value in {**os.environ, **command.environment}.items() if value is not None
        }
        self.process = subprocess.Popen(
            [sys.executable, *command.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def read_line(self) -> str:
        """Read the next line of the protocol. Raises RuntimeError if the process has ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip() or self._raise_failure()

    def turn(self, until: float) -> float:
        """Run the case up to `until`; return the wall time in s."""
        assert self.process.stdin
        self.process.stdin.write(f"{until}\n")
        self.process.stdin.flush()
        return float(self.read_line())

    def end(self) -> None:
        """Wait for the end of the process. Raises RuntimeError if it fails."""
        assert self.process.stdin
        self.process.stdin.close()
        if self.process.wait():
            self._raise_failure()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _raise_failure(self) -> NoReturn:
        self.kill()
        self._stderr.seek(0)
        raise RuntimeError(f"{' '.join(self._arguments)}: {self._stderr.read()[-MAX_QUOTED:]}")


def take_turns(commands: Mapping[str, Command], parts: Sequence[float]) -> dict[str, list[float]]:
    """Run the cases in turns; return the wall time in s of every turn, by case.

    `commands`: by case. `parts`: the position at the end of each turn. Raises RuntimeError
    with the stderr of a case that fails.
    """
    times_s: dict[str, list[float]] = {name: [] for name in commands}
    with contextlib.ExitStack() as stack:
        cases = {}
        for name, command in commands.items():
            cases[name] = _Case(command)
            stack.callback(cases[name].kill)
            cases[name].read_line()  # set up one by one, so that no case starts while another works
        for until in parts:
            for name, case in cases.items():
                times_s[name].append(case.turn(until))
        for case in cases.values():
            case.end()
    return times_s
