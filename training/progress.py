"""The state from which an interrupted training resumes: one file, written atomically."""

import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import whole_files
from city.errors import InputError, first_line

KEYS = {"identity", "update", "best_delay_s", "best_sharpness", "stale"}
"""Keys of the JSON values of a city's training."""
ANEW = "pass another --model-number, or remove this training's files and start without --resume"
"""What to do about the damaged state of a training."""
AGAIN = "remove it and repeat the command, which keeps what else is saved"
"""What to do about the damaged state of a part of a training."""


def progress_file(out: Path, number: int) -> Path:
    """The progress file of a model number in a training's folder."""
    return out / f".trial_{number}.progress.npz"


def network_progress_file(out: Path, number: int, seed: int) -> Path:
    """The progress file of one of the networks that are trained for the policy of a model number."""
    return progress_file(networks_folder(out, number), seed)


def shared_progress_file(out: Path, number: int) -> Path:
    """The state after the updates that the networks of the policy of a model number share."""
    return networks_folder(out, number) / ".shared.progress.npz"


def progress_files(out: Path, number: int, seeds: Iterable[int]) -> list[Path]:
    """All files from which a training of a model number may resume. `seeds`: of its networks, if it has several."""
    networks = [network_progress_file(out, number, seed) for seed in seeds]
    return [progress_file(out, number), shared_progress_file(out, number), *networks, gate_progress_file(out, number)]


def network_seeds(seed: int, networks: int, shared_updates: int) -> range:
    """The seeds of the networks of a policy. `seed`: --seed, which the shared updates have if there are any."""
    # no network continues with --seed itself, so each leaves the shared updates with new random numbers
    first = seed + (1 if shared_updates else 0)
    return range(first, first + networks)


def networks_folder(out: Path, number: int) -> Path:
    """The folder of the networks of a policy. It is hidden from an export, which takes their product."""
    return out / f".trial_{number}_networks"


def gate_progress_file(out: Path, number: int) -> Path:
    """The file of the gate's results so far, for the policy of a model number."""
    return out / f".trial_{number}.gate.npz"


def lock_file(out: Path, number: int) -> Path:
    """The file that is locked while a model number is trained in a folder."""
    return out / f".trial_{number}.lock"


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
