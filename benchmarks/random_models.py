"""Models with random weights, written by the exporter."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from export.actors import Actor
from export.actors.steps import Activation, Dense, Step
from export.saved_model import write
from protos import policy_pb2 as pb
from signals.contract import incomplete

HIDDEN = (64, 64)


def random_actor(inputs: int, outputs: int, seed: int, categorical: bool) -> Actor:
    """A 64-64 actor with random weights."""
    rng = np.random.default_rng(seed)
    sizes = [inputs, *HIDDEN, outputs]
    layers = [
        Dense(
            f"dense_{k}",
            (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32),
            (rng.standard_normal(b) / 10).astype(np.float32),
        )
        for k, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    steps: list[Step] = []
    for layer in layers[:-1]:
        steps += [layer, Activation("relu")]
    output: list[Step] = [] if categorical else [Activation("tanh")]
    return Actor("mlp", (*steps, layers[-1], *output))


def write_models(models_dir: Path, contracts: Iterable[pb.PolicyContract]) -> None:
    """Write version 1 of a model for each contract under models_dir."""
    for seed, contract in enumerate(contracts):
        contract.origin.model_number = 1
        folder = models_dir / contract.tl / "1"
        folder.mkdir(parents=True)
        actor = random_actor(
            contract.observation.size, contract.action.size, seed, contract.action.kind == "categorical"
        )
        write.write(folder, actor, contract)


def write_incomplete(models_dir: str, count: int, inputs: int, outputs: int) -> None:
    """Write models TL0000, TL0001, ... that any client may query."""
    write_models(Path(models_dir), (incomplete(f"TL{k:04d}", inputs, "kc", outputs) for k in range(count)))


def write_checkpoint(path: Path, inputs: int, outputs: int, seed: int) -> None:
    """Write an actor with random weights as .npz."""
    arrays = {}
    for k, step in enumerate(
        step for step in random_actor(inputs, outputs, seed, True).steps if isinstance(step, Dense)
    ):
        layer = f"actor/dense_{k}" if k else "actor/dense"
        arrays[f"{layer}/kernel"], arrays[f"{layer}/bias"] = step.kernel, step.bias
    np.savez(path, **arrays)
