"""The SUMO program: where it is, and what it says when it fails."""

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from city.errors import InputError


def sumo_program(name: str = "sumo") -> str:
    """The path of a SUMO program: of the eclipse-sumo package, else of $SUMO_HOME or PATH."""
    candidates: list[Path] = []
    with contextlib.suppress(ImportError):
        import sumo

        candidates.append(Path(sumo.SUMO_HOME) / "bin" / name)
    if "SUMO_HOME" in os.environ:
        candidates.append(Path(os.environ["SUMO_HOME"]) / "bin" / name)
    found = next((str(path) for path in candidates if path.is_file()), shutil.which(name))
    if found is None:
        raise InputError(f"the program {name} was not found; install eclipse-sumo or set SUMO_HOME")
    return found


class Voice:
    """What a SUMO started here writes to stderr: always read, so that it never blocks
    on a full pipe; its first error is kept, for who asks why it ended.
    """

    def __init__(self, stream: Any) -> None:
        self._error: list[str] = []
        self._thread = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._thread.start()

    def _listen(self, stream: Any) -> None:
        for raw in stream or ():
            line = raw.decode(errors="replace").strip()
            # an error may go on over several lines, up to SUMO's farewell
            if (self._error or line.startswith("Error")) and not line.startswith("Quitting") and len(self._error) < 5:
                self._error.append(line)

    def error(self) -> str:
        """The error of a SUMO that has ended, or "" where it named none."""
        self._thread.join(timeout=2)
        return " ".join(self._error)
