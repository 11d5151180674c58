"""The paths of SUMO's programs, and the error text of a SUMO that failed."""

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from city.errors import InputError

MAX_ERROR_LINES = 5


def sumo_program(name: str = "sumo") -> str:
    """The path of a SUMO program, from the eclipse-sumo package, else $SUMO_HOME, else PATH. Raises InputError."""
    candidates: list[Path] = []
    with contextlib.suppress(ImportError):
        import sumo

        candidates.append(Path(sumo.SUMO_HOME) / "bin" / name)
    if "SUMO_HOME" in os.environ:
        candidates.append(Path(os.environ["SUMO_HOME"]) / "bin" / name)
    program = next((str(path) for path in candidates if path.is_file()), shutil.which(name))
    if program is None:
        raise InputError(f"the program {name} was not found; install eclipse-sumo or set SUMO_HOME")
    return program


class StderrReader:
    """Reads the stderr of the started SUMO, so that SUMO never blocks on a full pipe, and keeps its first error."""

    def __init__(self, stream: Any) -> None:
        """`stream` is None if SUMO was not started by this process."""
        self._error_lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: Any) -> None:
        for raw in stream or ():
            line = raw.decode(errors="replace").strip()
            # an error may take several lines, up to SUMO's closing "Quitting (on error)."
            is_error = self._error_lines or line.startswith("Error")
            if is_error and not line.startswith("Quitting") and len(self._error_lines) < MAX_ERROR_LINES:
                self._error_lines.append(line)

    def error(self) -> str:
        """The error text of a SUMO that has ended, or ""."""
        self._thread.join(timeout=2)
        return " ".join(self._error_lines)
