"""The city's traffic in the last records with the same TLs and programs, by simulated minute.

A process of its own with the lowest priority reads them, and a thread waits for that process: neither the start nor a
decision is delayed, whatever their size or state.
"""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.recording.record_folder import file_name

log = logging.getLogger("controller")

READER = "records.traffic_by_minute"
"""Program that finds and reads the records; nothing of it is imported here."""
MAX_WAIT_S = 180.0
"""Wall time after which the reader is killed; it stops reading steps long before."""


class EarlierTraffic:
    """Starts the reader, and keeps what it has found."""

    def __init__(self, folder: Path, plan: str, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        """Start the reader. Raises OSError.

        Args:
            folder: of the records.
            plan: `plan_digest` of this run.
            wall_clock_ns: the wall clock in ns since 1970, read once: records that begin later are not read.
        """
        self._minutes: dict[str, list[Any]] = {}
        """By minute, a record's name and its figures."""
        self._is_closed = False
        command = [sys.executable, "-P", "-m", READER, str(folder), plan, file_name(wall_clock_ns(), "0", 0)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, name="earlier-traffic", daemon=True)
        self._thread.start()

    def at(self, second: float) -> dict[str, Any] | None:
        """The figures in the simulated minute of a second, and the record's name; None if there are none."""
        found = self._minutes.get(str(int(second // 60)))
        return dict(zip(("of", "vehicles", "halting", "delay_s"), found, strict=True)) if found else None

    def close(self) -> None:
        """End the reader."""
        self._is_closed = True
        self._process.kill()
        self._thread.join()

    def _read(self) -> None:
        found: dict[str, list[Any]] = {}
        try:
            output, note = self._process.communicate(timeout=MAX_WAIT_S)
            found = json.loads(output or "{}")
        except (ValueError, subprocess.TimeoutExpired) as error:
            self._process.kill()
            note = str(error)
        if self._is_closed:
            return
        self._minutes = found
        of = ", ".join(dict.fromkeys(name for name, *_ in found.values())) or "no earlier record"
        note = note.strip().rpartition("\n")[2]
        log.info("the page compares traffic with %s%s", of, f" ({note})" if note else "")
