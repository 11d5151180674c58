"""The paths of SUMO's programs, and the error text of a SUMO that failed."""

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from city.errors import InputError

MAX_ERROR_LINES = 5
END_TIMEOUT_S = 10.0
"""Wall time within which a SUMO that has closed its connection ends."""
NO_DISPLAY = "unable to open display"
"""Text of sumo-gui's error without a display, which does not begin like SUMO's errors."""
GUI_REMEDY = "run in a desktop session or with ssh -X, or leave --gui out"


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


def sumo_gui_program() -> str:
    """The path of sumo-gui. Raises InputError if there is no display."""
    if not os.environ.get("DISPLAY"):
        raise InputError(f"--gui: sumo-gui needs a display, and DISPLAY is not set; {GUI_REMEDY}")
    return sumo_program("sumo-gui")


class StderrReader:
    """Keeps the first error of a started SUMO; reads stderr so that SUMO never blocks on a full pipe."""

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
            if NO_DISPLAY in line:
                line, is_error = f"sumo-gui cannot open the display {os.environ.get('DISPLAY')}; {GUI_REMEDY}", True
            if is_error and not line.startswith("Quitting") and len(self._error_lines) < MAX_ERROR_LINES:
                self._error_lines.append(line)

    def error(self) -> str:
        """The error text of a SUMO that has ended, or ""."""
        # SUMO closes its connections before it ends, which takes some seconds if the machine is busy
        self._thread.join(END_TIMEOUT_S)
        return " ".join(self._error_lines)
