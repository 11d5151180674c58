"""The city's traffic in the last record with the same TLs and programs, by simulated minute.

A process of its own with the lowest priority reads it, and a thread waits for that process: neither the start nor a
decision is delayed, whatever the record's size or state.
"""

import datetime
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from controller.recording.record_folder import file_name

log = logging.getLogger("controller")

READER = "records.traffic_by_minute"
"""Program that finds and reads the record; nothing of it is imported here."""
MAX_WAIT_S = 180.0
"""Wall time after which the reader is killed; it stops reading steps long before."""
WEEK_DAYS = 7


class EarlierTraffic:
    """Starts the reader, and keeps what it has found."""

    def __init__(self, folder: Path, plan: str) -> None:
        """Prepare it; `start` begins. `plan`: `plan_digest` of the run, whose records in `folder` are compared."""
        before = file_name(time.time_ns(), "0", 0)
        self._command = [sys.executable, "-P", "-m", READER, str(folder), plan, before]
        self._of = ""
        self._minutes: dict[str, list[float | None]] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="earlier-traffic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def at(self, second: float) -> dict[str, Any] | None:
        """The figures in the simulated minute of a second, and the record's name; None if there are none."""
        vehicles, halting, delay_s = self._minutes.get(str(int(second // 60)), (None, None, None))
        if vehicles is None:
            return None
        return {"of": self._of, "vehicles": vehicles, "halting": halting, "delay_s": delay_s}

    def close(self) -> None:
        """End the reader."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _read(self) -> None:
        try:
            with self._lock:
                if self._is_closed:
                    return
                self._process = subprocess.Popen(
                    self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            output, errors = self._process.communicate(timeout=MAX_WAIT_S)
            found = json.loads(output or "null")
            if found is not None and found["begin_unix_s"] is not None:
                self._of = _name(found["begin_unix_s"], time.time())
        except (OSError, ValueError, OverflowError, subprocess.TimeoutExpired) as error:
            found, errors = None, str(error)
        if self._process is not None:
            self._process.kill()
        if self._is_closed:
            return
        if found is None:
            log.warning("the page compares with no earlier record: %s", errors.strip().rpartition("\n")[2])
            return
        self._minutes = found["minutes"]
        with_which = f"{self._of}, {len(self._minutes)} minutes" if self._of else "no record: none has the same plan"
        skipped = f"; not read: {'; '.join(found['skipped'])}" if found["skipped"] else ""
        log.info("the page compares traffic with %s%s", with_which, skipped)


def _name(begin_s: float, now_s: float) -> str:
    """The name of a record by its begin, such as `Tuesday's record`. Seconds since 1970."""
    day, today = (datetime.datetime.fromtimestamp(each).date() for each in (begin_s, now_s))
    days = (today - day).days
    if days == 0:
        return "today's record"
    return f"{day:%A}'s record" if 0 < days < WEEK_DAYS else f"the record of {day}"
