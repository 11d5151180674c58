"""Statistics of stable-baselines3's VecNormalize, in a .pkl file beside a policy's zip.

They are those of `Normalisation`, with VecNormalize's epsilon added to the variance.
Source: stable_baselines3/common/vec_env/vec_normalize.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError, errors_about
from export.actors.steps import BatchNorm, Clip, Step
from export.checkpoints import pickles
from export.checkpoints.helper_process import Helper

STATISTICS = re.compile(r"vec_?normalize", re.I)
"""The part of a statistics file's name beside its model's name."""
HEAD_BYTES = 256
"""A pickle begins with the class of its object."""


@dataclass(frozen=True)
class Normalisation:
    """An observation x becomes clip((x - mean) / sqrt(variance), -clip, clip)."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    clip: float | None

    def __post_init__(self) -> None:
        """Raises ValueError if the statistics are not one finite mean and one variance for each feature."""
        is_finite = bool(np.isfinite(self.mean).all() and np.isfinite(self.variance).all())
        if self.mean.ndim != 1 or self.mean.shape != self.variance.shape or not is_finite:
            raise ValueError("its statistics are not one mean and one variance for each feature of the observation")
        if (self.variance < 0).any() or not (self.clip is None or self.clip > 0):
            raise ValueError("its statistics are damaged: a variance, epsilon or clip_obs is negative")

    def steps(self, name: str, inputs: int, stored_as: Mapping[str, str]) -> list[Step]:
        """The normalisation as steps before a policy's network.

        Args:
            name: of the step.
            inputs: size of the policy's observation.
            stored_as: the origin of the mean and of the variance.

        Raises:
            InputError: the statistics are those of observations of another size.
        """
        if self.mean.shape != (inputs,):
            raise InputError(
                f"has statistics of {len(self.mean)} features, but the policy's observation has {inputs}; "
                "use the statistics saved with it"
            )
        norm = BatchNorm(name, None, None, self.mean, self.variance, stored_as).step()
        return [norm] if self.clip is None else [norm, Clip((-self.clip,), (self.clip,))]


def contents(path: Path) -> Normalisation | None:
    """Read a file of VecNormalize; called in a helper process. Raises ValueError, OSError.

    `None` if it does not normalise observations.
    """
    environment = pickles.load(path.read_bytes(), pickles.REBUILDERS, pickles.LIBRARIES)
    is_normalising = isinstance(environment, pickles.Opaque) and environment.global_name.endswith(".VecNormalize")
    state = environment.state if is_normalising else None
    if not isinstance(state, dict):
        raise ValueError("it is not a file of VecNormalize.save")
    if not state.get("norm_obs"):
        return None
    running = state.get("obs_rms")
    statistics = running.state if isinstance(running, pickles.Opaque) else None
    if not isinstance(statistics, dict):
        raise ValueError("it normalises the parts of a dictionary observation, which is not supported")
    mean, variance = (pickles.numbers(statistics.get(key)) for key in ("mean", "var"))
    if mean is None or variance is None:
        raise ValueError("its statistics hold no arrays")
    epsilon, clip = float(state.get("epsilon", 1e-8)), float(state.get("clip_obs", 10.0))
    return Normalisation(mean.astype(np.float64), variance.astype(np.float64) + epsilon, clip)


_HELPER = Helper(contents, "statistics of VecNormalize")


def steps(file: Path, inputs: int) -> tuple[list[Step], str]:
    """(the normalisation as steps before a policy's network, a note for the user). Raises InputError.

    `inputs`: size of an observation.
    """
    with errors_about(file):
        statistics = _HELPER.read(file)
        if statistics is None:
            return [], f"{file.name} normalises rewards only"
        stored_as = {"mean": f"{file.name}: obs_rms.mean", "variance": f"{file.name}: obs_rms.var + epsilon"}
        return statistics.steps("vecnormalize", inputs, stored_as), f"observations are normalised as in {file.name}"


def files_beside(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of statistics beside a zip: those that belong to it by their names, and those of no other zip."""
    files = [file for file in sorted(path.parent.iterdir()) if _has_statistics(file)]
    # CheckpointCallback writes rl_model_1000_steps.zip and rl_model_vecnormalize_1000_steps.pkl
    model_of = {file: _normalised_name(STATISTICS.sub("", file.stem)) for file in files}
    models = {_normalised_name(file.stem) for file in path.parent.glob("*.zip")}
    stem = _normalised_name(path.stem)
    matching = [file for file, model in model_of.items() if model == stem]
    # a file with the name of another model belongs to that model
    unassigned = [file for file, model in model_of.items() if model not in models]
    if not matching and len(unassigned) == 1 and models <= {stem, *model_of.values()}:
        prefix = f"_{model_of[unassigned[0]]}_".replace("__", "_")
        matching = unassigned if f"_{stem}_".startswith(prefix) else []
    return matching, unassigned


def _has_statistics(file: Path) -> bool:
    """Tell whether VecNormalize.save wrote a file, by its name or its content."""
    if file.suffix == ".pkl" and STATISTICS.search(file.name):
        return True
    if file.suffix == ".zip" or not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            return b"VecNormalize" in stream.read(HEAD_BYTES)
    except OSError:
        return False  # another user's file


def _normalised_name(name: str) -> str:
    return re.sub(r"[\s_.-]+", "_", name.lower()).strip("_")
