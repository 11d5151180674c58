"""Recorded observations of traffic, on which the parity check compares actions too."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError, errors_about

MAX_OBSERVATIONS = 10_000
"""Limit for a TL: the evaluation in float64 takes some milliseconds for each 1,000."""
REMEDY = "write it again (greenserve record export --observations DIR)"


def check_folder(folder: Path, tls: Sequence[str]) -> Path:
    """The folder. Raises InputError if it has no observations of these TLs."""
    if not any((folder / f"{tl}.npy").is_file() for tl in tls):
        raise InputError(
            f"--observations {folder}: holds no observations of {', '.join(tls)}, such as {tls[0]}.npy; {REMEDY}"
        )
    return folder


def read(folder: Path, tl: str) -> NDArray[np.float32] | None:
    """[n, O] observations of a TL, None if the folder has none. Raises InputError."""
    path = folder / f"{tl}.npy"
    if not path.is_file():
        return None
    with errors_about(path):
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InputError(f"is not an array of NumPy ({error}); {REMEDY}") from None
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.ndim != 2:
            raise InputError(f"is not an array float32 [n, O]; {REMEDY}")
        if not 0 < len(values) <= MAX_OBSERVATIONS:
            raise InputError(f"holds {len(values)} observations, not 1 to {MAX_OBSERVATIONS}; {REMEDY}")
        if not np.isfinite(values).all():
            raise InputError(f"holds values that are not finite; {REMEDY}")
        return np.array(values)
