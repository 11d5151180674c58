"""The steps of an actor. Each class has its evaluation in NumPy, its TensorFlow operations, its JSON and its sizes.

`evaluate` and `build` share only the weights, so that one can verify the other. A new step is a
new class in this file; no other file lists steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors import activations
from export.actors.activations import Floats

Float32Array = NDArray[np.float32]
Weights = Callable[[str], Any]
"""Returns the tensor of a part in the graph under construction, or `None` if the step has no such part."""
STEPS: dict[str, type["Step"]] = {}
"""Classes by the key of their JSON."""


class SizeMismatch(InputError):
    """A step does not fit the output of the step before it."""


class Step(ABC):
    """One step of an actor."""

    key: ClassVar[str]
    """The class's name in JSON."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that hold weights; the value of one may be `None`."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of the other attributes, which JSON holds."""
    matrices: ClassVar[tuple[str, ...]] = ("kernel",)
    """Parts that a fleet stacks as [n, ...]; it stacks others as [n, 1, ...], with an axis for the batch."""
    shared_parts: ClassVar[tuple[str, ...]] = ()
    """Parts that are the policy's, beside others that are the TL's."""
    note = ""
    """Addition to the architecture's name in messages."""

    def __init_subclass__(cls) -> None:
        STEPS[cls.key] = cls

    @property
    def weights(self) -> dict[str, Float32Array]:
        """The step's weights by part."""
        return {part: values for part in self.parts if (values := getattr(self, part)) is not None}

    def stored_names(self, part: str) -> tuple[str, ...]:
        """The variables in the checkpoint that a weight was read or computed from."""
        return (part,)

    @property
    def inputs(self) -> int | None:
        """Number of inputs; `None` means any."""
        return None

    def units(self, before: int | None, branches: list[int | None]) -> int | None:
        """Number of outputs, if it is known. Raises SizeMismatch.

        Args:
            before: outputs of the step before, if known.
            branches: outputs of the open branches, if known.
        """
        if before is not None and self.inputs not in (None, before):
            raise SizeMismatch(f"{self.label} takes {self.inputs}")
        return before

    @property
    def label(self) -> str:
        """The step's name in messages."""
        return self.key

    @property
    def operation(self) -> Hashable:
        """Determines the TensorFlow operations except for sizes; a fleet stacks steps with equal operations."""
        return self.key, tuple(self.weights)

    @property
    def outline(self) -> Hashable:
        """Determines the TensorFlow operations; actors have the same graph if the outlines of their steps are equal."""
        values = tuple(getattr(self, name) for name in self.parameters if name != "name")
        return self.operation, values, tuple(map(self.graph_shape, self.weights))

    def graph_shape(self, part: str) -> tuple[int | None, ...]:
        """The shape of a part's variable in a TL's own graph; None for a size that the graph does not depend on."""
        return tuple(self.weights[part].shape)

    @property
    def graph_inputs(self) -> int | None:
        """Number of inputs in a TL's own graph; None if the graph does not depend on it."""
        return self.inputs

    @property
    def padding_shapes(self) -> tuple[tuple[int, int], ...]:
        """Sizes that a fleet pads to those of the largest actor of a group; their products are the costs."""
        return ()

    def fleet_columns(self, group: Sequence["Step"]) -> NDArray[np.int32] | None:
        """Columns of the TL's observation for a first step: one by column of the group's, `inputs` for a zero.

        None for an observation that is padded at its end. `group`: the first steps of a fleet's group, this one
        included.
        """
        return None

    @abstractmethod
    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        """Evaluate the step in NumPy: [n, inputs] -> [n, units] float64. `branches`: values of the open branches."""

    @abstractmethod
    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        """Add the step's TensorFlow operations; `x`: [B, inputs], or [n, B, inputs] with stacked weights."""

    def build_stacked(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        """Add the operations of a fleet, in which the weights of n actors are stacked and padded to the widest."""
        return self.build(x, weight, branches)

    def to_json(self) -> dict[str, Any]:
        """A description without weights; its first key is the step's, and has its parameters."""
        values = [getattr(self, name) for name in self.parameters]
        shapes = {part: list(weight.shape) for part, weight in self.weights.items()}
        return {self.key: values[0] if len(values) == 1 else values, **({"shapes": shapes} if shapes else {})}

    @classmethod
    def from_json(cls, description: Mapping[str, Any], weights: Mapping[str, Any]) -> Self:
        """The step of a description. Raises LookupError, TypeError or ValueError if the two do not fit it."""
        stored = description[cls.key]
        values = [stored] if len(cls.parameters) == 1 else stored or []
        hashable = [tuple(value) if isinstance(value, list) else value for value in values]
        parameters = dict(zip(cls.parameters, hashable, strict=True))
        return cls(**parameters, **{part: weights[part] for part in cls.parts if part in weights})


@dataclass(frozen=True)
class Dense(Step):
    """y = x @ kernel + bias."""

    key = "dense"
    parts = ("kernel", "bias")
    parameters = ("name",)

    name: str
    kernel: Float32Array
    """[inputs, units]"""
    bias: Float32Array | None = None
    """[units]"""
    stored_as: Mapping[str, str] = field(default_factory=dict)
    """Variables' names in the checkpoint by part."""

    def stored_names(self, part: str) -> tuple[str, ...]:
        return (self.stored_as.get(part, f"{self.name}/{part}"),)

    @property
    def inputs(self) -> int:
        return int(self.kernel.shape[0])

    @property
    def label(self) -> str:
        return f"{self.name}/kernel"

    def units(self, before: int | None, branches: list[int | None]) -> int:
        super().units(before, branches)
        return int(self.kernel.shape[1])

    @property
    def padding_shapes(self) -> tuple[tuple[int, int], ...]:
        return ((int(self.kernel.shape[0]), int(self.kernel.shape[1])),)

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        y: Floats = x @ self.kernel.astype(np.float64)
        return y if self.bias is None else y + self.bias

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        import tensorflow as tf

        y, bias = tf.linalg.matmul(x, weight("kernel")), weight("bias")
        if bias is None:
            return y
        # TensorFlow runs a BiasAdd together with its MatMul; a stacked bias has more than one axis
        return tf.nn.bias_add(y, bias) if bias.shape.rank == 1 else y + bias


@dataclass(frozen=True)
class Affine(Step):
    """y = scale * x + shift, with one factor and one summand for each value."""

    key = "affine"
    parts = ("scale", "shift")
    parameters = ("name",)

    name: str
    scale: Float32Array
    shift: Float32Array
    stored_as: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variables in the checkpoint that a part was computed from."""
    note: str = ""

    def stored_names(self, part: str) -> tuple[str, ...]:
        return self.stored_as.get(part, (f"{self.name}/{part}",))

    @property
    def inputs(self) -> int:
        return int(self.scale.shape[0])

    @property
    def label(self) -> str:
        return self.name

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return x * self.scale.astype(np.float64) + self.shift

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        return x * weight("scale") + weight("shift")


@dataclass(frozen=True)
class BatchNorm:
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta: a checkpoint's layer, an affine step at inference."""

    name: str
    gamma: NDArray[Any] | None
    beta: NDArray[Any] | None
    mean: NDArray[Any]
    variance: NDArray[Any]
    stored_as: Mapping[str, str]
    """Variables' names in the checkpoint by part."""

    def step(self, epsilon: float = 0.0) -> Affine:
        """The affine step of its inference statistics."""
        with np.errstate(divide="ignore", invalid="ignore"):  # the parity check refuses what is not finite
            scale = (1.0 if self.gamma is None else self.gamma) / np.sqrt(self.variance.astype(np.float64) + epsilon)
            shift = (0.0 if self.beta is None else self.beta) - self.mean * scale
        sources = tuple(self.stored_as[part] for part in ("gamma", "variance") if part in self.stored_as)
        stored_as = {"scale": sources, "shift": tuple(self.stored_as.values())}
        note = f"epsilon {epsilon:g}" if epsilon else ""
        return Affine(self.name, scale.astype(np.float32), shift.astype(np.float32), stored_as, note)


@dataclass(frozen=True)
class Activation(Step):
    """An activation function, such as relu or leaky_relu:0.01."""

    key = "activation"
    parameters = ("kind",)

    kind: str

    @property
    def note(self) -> str:  # type: ignore[override]
        return self.kind

    @property
    def operation(self) -> Hashable:
        return self.key, self.kind

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return activations.numpy(self.kind)(x)

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        return activations.tensorflow(self.kind)(x)


@dataclass(frozen=True)
class Branch(Step):
    """Store the value for a later Join."""

    key = "branch"

    def units(self, before: int | None, branches: list[int | None]) -> int | None:
        branches.append(before)
        return before

    def evaluate(self, x: Any, branches: list[Any]) -> Any:
        branches.append(x)
        return x

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        return self.evaluate(x, branches)


@dataclass(frozen=True)
class Join(Step):
    """Add the value of the last open Branch."""

    key = "join"

    def units(self, before: int | None, branches: list[int | None]) -> int | None:
        if (added := branches.pop()) != before:
            raise SizeMismatch(f"a residual adds {added}")
        return before

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return np.add(x, branches.pop())

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        return x + branches.pop()


@dataclass(frozen=True)
class Clip(Step):
    """y = min(max(x, low), high), with one bound for all values or one for each."""

    key = "clip"
    parameters = ("low", "high")

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def operation(self) -> Hashable:
        return self.key, self.low, self.high

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return np.clip(x, self.low, self.high)

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        import tensorflow as tf

        return tf.clip_by_value(x, tf.constant(self.low, tf.float32), tf.constant(self.high, tf.float32))


@dataclass(frozen=True)
class Pad(Step):
    """Append zeros to a TL's observation, up to the inputs of a policy that TLs of several sizes share."""

    key = "pad"
    parameters = ("tl_inputs", "size")

    tl_inputs: int
    size: int

    @property
    def inputs(self) -> int:
        return self.tl_inputs

    def units(self, before: int | None, branches: list[int | None]) -> int:
        super().units(before, branches)
        return self.size

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return np.pad(x, ((0, 0), (0, self.size - self.tl_inputs)))

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        import tensorflow as tf

        return tf.pad(x, [[0, 0], [0, self.size - self.tl_inputs]])

    def build_stacked(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        return x  # a fleet pads every observation to the widest


@dataclass(frozen=True)
class FirstChoice(Step):
    """Keep the logits of a TL's choices; the first becomes the maximum of itself and the padding's.

    SuperSuit pads action spaces to the largest TL's, and applies a choice beyond those of a TL as its first
    (`dehomogenize_actions` of https://github.com/Farama-Foundation/SuperSuit).
    """

    key = "first_choice"
    parameters = ("choices",)

    choices: int

    def units(self, before: int | None, branches: list[int | None]) -> int:
        return self.choices

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        padding = x[:, self.choices :].max(axis=1, initial=-np.inf)
        return np.column_stack([np.maximum(x[:, 0], padding), x[:, 1 : self.choices]])

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        import tensorflow as tf

        if x.shape[-1] == self.choices:
            return x
        first = tf.reduce_max(tf.concat([x[..., :1], x[..., self.choices :]], axis=-1), axis=-1, keepdims=True)
        return tf.concat([first, x[..., 1 : self.choices]], axis=-1)

    def build_stacked(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        return x  # a fleet masks the choices of all its members at once


def activated(layers: Sequence[Dense], kind: str) -> list[Step]:
    """The layers, each followed by an activation of this kind."""
    return [step for layer in layers for step in (layer, Activation(kind))]


def mlp(layers: Sequence[Dense], kind: str) -> list[Step]:
    """The layers, with an activation of this kind after each but the last."""
    return [*activated(layers[:-1], kind), layers[-1]]


def check_sizes(steps: Sequence[Step]) -> int | None:
    """Number of outputs of the last step, if it is known. Raises SizeMismatch unless every step fits the one before."""
    units, before = None, "the observation"
    branches: list[int | None] = []
    for step in steps:
        try:
            units = step.units(units, branches)
        except SizeMismatch as error:
            raise SizeMismatch(f"{before} has {units} outputs, but {error}") from None
        before = step.label if step.parts else before
    return units


def from_json(description: Mapping[str, Any], weights: Mapping[str, Any]) -> Step:
    """The step of a description. Raises LookupError, TypeError or ValueError if it or its weights are invalid."""
    return STEPS[next(iter(description))].from_json(description, weights)
