"""Events of the server in its log: a name, with fields."""

import logging
from typing import Any

log = logging.getLogger("serving")


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields."""
    log.log(level, "%s", name, extra={"fields": fields})
