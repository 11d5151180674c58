"""The log of a daemon: one line a record on stderr, in UTC, as text or as JSON.

    2026-11-21T02:19:54.639Z INFO loaded model=SA101 version=3 ms=14
    {"time": "2026-11-21T02:19:54.639Z", "level": "INFO", "program": "server", "message": "loaded"}

A record's attribute `fields` is a dictionary of further values.
"""

import argparse
import json
import logging
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from city.printable import printable

TEXT, JSON = FORMATS = "text", "json"
MAX_LINE_CHARS = 100_000
"""Limit for a line as text, which may name thousands of TLs."""
_UNQUOTED = re.compile(r"[^\s\"=]+")


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format", choices=FORMATS, default=TEXT, help="a line of the log, in UTC, as text or JSON (default: text)"
    )


def configure(argv: Sequence[str], program: str) -> None:
    """Write this process's log to stderr, in the format that its command line asks for.

    It comes before the command line is parsed, because that logs warnings too; an invalid format is reported there.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_flag(parser)
    try:
        chosen = parser.parse_known_args(argv)[0].log_format  # argparse reads no flags behind --, where SUMO's are
    except argparse.ArgumentError:
        chosen = TEXT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(program) if chosen == JSON else TextFormatter(program))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def flags() -> list[str]:
    """The flags with which a child process logs in the format of this one."""
    return [] if _json_formatter() is None else ["--log-format", JSON]


def error_line(message: str) -> str:
    """The line about the error that ends a program."""
    formatter = _json_formatter()
    if formatter is None:
        return f"error: {message}"
    return formatter.format(logging.LogRecord("error", logging.ERROR, "", 0, message, None, None))


def _json_formatter() -> "JsonFormatter | None":
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((each for each in formatters if isinstance(each, JsonFormatter)), None)


class _UtcFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(_UtcFormatter):
    """Time, level, message and key=value fields (logfmt), printable: clients choose names of models."""

    def __init__(self, program: str) -> None:
        # a guard writes into its controller's log
        prefix = "guard: " if program == "guard" else ""
        super().__init__(f"%(asctime)s %(levelname)s {prefix}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_value(value)}" for key, value in getattr(record, "fields", {}).items())
        return printable(super().formatMessage(record) + fields, MAX_LINE_CHARS)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).splitlines()))


class JsonFormatter(_UtcFormatter):
    """Time, level, program, message and fields as one JSON object, in ASCII."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "program": self._program,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({**getattr(record, "fields", {}), **line}, default=str)


def _value(value: Any) -> str:
    text = printable(f"{value:.3g}" if isinstance(value, float) else str(value))
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text, ensure_ascii=False)
