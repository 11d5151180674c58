"""Actors as lists of steps (`steps`): readers return them, writers take them.

An architecture defines which steps a checkpoint's layers form; `saved_model` writes
them as TensorFlow operations, and the parity check compares those with `Actor.evaluate`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.actors import phase_competition as phase_competition  # its step is found by its key
from export.actors.activations import Floats, softmax
from export.actors.steps import Dense, Step, check_sizes
from serving.contract import PROBABILITIES, Q_VALUES


@dataclass(frozen=True)
class Weight:
    """A variable of an exported model."""

    name: str
    """In the SavedModel."""
    stored_as: str
    """In the checkpoint."""
    values: NDArray[Any]
    is_shared: bool = False
    """True if models of other TLs have the same values; they are in a file of their own."""


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
    """The second output of a categorical actor, one value per choice: `probabilities` or `q_values`."""

    @property
    def dense(self) -> tuple[Dense, ...]:
        return tuple(step for step in self.steps if isinstance(step, Dense))

    @property
    def inputs(self) -> int:
        return next(step.inputs for step in self.steps if step.inputs is not None)

    @property
    def graph_inputs(self) -> int | None:
        """Number of inputs in a TL's own graph; None if TLs with other numbers have the same graph."""
        return next(step.graph_inputs for step in self.steps if step.inputs is not None)

    @property
    def outputs(self) -> int:
        units = check_sizes(self.steps)
        assert units is not None, "an actor has a dense layer"
        return units

    @property
    def widths(self) -> list[int]:
        """Number of inputs, then the units of every dense layer; of an actor without any, the number of outputs."""
        return [self.inputs, *([int(layer.kernel.shape[1]) for layer in self.dense] or [self.outputs])]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every variable, in order of its name."""
        weights = [
            Weight(weight_name(k, part), ", ".join(step.stored_names(part)), values, part in step.shared_parts)
            for k, step in enumerate(self.steps)
            for part, values in step.weights.items()
        ]
        return tuple(sorted(weights, key=lambda weight: weight.name))

    @property
    def description(self) -> str:
        """The architecture with its activations."""
        return " ".join(dict.fromkeys([self.architecture, *(step.note for step in self.steps if step.note)]))

    def evaluate(self, observations: NDArray[np.float32], categorical: bool) -> Floats:
        """Evaluate the actor in NumPy: [n, A] float64 means, or the [n, choices] `scores` of a categorical actor."""
        x: Floats = observations.astype(np.float64)
        branches: list[Floats] = []
        for step in self.steps:
            x = step.evaluate(x, branches)
        return softmax(x) if categorical and self.scores != Q_VALUES else x

    def build(self, x: Any, weight: Callable[[str, tuple[int | None, ...]], Any]) -> Any:
        """The output of the last step as TensorFlow operations. `weight`: the tensor of a weight by its name and
        shape."""
        branches: list[Any] = []
        for k, step in enumerate(self.steps):
            parts = {part: weight(weight_name(k, part), step.graph_shape(part)) for part in step.weights}
            x = step.build(x, parts.get, branches)
        return x


def weight_name(step: int, part: str) -> str:
    """Name of a step's variable in an exported model."""
    return f"actor/{step:03d}_{part}"
