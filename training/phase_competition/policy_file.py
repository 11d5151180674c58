"""The file of a policy of the street dialect, between trainings: actors and critics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.actors.phase_competition import SHAPES
from export.checkpoints import phase_networks
from training.phase_competition.networks import ACTOR, CRITIC_SHAPES
from training.transitions import Float32s


def path_in(folder: Path, number: int) -> Path:
    """The file of a policy with a model number."""
    return folder / f"street_trial_{number}{phase_networks.SUFFIX}"


def save(path: Path, arrays: Sequence[Float32s], sharpness: float, description: Mapping[str, Any]) -> None:
    """Write a policy, with the sharpness in the actor's last layer. Raises InputError.

    `description`: how it was trained, in JSON's types.
    """
    arrays = list(arrays)
    arrays[ACTOR - 2 : ACTOR] = [np.float32(sharpness) * array for array in arrays[ACTOR - 2 : ACTOR]]
    actor = dict(zip(SHAPES, arrays[:ACTOR], strict=True))
    critic = dict(zip(CRITIC_SHAPES, arrays[ACTOR:], strict=True))
    phase_networks.save(path, actor, critic, {"training": description})


def load(path: Path) -> list[Float32s]:
    """The actor's arrays, then the critic's if the file holds one, of a file of `save`. Raises InputError."""
    actor, critic = phase_networks.load(path, CRITIC_SHAPES)
    return [*(actor[name] for name in SHAPES), *(critic[name] for name in CRITIC_SHAPES if critic)]
