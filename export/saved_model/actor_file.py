"""`assets.extra/actor.json`: an exported actor's steps without their weights, from which a fleet stacks actors.

The weights are the model's variables, named by step (`weight_name`). A model
whose actor is a trainer's graph has no such file.
"""

import json
from pathlib import Path
from typing import Any

from export.actors import (
    PROBABILITIES,
    WEIGHT_PARTS,
    Activation,
    Actor,
    BatchNorm,
    Branch,
    Clip,
    Dense,
    FirstChoice,
    Join,
    Pad,
    Step,
    weight_name,
)
from export.checkpoints.checkpoint import Checkpoint

FILE_NAME = "actor.json"


def write(folder: Path, actor: Actor) -> None:
    """Write the steps of an actor into the assets of its SavedModel."""
    text = json.dumps({"steps": describe_steps(actor), "scores": actor.scores}, indent=1) + "\n"
    (folder / "assets.extra" / FILE_NAME).write_text(text, encoding="utf-8")


def read(folder: Path, variables: Checkpoint) -> Actor | None:
    """The actor of a SavedModel, from its steps and its variables; None if the file is missing or damaged.

    Raises InputError if a variable cannot be read.
    """
    try:
        stored = json.loads((folder / "assets.extra" / FILE_NAME).read_text(encoding="utf-8"))
        steps = tuple(_step(k, step, variables) for k, step in enumerate(stored["steps"]))
        scores = str(stored.get("scores", PROBABILITIES))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    actor = Actor("exported", steps, scores=scores)
    return actor if actor.dense else None


def describe_steps(actor: Actor) -> list[dict[str, Any]]:
    """The actor's steps, each with the name of its layer, without weights."""
    steps: list[dict[str, Any]] = []
    for step in actor.steps:
        match step:
            case Dense():
                steps.append({"dense": step.name, "shape": list(step.kernel.shape), "bias": step.bias is not None})
            case BatchNorm():
                steps.append({"batch_norm": step.name, "units": step.mean.shape[0], "epsilon": step.epsilon})
            case Activation():
                steps.append({"activation": step.kind})
            case Branch():
                steps.append({"branch": ""})
            case Join():
                steps.append({"join": ""})
            case Clip():
                steps.append({"clip": [list(step.low), list(step.high)]})
            case Pad():
                steps.append({"pad": [step.own, step.size]})
            case FirstChoice():
                steps.append({"first_choice": step.own})
    return steps


def _step(k: int, step: dict[str, Any], variables: Checkpoint) -> Step:
    """Step number k with its weights. Raises LookupError or ValueError if the file does not fit the variables."""
    names = {part: weight_name(k, part) for part in WEIGHT_PARTS}
    parts = {part: variables.value(name) for part, name in names.items() if name in variables.stored}
    match next(iter(step), None):
        case "dense":
            return Dense(step["dense"], parts["kernel"], parts.get("bias"))
        case "batch_norm":
            return BatchNorm(
                step["batch_norm"], parts.get("gamma"), parts.get("beta"), parts["mean"], parts["variance"], step["epsilon"]
            )
        case "activation":
            return Activation(step["activation"])
        case "branch":
            return Branch()
        case "join":
            return Join()
        case "clip":
            low, high = step["clip"]
            return Clip(tuple(map(float, low)), tuple(map(float, high)))
        case "pad":
            own, size = step["pad"]
            return Pad(int(own), int(size))
        case "first_choice":
            return FirstChoice(int(step["first_choice"]))
        case kind:
            raise ValueError(f"unknown step {kind!r}")
