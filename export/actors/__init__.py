"""Actors as lists of steps (`steps`) or as graphs: readers return them, writers take them.

An architecture defines which steps a checkpoint's layers form; `saved_model` writes
them as TensorFlow operations, and the parity check compares those with `Actor.evaluate`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError, errors_about
from export.actors import phase_competition as phase_competition  # its step is found by its key
from export.actors.activations import Floats, softmax
from export.actors.steps import Dense, FirstChoice, Pad, Step, check_sizes
from serving.contract import PROBABILITIES, Q_VALUES

Arrays = NDArray[Any]
VALUES, LOGITS, PROBABILITIES_OUTPUT, ACTION_OUTPUT = "values", "logits", "probabilities", "action"
PARITY_OBSERVATIONS = 256
"""Random observations that each actor's actions are compared on."""


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
        x = _evaluated(self.steps, observations.astype(np.float64), [])
        return softmax(x) if categorical and self.scores != Q_VALUES else x

    def build(self, x: Any, weight: Callable[[str, tuple[int | None, ...]], Any]) -> Any:
        """The output of the last step as TensorFlow operations. `weight`: the tensor of a weight by its name and
        shape."""
        branches: list[Any] = []
        for k, step in enumerate(self.steps):
            parts = {part: weight(weight_name(k, part), step.graph_shape(part)) for part in step.weights}
            x = step.build(x, parts.get, branches)
        return x

    def for_tl(self, inputs: int, choices: int) -> "Actor":
        """This policy, which several TLs share, with one TL's inputs and choices.

        SuperSuit pads observations with zeros and action spaces with choices (`pad_observations_v0` and
        `pad_action_space_v0` of https://github.com/Farama-Foundation/SuperSuit). The weights are not cut, so that a
        fleet stores them once for all TLs. Raises InputError if the TL needs more than the policy has.
        """
        for kind, required, shared in (("inputs", inputs, self.inputs), ("choices", choices, self.outputs)):
            if required > shared:
                raise InputError(
                    f"has {shared} {kind}, and this TL needs {required}; use the SUMO network of the policy's training"
                )
        return replace(self, steps=(Pad(inputs, self.inputs), *self.steps, FirstChoice(choices)))

    def rounding_of_actions(self, tolerance: float, x: NDArray[np.float32]) -> NDArray[Any]:
        """[n, A] changes of continuous actions if their logits, before a tanh, change by a tolerance times the logits'
        scale."""
        last = max((k for k, step in enumerate(self.steps) if isinstance(step, Dense)), default=-1) + 1
        branches: list[Floats] = []
        before = _evaluated(self.steps[:last], x.astype(np.float64), branches)

        def actions(shift: float) -> Floats:
            return _evaluated(self.steps[last:], before + shift, list(branches))

        shift, middle = permitted_difference(tolerance, before), actions(0.0)
        return np.asarray(np.maximum(np.abs(actions(shift) - middle), np.abs(actions(-shift) - middle)))


def _evaluated(steps: Sequence[Step], x: Floats, branches: list[Floats]) -> Floats:
    for step in steps:
        x = step.evaluate(x, branches)
    return x


def weight_name(step: int, part: str) -> str:
    """Name of a step's variable in an exported model."""
    return f"actor/{step:03d}_{part}"


def permitted_difference(tolerance: float, expected: NDArray[Any]) -> float:
    """A tolerance times the outputs' scale (at least 1), because float32's rounding error is relative."""
    return tolerance * max(1.0, float(np.abs(expected).max(initial=0.0)))


@dataclass(frozen=True)
class GraphActor:
    """An inference-only actor with the trainer's own operations."""

    graph: bytes
    """GraphDef: a placeholder `observation` [-1, O], a placeholder `weight_<k>` for each weight, inference
    operations."""
    output: str
    """Name of the output tensor."""
    output_kind: str
    """values | logits | probabilities | q_values | action (the output of an exported model: index or values)."""
    weights: tuple[Weight, ...]
    inputs: int
    outputs: int
    unread: tuple[str, ...] = ()
    architecture: str = "graph"
    scores_tensor: str = ""
    """Name of the tensor of probabilities or q-values, of an exported model that is categorical."""

    @property
    def scores(self) -> str:
        """The second output of a categorical actor, as `Actor.scores`."""
        return scores_of(self.output_kind)

    @property
    def description(self) -> str:
        return f"{self.architecture} {self.output.split(':')[0]}"

    @property
    def widths(self) -> list[int]:
        return [self.inputs, self.outputs]


def scores_of(output_kind: str) -> str:
    """The scores that an output of a kind gives, if it is categorical."""
    return Q_VALUES if output_kind == Q_VALUES else PROBABILITIES


def parity_observations(size: int, of_traffic: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """[n, size] observations to compare actions on: random ones, half of them standard normal and half uniform in
    [0, 1], and those of recorded traffic, if there are any.

    Raises InputError if these have another size.
    """
    rng, half = np.random.default_rng(0), PARITY_OBSERVATIONS // 2
    x = np.concatenate([rng.standard_normal((half, size)), rng.random((half, size))]).astype(np.float32)
    if of_traffic is None:
        return x
    if of_traffic.shape[1] != size:
        with errors_about("--observations"):
            raise InputError(
                f"they have {of_traffic.shape[1]} values each, and the actor takes {size}; "
                "take those of a record with this contract"
            )
    return np.concatenate([x, of_traffic])


@dataclass(frozen=True)
class RecordedOutputs:
    """The outputs of a model for `parity_observations`: plain values that outlive the process of the model."""

    outputs: Arrays

    def __call__(self, observations: Arrays) -> Arrays:
        assert len(observations) == len(self.outputs), "outputs were recorded for other observations"
        return self.outputs


@dataclass(frozen=True)
class ReferenceModel:
    """The trainer's own actor, run in the trainer's graph: the reference of the parity check."""

    description: str
    run: Callable[[Arrays], Arrays]
    """[n, O] observations -> [n, A] values of the output tensor."""
    output_kind: str
    outputs: int
    inputs: int

    @property
    def scores(self) -> str:
        """The second output of a categorical actor, as `Actor.scores`."""
        return scores_of(self.output_kind)

    def evaluate(self, observations: Arrays, categorical: bool) -> Arrays:
        """[n, A] means, or [n, choices] probabilities or Q-values."""
        x = np.asarray(self.run(observations), np.float64)
        return softmax(x) if categorical and self.output_kind == LOGITS else x

    def recorded(self, of_traffic: NDArray[np.float32] | None) -> "ReferenceModel":
        """This model with only its outputs for `parity_observations`, as plain values."""
        outputs = np.asarray(self.run(parity_observations(self.inputs, of_traffic)))
        return replace(self, run=RecordedOutputs(outputs))
