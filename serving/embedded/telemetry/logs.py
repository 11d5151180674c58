"""Structured logs: a line is a time, a level, an event, then key=value (logfmt).

2026-11-21T02:19:54.639Z INFO loaded model=SA101 version=3 ms=14
"""

import json
import logging
import re
import time
from typing import Any

log = logging.getLogger("serving")
_PLAIN = re.compile(r"[^\s\"=]+")


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event with its fields."""
    if log.isEnabledFor(level):
        log.log(level, "%s", " ".join((name, *(f"{key}={_value(value)}" for key, value in fields.items()))))


def to(stream: Any) -> None:
    """Send the server's log to a stream."""
    handler = logging.StreamHandler(stream)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def _value(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())
