"""The log of operators' commands, in a file beside the saved modes: a shift's log outlives restarts of the controller.

Each command is a line of JSON that is appended; nothing of the file is ever rewritten.
"""

import csv
import io
import itertools
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from city.names import listed
from city.printable import printable
from controller.operator.control_messages import fields
from protos import control_pb2

log = logging.getLogger("controller")

MAX_READ_BYTES = 4_000_000
"""The end of the file that is read: some 20,000 commands."""
MAX_NAMED_TLS = 10
"""TLs that a line names."""
COLUMNS = ("time", "second", "action", "target", "value", "author", "reason")
"""Columns of the CSV; the time is the wall clock in UTC, the second is simulated."""


class CommandLog:
    """The log of one run. `read` comes first; `add` may be called by another thread than `write`."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None keeps nothing."""
        self._path = path
        self._unwritten: deque[control_pb2.Command] = deque()
        self.has_new = False
        """True if a command was added since the last `write`."""
        self._is_cut_off = False
        """True if the file's last line has no end: the next command begins a line of its own."""
        self._last_error = ""

    def read(self) -> list[control_pb2.Command]:
        """The commands of the file, the newest last. Unreadable lines stay in it, with one warning."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - MAX_READ_BYTES, 0))
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("%s: the log of earlier commands cannot be read: %s", self._path, error.strerror)
            return []
        self._is_cut_off = bool(content) and not content.endswith(b"\n")
        lines = content.split(b"\n")[int(size > MAX_READ_BYTES) :]
        parsed = [_parse(line) for line in lines if line.strip()]
        commands = [command for command in parsed if command is not None]
        if unreadable := len(parsed) - len(commands):
            log.warning(
                "%s: unreadable lines in the log of operators' commands: %d of %d; they stay in the file, and are not "
                "shown", self._path, unreadable, len(parsed),
            )  # fmt: skip
        return commands

    def add(self, command: control_pb2.Command) -> None:
        """Take a command that was applied; `write` writes it."""
        if self._path is not None:
            self._unwritten.append(command)
            self.has_new = True

    def write(self) -> None:
        """Append the commands that were added. An error is logged once; a later call writes them too."""
        self.has_new = False
        count = len(self._unwritten)  # further ones may be added meanwhile
        if self._path is None or not count:
            return
        lines = [json.dumps(fields(self._unwritten[k]), ensure_ascii=False) for k in range(count)]
        text = "\n" * self._is_cut_off + "".join(f"{line}\n" for line in lines)
        try:
            with self._path.open("ab", buffering=0) as file:
                size = file.tell()
                try:
                    if file.write(text.encode()) < len(text.encode()):
                        raise OSError(0, "the disk is full")
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)  # so that none is there twice
                    raise
        except OSError as error:
            if str(error) != self._last_error:
                log.warning(
                    "%s: cannot be written (%s); the log of commands waits for room", self._path, error.strerror
                )
            self._last_error = str(error)
            return
        self._is_cut_off, self._last_error = False, ""
        for _ in range(count):
            self._unwritten.popleft()


def _parse(line: bytes) -> control_pb2.Command | None:
    """The command of a line; None if it is unreadable."""
    try:
        command = control_pb2.Command(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (command.action, command.target, command.value, command.author, command.reason)
    is_valid = math.isfinite(command.at_s) and abs(command.unix_s) < 1e11 and all(map(str.isprintable, texts))
    return command if is_valid and command.action else None


def as_csv(commands: Iterable[control_pb2.Command]) -> str:
    """The commands as CSV with a header."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for c in commands:
        table.writerow((wall_time(c), f"{c.at_s:g}", c.action, c.target, c.value, c.author, c.reason))
    return text.getvalue()


def wall_time(command: control_pb2.Command) -> str:
    """The wall clock of a command, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(command.unix_s))


def lines(commands: Sequence[control_pb2.Command]) -> list[tuple[control_pb2.Command, str]]:
    """Commands as lines, such as "SA101, SA102 set to fixed, by ann: roadworks"; TLs that one command set are together.

    Returns (the first command of a line, its text).
    """

    def key(c: control_pb2.Command) -> tuple[Any, ...]:
        return (c.at_s, c.value, c.author, c.reason) if c.action == "set-mode" else (c.number, c.action)

    found = []
    for _, same in itertools.groupby(commands, key):
        together = list(same)
        c, target = together[0], listed([each.target for each in together], MAX_NAMED_TLS)
        texts = {
            "set-mode": f"{target} set to {c.value}",
            "acknowledge": f"alarm {target} acknowledged",
            "step": f"step to second {c.value}",
        }
        what = texts.get(c.action) or " ".join(filter(None, (c.action, target, c.value)))
        found.append((c, printable(f"{what}, by {c.author}{c.reason and f': {c.reason}'}")))
    return found
