"""The file in which greenserve train records what its checkpoints lack: programs, duration of changes, activation."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from city import whole_files
from city.errors import InputError, errors_about, first_line
from export.actors import activations
from export.locate import Candidate


@dataclass(frozen=True)
class TrainingRecord:
    """The record of one TL's training."""

    programs: Mapping[str, str]
    """Signal -> program with the phases that the policy was trained on."""
    change_s: float = 0.0
    """Longest change of greens, in s; 0 if the policy does not choose greens."""
    hidden_activation: str | None = None
    """Activation of the actor's hidden layers; None in records of versions that had relu alone, and in dialect
    street."""


def path_in(folder: Path, number: int) -> Path:
    """The file of a model number in a folder of checkpoints."""
    return folder / f"trial_{number}_training.json"


def write(folder: Path, number: int, records: Mapping[str, TrainingRecord]) -> None:
    """Write the file. `records`: by TL. Raises InputError."""
    text = json.dumps({tl: asdict(record) for tl, record in records.items()}, indent=1)
    whole_files.write(path_in(folder, number), text + "\n")


def read(candidate: Candidate, model_path: Path, number: int, tl: str) -> TrainingRecord | None:
    """The record of a checkpoint's training; `None` if greenserve train did not write it. Raises InputError.

    The file lies in the checkpoint's folder, or in one above it up to `model_path`.
    """
    for folder in candidate.path.parents:
        if (path := path_in(folder, number)).is_file():
            with errors_about(path):
                return _read(path, tl)
        if folder == model_path:
            break
    return None


def _read(path: Path, tl: str) -> TrainingRecord | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8")).get(tl)
        if record is None:
            return None
        programs, change_s = record["programs"], record["change_s"]
        if not all(isinstance(text, str) for item in programs.items() for text in item):
            raise ValueError(f"{tl} has no programs by signal")
        if not isinstance(change_s, int | float) or not 0 <= change_s < math.inf:
            raise ValueError(f"{tl} has no time in s")
        activation = record.get("hidden_activation")
        if activation is not None and (reason := activations.refusal(activation)):
            raise ValueError(f"hidden_activation {reason}")
        return TrainingRecord(dict(programs), float(change_s), activation)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"is not the record of a training ({first_line(error)}); remove it") from None
