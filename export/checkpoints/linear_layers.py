"""Linear layers as PyTorch names them: `<name>/weight` [units, inputs] and `<name>/bias` [units]."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors.steps import Dense, Step, check_sizes
from export.checkpoints.checkpoint import Checkpoint, StoredVariable, float32_weights
from export.checkpoints.layers import build_dense

LIBRARY_ACTIVATIONS = {
    "LeakyReLU": "leaky_relu:0.01",
    "ReLU": "relu", "Tanh": "tanh", "ELU": "elu", "SELU": "selu", "SiLU": "silu", "GELU": "gelu", "Sigmoid": "sigmoid",
    "Softplus": "softplus", "Identity": "linear",
    "relu": "relu", "tanh": "tanh", "elu": "elu", "selu": "selu", "silu": "silu", "swish": "silu", "gelu": "gelu",
    "sigmoid": "sigmoid", "softplus": "softplus", "linear": "linear", "None": "linear",
}  # fmt: skip
"""PyTorch's class or RLlib's name -> our name."""


def activation(name: Any) -> str:
    """Our name of an activation. Raises InputError if we do not have it."""
    if str(name) not in LIBRARY_ACTIVATIONS:
        raise InputError(f"its activation {name} is not one of {', '.join(LIBRARY_ACTIVATIONS)}; it cannot be exported")
    return LIBRARY_ACTIVATIONS[str(name)]


def checkpoint_of(arrays: Mapping[str, NDArray[Any]], ordered: bool) -> Checkpoint:
    """Wrap arrays as the variables of a checkpoint. `ordered`: whether they are in the model's order."""
    stored = {name: StoredVariable(name, values.shape, values.dtype.name) for name, values in arrays.items()}
    return Checkpoint(stored, lambda name: arrays[name], ordered)


class StateDict:
    """The tensors of a network with a library's names of layers. It records which of them were read."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._read_names: set[str] = set()

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._arrays) - self._read_names))

    def unread_beside(self, modules: Sequence[str]) -> list[str]:
        """The unread tensors outside these modules."""
        return [name for name in self.unread if not name.startswith(tuple(f"{module}/" for module in modules))]

    def holds(self, prefix: str) -> bool:
        """Tell whether the module of this name has weights."""
        return any(name.startswith(f"{prefix}/") for name in self._arrays)

    def linear(self, name: str) -> Dense:
        """Read the layer of this name. Raises InputError if it is missing or not a linear layer."""
        stored_as = {"kernel": f"{name}/weight", "bias": f"{name}/bias"}
        if stored_as["kernel"] not in self._arrays:
            raise InputError(f"tensor {stored_as['kernel']} is missing; save the whole policy again")
        parts = {part: self._read(stored) for part, stored in stored_as.items() if stored in self._arrays}
        parts["kernel"] = parts["kernel"].T
        return build_dense(name, parts, {part: stored_as[part] for part in parts})

    def sequential(self, prefix: str) -> list[Dense]:
        """Read the numbered layers of a sequence in which one activation follows each layer.

        Raises InputError unless their numbers are 0, 2, 4, ...
        """
        modules = {
            name.removeprefix(f"{prefix}/").split("/")[0] for name in self._arrays if name.startswith(f"{prefix}/")
        }
        if not all(module.isdecimal() for module in modules):
            raise InputError(f"{prefix} holds {', '.join(sorted(modules))}, not numbered linear layers")
        numbers = sorted(map(int, modules))
        if numbers != list(range(0, 2 * len(numbers), 2)):
            raise InputError(
                f"{prefix} has weights in modules {', '.join(map(str, numbers))}; "
                "linear layers with one activation after each are modules 0, 2, 4, ..."
            )
        return [self.linear(f"{prefix}/{number}") for number in numbers]

    def _read(self, name: str) -> NDArray[np.float32]:
        values = float32_weights(name, self._arrays[name])
        self._read_names.add(name)
        return values


def check_network(steps: list[Step], inputs: int, outputs: int) -> None:
    """Raise InputError unless the steps fit each other, and the sizes of the policy's spaces."""
    check_sizes(steps)
    layers = [step for step in steps if isinstance(step, Dense)]
    sizes = int(layers[0].kernel.shape[0]), int(layers[-1].kernel.shape[1])
    if sizes != (inputs, outputs):
        raise InputError(
            f"its spaces have {inputs} observations and {outputs} actions, but its network has {sizes[0]} inputs and "
            f"{sizes[1]} outputs; the checkpoint is damaged"
        )
