"""`assets.extra/actor.json`: an exported actor's steps without their weights, from which a fleet stacks actors.

The weights are the model's variables, named by step (`weight_name`). A model
whose actor is a trainer's graph has no such file.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from export.actors import Actor, weight_name
from export.actors.steps import from_json
from export.checkpoints.checkpoint import Checkpoint
from serving.contract import PROBABILITIES

FILE_NAME = "actor.json"
Arrays = dict[tuple[bytes, tuple[int, ...]], NDArray[Any]]
"""Weights by digest and shape."""


def write(folder: Path, actor: Actor) -> None:
    """Write the steps of an actor into the assets of its SavedModel."""
    text = json.dumps({"steps": [step.to_json() for step in actor.steps], "scores": actor.scores}, indent=1) + "\n"
    (folder / "assets.extra" / FILE_NAME).write_text(text, encoding="utf-8")


def read(folder: Path, variables: Checkpoint, known: Arrays) -> Actor | None:
    """The actor of a SavedModel, from its steps and its variables, or `None` if the file is missing or damaged.

    Args:
        folder: the SavedModel.
        variables: its variables.
        known: weights of models that were read before, added to by this one: equal weights are in memory once.

    Raises:
        InputError: a variable cannot be read.
    """

    def value(name: str) -> NDArray[Any]:
        values = variables.value(name)
        return known.setdefault((hashlib.sha256(values.tobytes()).digest(), values.shape), values)

    try:
        stored = json.loads((folder / "assets.extra" / FILE_NAME).read_text(encoding="utf-8"))
        steps = []
        for k, step in enumerate(stored["steps"]):
            prefix = weight_name(k, "")
            names = [name for name in variables.stored if name.startswith(prefix)]
            steps.append(from_json(step, {name.removeprefix(prefix): value(name) for name in names}))
        scores = str(stored.get("scores", PROBABILITIES))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    return Actor("exported", tuple(steps), scores=scores) if any(step.parts for step in steps) else None
