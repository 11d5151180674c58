"""`assets.extra/actor.json`: an exported actor's steps without their weights, from which a fleet stacks actors.

The weights are the model's variables, named by step (`weight_name`). A model
whose actor is a trainer's graph has no such file.
"""

import json
from pathlib import Path
from typing import Any

from export.actors import Actor, weight_name
from export.actors.steps import from_json
from export.checkpoints.checkpoint import Checkpoint
from serving.contract import PROBABILITIES

FILE_NAME = "actor.json"


def write(folder: Path, actor: Actor) -> None:
    """Write the steps of an actor into the assets of its SavedModel."""
    text = json.dumps({"steps": describe_steps(actor), "scores": actor.scores}, indent=1) + "\n"
    (folder / "assets.extra" / FILE_NAME).write_text(text, encoding="utf-8")


def read(folder: Path, variables: Checkpoint) -> Actor | None:
    """The actor of a SavedModel, from its steps and its variables, or `None` if the file is missing or damaged.

    Raises InputError if a variable cannot be read.
    """
    try:
        stored = json.loads((folder / "assets.extra" / FILE_NAME).read_text(encoding="utf-8"))
        steps = tuple(from_json(step, _weights(k, variables)) for k, step in enumerate(stored["steps"]))
        scores = str(stored.get("scores", PROBABILITIES))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    actor = Actor("exported", steps, scores=scores)
    return actor if any(step.parts for step in actor.steps) else None


def describe_steps(actor: Actor) -> list[dict[str, Any]]:
    """The actor's steps in JSON's types, without weights."""
    return [step.to_json() for step in actor.steps]


def _weights(k: int, variables: Checkpoint) -> dict[str, Any]:
    """The weights of step number k by part. Raises InputError if one cannot be read."""
    prefix = weight_name(k, "")
    return {name.removeprefix(prefix): variables.value(name) for name in variables.stored if name.startswith(prefix)}
