"""A network of phase competition (`export.actors.phase_competition`): one policy for any junction, in one file.

The file is a NumPy archive with the suffix .policy: the actor's weights by name, the critic's for a training that
starts from them, and `description`, a JSON text: the lane features that the weights are for, and how they were trained.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import whole_files
from city.errors import InputError, errors_about, library_errors
from export.actors import Actor
from export.actors.phase_competition import SHAPES, Junction, PhaseCompetition
from export.checkpoints.checkpoint import Checkpoint, unread_variables
from export.checkpoints.numpy_archive import open_checkpoint
from export.checkpoints.source import ActorRequest, RebuiltActor, Source
from serving.contract import CATEGORICAL
from signals.approach_features import FEATURES
from signals.dialects.street import DIALECT

SUFFIX = ".policy"
CRITIC = "critic_"
"""Prefix of the critics' arrays."""
DESCRIPTION = "description"

Arrays = Mapping[str, NDArray[np.float32]]


def save(path: Path, actor: Arrays, critic: Arrays, description: Mapping[str, Any]) -> None:
    """Write a network, replacing a file of that name at once. Raises InputError.

    Args:
        path: the file.
        actor: by name of `SHAPES`.
        critic: the same with its own shapes.
        description: how they were trained, in JSON's types.
    """
    text = json.dumps({"features": FEATURES, **description})
    arrays = {**actor, **{f"{CRITIC}{name}": array for name, array in critic.items()}}
    with whole_files.replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **{DESCRIPTION: np.array(text)}, **arrays)  # type: ignore[arg-type]


def description_of(path: Path) -> dict[str, Any]:
    """The description of a file of `save`. Raises InputError."""
    with errors_about(path):
        return _description(open_checkpoint(path))


def load(
    path: Path, critic_shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """(actor, critic) of a file of `save`. Raises InputError if it is damaged or for other features.

    `critic_shapes`: shapes of the critic's arrays; without them, or in a file without a critic, it is not read.
    """
    with errors_about(path):
        checkpoint = open_checkpoint(path)
        _description(checkpoint)
        actor = {name: _array(checkpoint, name, shape) for name, shape in SHAPES.items()}
        has_critic = any(name.startswith(CRITIC) for name in checkpoint.stored)
        shapes = critic_shapes if critic_shapes is not None and has_critic else {}
        critic = {name: _array(checkpoint, f"{CRITIC}{name}", shape) for name, shape in shapes.items()}
    return actor, critic


def _description(checkpoint: Checkpoint) -> dict[str, Any]:
    if DESCRIPTION not in checkpoint.stored:
        raise InputError(
            "has no description, so it is not a policy of phase competition; pass a file of greenserve train"
        )
    kinds = (ValueError, LookupError, TypeError, RecursionError)
    with library_errors("its description cannot be read", kinds, remedy="; train it again"):
        description: dict[str, Any] = json.loads(str(checkpoint.value(DESCRIPTION)))
        features = description["features"]
    if features != list(FEATURES):
        raise InputError(
            "its weights are for other lane features than those of this version of greenserve; "
            "use the version that it was trained with, or train it again"
        )
    return description


def _array(checkpoint: Checkpoint, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    stored = checkpoint.stored.get(name)
    if stored is None or stored.shape != tuple(shape):
        has = "is missing" if stored is None else f"has shape {list(stored.shape)}"
        raise InputError(f"{name} {has}, but must have shape {list(shape)}; train it again")
    array = checkpoint.value(name)
    if array.dtype != np.float32 or not np.isfinite(array).all():
        raise InputError(f"{name} has a value that is not a finite float32; train it again")
    return array


class PhaseNetworks(Source):
    format = "phase-competition"
    suffixes = (SUFFIX,)
    has_scopes = False
    serves_any_tl = True

    def open(self, path: Path) -> Checkpoint:
        return open_checkpoint(path)

    def actor(self, path: Path, request: ActorRequest) -> RebuiltActor:
        contract = request.contract
        if contract is None or contract.observation.dialect != DIALECT.name:
            dialect = "no dialect" if contract is None else f"dialect {contract.observation.dialect}"
            raise InputError(
                f"is a policy for the dialect {DIALECT.name}, and city.toml has {dialect} for {request.tl}; write "
                f'dialect = "{DIALECT.name}" in [tl.{request.tl}] (greenserve city init --dialect {DIALECT.name})'
            )
        stat = path.stat()
        actor, unread = _read(path, stat.st_mtime_ns, stat.st_size)
        step = PhaseCompetition(actor, Junction.of_contract(contract))
        return RebuiltActor(Actor("phase-competition", (step,), unread), action_kind=CATEGORICAL)

    def uses_for_any_tl(self, path: Path) -> tuple[dict[str, str], list[str]]:
        load(path)
        description = description_of(path)
        uses = {name: "phase competition" for name in SHAPES} | {DESCRIPTION: "how it was trained"}
        training = description.get("training")
        lines = [f"a network for any TL of the dialect {DIALECT.name}"]
        lines += [_training_text(training)] if isinstance(training, dict) else []
        return uses, [*lines, *_gate_lines(description.get("gate"))]


@functools.lru_cache(maxsize=1)
def _read(path: Path, _mtime_ns: int, _size: int) -> tuple[dict[str, NDArray[np.float32]], tuple[str, ...]]:
    """(actor, names of the variables that are not read) of a file: 1,000 TLs may share it. Raises InputError."""
    return load(path)[0], unread_variables(open_checkpoint(path), [*SHAPES, DESCRIPTION])


def _training_text(training: Mapping[str, Any]) -> str:
    if tls := training.get("trained_on"):
        return f"trained on TLs {', '.join(map(str, tls)) if isinstance(tls, list) else tls}"
    streets = training.get("--streets", "unknown")
    return (
        f"seed {training.get('--seed', 'unknown')}, streets: {len(streets) if isinstance(streets, list) else streets}, "
        f"{training.get('--updates', '?')} updates of {training.get('--episodes-per-update', '?')} episodes of "
        f"{training.get('--seconds', '?')} s"
    )


def _gate_lines(gate: Any) -> list[str]:
    if not isinstance(gate, dict):
        return []
    return [
        f"gate: {gate.get('simulations')} simulations of {gate.get('streets')} streets, {gate.get('seconds')} s each: "
        f"{gate.get('mean_delay_s')} s in the geometric mean"
    ]


SOURCE = PhaseNetworks()
