"""Structured logs: time, level, event and key=value fields (logfmt), one event per line.

2026-11-21T02:19:54.639Z INFO loaded model=SA101 version=3 ms=14
"""

import json
import logging
import re
import time
from typing import Any, TextIO

from city.printable import printable

log = logging.getLogger("serving")
_UNQUOTED = re.compile(r"[^\s\"=]+")


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields."""
    if log.isEnabledFor(level):
        log.log(level, "%s", " ".join((name, *(f"{key}={_value(value)}" for key, value in fields.items()))))


def configure(stream: TextIO) -> None:
    """Write the server's log to this stream only."""
    handler = logging.StreamHandler(stream)
    formatter = _Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


class _Formatter(logging.Formatter):
    """Messages and tracebacks as printable lines: clients choose names of models."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).splitlines()))


def _value(value: Any) -> str:
    text = printable(f"{value:.3g}" if isinstance(value, float) else str(value))
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text, ensure_ascii=False)
