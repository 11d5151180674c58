"""The state from which an interrupted training resumes: one file, written atomically."""

import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import run_lock, whole_files
from city.errors import InputError, first_line

KEYS = {"identity", "update", "best_delay_s", "best_sharpness", "stale"}
"""Keys of the JSON values of a city's training."""
ANEW = "pass another --model-number, or remove this training's files and start without --resume"
"""What to do about the damaged state of a training."""


def progress_file(out: Path, number: int) -> Path:
    """The progress file of a model number in a training's folder."""
    return out / f".trial_{number}.progress.npz"


def locked(out: Path, number: int) -> AbstractContextManager[None]:
    """Lock a model number in a folder while it is trained there. Raises InputError if another training has it."""
    return run_lock.held(
        out / f".trial_{number}.lock",
        f"{out}: another training of model number {number} runs in this folder; wait for its end, or pass another "
        "--model-number or --out",
    )


class Progress:
    """The saved state of one training; a resumed training gives the same results."""

    def __init__(self, path: Path, keys: Set[str] = KEYS, remedy: str = ANEW) -> None:
        """`keys`: keys of the JSON values. `remedy`: what to do if the file is damaged."""
        self.path, self._keys, self._remedy = path, keys, remedy

    def save(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write JSON values and arrays. Raises InputError."""
        with whole_files.replacing(self.path) as draft, draft.open("wb") as file:
            np.savez(file, **{"values": np.array(json.dumps(values)), **arrays})  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        """(values, arrays), or None without a file. Raises InputError."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}; fix its path or permissions") from None
        try:
            with file:
                if not zipfile.is_zipfile(file):
                    raise ValueError("it is damaged, or not a .npz file")
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in archive.files}
            values = json.loads(str(arrays.pop("values")))
            if not isinstance(values, dict) or values.keys() != self._keys:
                raise ValueError("it has other keys")
            return values, arrays
        except Exception as error:  # noqa: BLE001 - zipfile, zlib and NumPy raise several exceptions for a corrupt file
            raise self.damaged(error) from None

    def damaged(self, error: Exception) -> InputError:
        """The error of a file whose content is not the state of this training."""
        return InputError(f"{self.path}: is not the state of this training ({first_line(error)}); {self._remedy}")


def interrupted(states: Iterable[Path]) -> str:
    """The message of an interrupted run. `states`: progress files from which --resume continues."""
    return f"interrupted; {'--resume continues' if any(path.exists() for path in states) else 'nothing was saved yet'}"
