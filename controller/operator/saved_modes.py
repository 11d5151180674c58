"""The modes and pins that operators set, in a small file beside the guard's, so that a restart keeps them.

One file for each city file and SUMO. A controller that finds it locked belongs to the same city and SUMO as another one
that runs: it keeps its own commands in memory.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from city import whole_files
from city.errors import InputError
from controller.guard import files
from controller.operator.command_log import CommandLog
from signals.fallback.control_mode import OperatorMode

log = logging.getLogger("controller")

MAX_BYTES = 10_000_000
"""Limit of the file: it has some 100 bytes for each TL."""


class SetMode(NamedTuple):
    """A mode that an operator set."""

    mode: OperatorMode
    author: str
    at_s: float
    """Simulated second of the command."""
    until_s: float
    """Simulated second at which the mode is taken back; inf: only by a command."""
    reason: str = ""
    """The reason that its author gave; "": none."""


class Pin(NamedTuple):
    """A model number that an operator pinned."""

    version: int
    author: str
    end_s: float = math.inf
    """Wall time (time.monotonic) of its end; inf: only by a command. A pin that ends is not saved."""
    then: int | None = None
    """Version that is pinned then; None: the latest."""


class Saved(NamedTuple):
    """The content of the file, by TL."""

    modes: Mapping[str, SetMode] = {}
    pins: Mapping[str, Pin] = {}


def path_of(city: Path, sumo: tuple[str, int] | None, order: int | None) -> Path:
    """The file of a controller. Raises InputError if another user owns the folder, OSError if it cannot be created.

    `sumo`: (host, port) of the SUMO that it is attached to; None: the controller starts one.
    """
    identity = json.dumps([str(city.resolve()), list(sumo) if sumo else None, order])
    return files.folder() / f"{files.OPERATOR_PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


class SavedModes:
    """The file of one run, which it locks."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None keeps nothing. A file that another controller has locked, or that cannot be locked, is left
        alone."""
        self._lock = None if path is None else _lock(path)
        self._path = None if self._lock is None else path
        self.log = CommandLog(self._path and self._path.with_suffix(".jsonl"))
        """The log of commands in the same folder, under the same lock."""
        self._last_error = ""

    def read(self) -> Saved:
        """The saved modes; a damaged file is moved aside, with one warning."""
        if self._path is None:
            return Saved()
        try:
            if self._path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            return _parse(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Saved()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # a second damaged file must not replace the first one
            names = (self._path.with_name(f"{self._path.stem}.{k}.damaged") for k in itertools.count(1))
            aside = next(name for name in names if not name.exists())
            with contextlib.suppress(OSError):
                self._path.rename(aside)
            log.warning(
                "%s: the operators' modes cannot be read (%s: %s); the run begins without them, the file is now %s",
                self._path, type(error).__name__, error, aside,
            )  # fmt: skip
            return Saved()

    def write(self, saved: Saved) -> None:
        """Replace the file. An error is logged once: the run continues, a restart does not know the modes."""
        if self._path is None:
            return
        try:
            whole_files.write(self._path, json.dumps(_content(saved)), "a restart forgets the modes")
            self._last_error = ""
        except InputError as error:
            if str(error) != self._last_error:
                log.warning("%s", error)
            self._last_error = str(error)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def _lock(path: Path) -> TextIO | None:
    """The file's lock; None, with a warning, if it cannot be had."""
    try:
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        log.warning("%s: cannot be opened (%s); a restart forgets the modes that operators set", path, error.strerror)
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        log.warning(
            "%s: another controller of this city and SUMO uses it; a restart of this one forgets the modes that "
            "operators set",
            path,
        )
        return None
    return lock


def _content(saved: Saved) -> dict[str, Any]:
    modes = {
        tl: {**mode._asdict(), "until_s": None if mode.until_s == math.inf else mode.until_s}
        for tl, mode in saved.modes.items()
    }
    return {
        "modes": modes,
        "pins": {tl: {"version": pin.version, "author": pin.author} for tl, pin in saved.pins.items()},
    }


def _parse(content: Any) -> Saved:
    """Raises ValueError, KeyError, TypeError or AttributeError if the content is not of `_content`."""
    modes = {
        str(tl): SetMode(
            OperatorMode(m["mode"]),
            str(m["author"]),
            _second(m["at_s"]),
            math.inf if m["until_s"] is None else _second(m["until_s"]),
            str(m.get("reason", "")),
        )
        for tl, m in content["modes"].items()
    }
    if any(mode.mode is OperatorMode.POLICY for mode in modes.values()):
        raise ValueError("a mode that is not hold or fixed")
    return Saved(
        modes, {str(tl): Pin(_version(pin["version"]), str(pin["author"])) for tl, pin in content["pins"].items()}
    )


def _second(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a simulated second")
    return float(value)


def _version(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise ValueError(f"{value!r} is not a model number")
    return value
