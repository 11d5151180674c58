"""Cases of a benchmark in turns: each in a process of its own, a part of its work at a time.

What else a machine does comes and goes within tenths of a second, or lasts for
minutes. Runs that follow one another meet it or do not; cases that take turns
every so often have the same share of it, and their ratio holds.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent


def serve_turns(moments: Iterator[float]) -> None:
    """The process of one case. `moments` does its work and tells how far it has come, the first time when it is set up."""
    # what a case prints, or a library of it, is no answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    next(moments)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        until = float(line)
        begin = time.perf_counter()
        for moment in moments:
            if moment >= until:
                break
        print(time.perf_counter() - begin, file=answers, flush=True)
    for _ in moments:
        raise RuntimeError("there is work left behind the last turn")


class _Case:
    """The process of a case, and what it says on standard error."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._complaint = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the case
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaint, text=True, cwd=ROOT
        )

    def description(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().strip() or self._failed()

    def turn(self, until: float) -> float:
        assert self.process.stdin
        self.process.stdin.write(f"{until}\n")
        self.process.stdin.flush()
        return float(self.description())

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        if self.process.wait():
            self._failed()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _failed(self) -> NoReturn:
        self.kill()
        self._complaint.seek(0)
        raise RuntimeError(f"{' '.join(self._command)}: {self._complaint.read()[-2000:]}")


def take_turns(commands: Mapping[str, Sequence[str]], parts: Sequence[float]) -> dict[str, list[float]]:
    """Wall time in s of every part, by case. `commands`: arguments of Python; `parts`: how far each leads.

    Raises RuntimeError with the words of a case that fails.
    """
    took: dict[str, list[float]] = {name: [] for name in commands}
    with contextlib.ExitStack() as stack:
        cases = {}
        for name, command in commands.items():
            cases[name] = _Case(command)
            stack.callback(cases[name].kill)
            cases[name].description()  # one is set up after the other, and none while another one works
        for until in parts:
            for name, case in cases.items():
                took[name].append(case.turn(until))
        for case in cases.values():
            case.end()
    return took
