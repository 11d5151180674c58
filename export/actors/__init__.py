"""Actors as lists of steps: the result of every reader and the input of every writer.

An architecture defines which steps a checkpoint's layers form; `numpy_actor`
evaluates them in NumPy, `saved_model` writes them as TensorFlow operations.
The two share only the list, so that one can verify the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

PROBABILITIES, Q_VALUES = "probabilities", "q_values"
"""Names of a categorical model's second output."""
ACTIVATIONS = ("relu", "elu", "tanh", "leaky_relu", "gelu", "silu", "sigmoid", "softplus", "selu", "linear")


WEIGHT_PARTS = ("kernel", "bias", "gamma", "beta", "mean", "variance")


@dataclass(frozen=True)
class Weight:
    """A variable of an exported model."""

    name: str
    """In the SavedModel."""
    stored_as: str
    """In the checkpoint."""
    values: NDArray[Any]


@dataclass(frozen=True)
class Dense:
    """y = x @ kernel + bias."""

    name: str
    kernel: Float32Array
    """[inputs, units]"""
    bias: Float32Array | None
    """[units]; None: the layer has no bias."""
    stored_as: Mapping[str, str] = field(default_factory=dict)
    """Part -> the variable's name in the checkpoint."""


@dataclass(frozen=True)
class BatchNorm:
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, with inference statistics."""

    name: str
    gamma: Float32Array | None
    beta: Float32Array | None
    mean: Float32Array
    variance: Float32Array
    epsilon: float
    stored_as: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Activation:
    kind: str


@dataclass(frozen=True)
class Branch:
    """Store the value for a later Join."""


@dataclass(frozen=True)
class Join:
    """Add the value of the last open Branch."""


@dataclass(frozen=True)
class Clip:
    """y = min(max(x, low), high); one bound for all numbers, or one for each."""

    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Pad:
    """Append zeros to a TL's own observation: a policy that several TLs share takes as many numbers as the largest needs."""

    own: int
    size: int


@dataclass(frozen=True)
class FirstChoice:
    """Keep the logits of a TL's own choices; the first one takes the greatest logit of those beyond.

    SuperSuit pads action spaces to the largest TL's, and applies a choice beyond a TL's own as its first
    (`dehomogenize_actions` of https://github.com/Farama-Foundation/SuperSuit).
    """

    own: int


Step = Dense | BatchNorm | Activation | Branch | Join | Clip | Pad | FirstChoice


@dataclass(frozen=True)
class Actor:
    """An inference-only actor.

    Continuous: the last step is the activation of its mean (tanh). Categorical:
    the steps end with logits.
    """

    architecture: str
    steps: tuple[Step, ...]
    unread: tuple[str, ...] = ()
    """Variables of the checkpoint that do not belong to the actor."""
    scores: str = PROBABILITIES
    """What a categorical actor's output is beside the choice: `probabilities`, or `q_values` of each choice."""

    @property
    def dense(self) -> tuple[Dense, ...]:
        return tuple(step for step in self.steps if isinstance(step, Dense))

    @property
    def inputs(self) -> int:
        first = self.steps[0]
        return first.own if isinstance(first, Pad) else int(self.dense[0].kernel.shape[0])

    @property
    def outputs(self) -> int:
        last = self.steps[-1]
        return last.own if isinstance(last, FirstChoice) else int(self.dense[-1].kernel.shape[1])

    @property
    def widths(self) -> list[int]:
        """Inputs, then the units of every dense layer."""
        return [self.inputs, *(int(layer.kernel.shape[1]) for layer in self.dense)]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every variable, in order of its name."""
        weights = [
            Weight(weight_name(k, part), step.stored_as.get(part, f"{step.name}/{part}"), values)
            for k, step in enumerate(self.steps)
            if isinstance(step, Dense | BatchNorm)
            for part in WEIGHT_PARTS
            if (values := getattr(step, part, None)) is not None
        ]
        return tuple(sorted(weights, key=lambda weight: weight.name))

    @property
    def description(self) -> str:
        """The architecture with its activations."""
        kinds = dict.fromkeys(step.kind for step in self.steps if isinstance(step, Activation))
        norms = dict.fromkeys(f"epsilon {step.epsilon:g}" for step in self.steps if isinstance(step, BatchNorm) and step.epsilon)
        return " ".join([self.architecture, *kinds, *norms])


def weight_name(step: int, part: str) -> str:
    """Name of a step's variable in an exported model."""
    return f"actor/{step:03d}_{part}"
