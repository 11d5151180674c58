"""The file in which greenserve train records how long changes of greens took: the checkpoints themselves do not contain it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from city import whole_files
from city.errors import InputError, first_line
from export.locate import Candidate


def path_in(folder: Path, number: int) -> Path:
    """The file of a model number in a folder of checkpoints."""
    return folder / f"trial_{number}_change_times.json"


def write(folder: Path, number: int, change_s: Mapping[str, float]) -> None:
    """Write the file. `change_s`: TL -> longest change of greens in training, in s. Raises InputError."""
    whole_files.write(path_in(folder, number), json.dumps(dict(change_s), indent=1) + "\n")


def read(candidate: Candidate, model_path: Path, number: int, tl: str) -> float:
    """The longest change of greens in a checkpoint's training, in s; 0 if it was not recorded. Raises InputError.

    The file lies in the checkpoint's folder, or in one above it up to `model_path`.
    """
    for folder in candidate.path.parents:
        if (path := path_in(folder, number)).is_file():
            return _read(path, tl)
        if folder == model_path:
            break
    return 0.0


def _read(path: Path, tl: str) -> float:
    try:
        change_s = json.loads(path.read_text(encoding="utf-8")).get(tl, 0.0)
        if not isinstance(change_s, int | float) or not 0 <= change_s < math.inf:
            raise ValueError(f"{tl} has no time in s")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: is not a record of change times ({first_line(error)}); remove it") from None
    return float(change_s)
