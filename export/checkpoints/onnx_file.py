"""ONNX files of MLP actors: one observation in, one output, and only the operations of an actor in between.

Reads Gemm, MatMul, Add, Sub, Mul and Div by constants, activations, Clip, and a final Softmax,
LogSoftmax or ArgMax. Ignores Identity, Cast to float, Flatten, Dropout, Squeeze, Unsqueeze, and a
Reshape that keeps an observation in one row.
Every other operation refuses the file by name. Operators: https://onnx.ai/onnx/operators/
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors import Actor
from export.actors.steps import Activation, BatchNorm, Clip, Dense, Step
from export.checkpoints.checkpoint import MAX_ELEMENTS, Checkpoint
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import check_chain, checkpoint_of
from export.checkpoints.source import ActorRequest, Source, StoredActor

MAX_BYTES = 2 << 30
OPERATION_ACTIVATIONS = {
    "Relu": "relu", "Tanh": "tanh", "Elu": "elu", "Selu": "selu", "Sigmoid": "sigmoid", "Softplus": "softplus", "Gelu": "gelu",
}  # fmt: skip
FLOATS = (1, 10, 11, 16)
"""onnx.TensorProto's float, float16, double and bfloat16."""
NO_OPERATIONS = ("Identity", "Cast", "Flatten", "Reshape", "Dropout", "Squeeze", "Unsqueeze")
DOMAINS = ("", "ai.onnx")
"""Of ONNX's own operators."""
SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}
"""Defaults of Selu's attributes."""
PROBABILITIES_OF = ("Softmax", "LogSoftmax")
"""Last operations that leave the order of choices as it is; the exported model has its own softmax."""


@dataclass(frozen=True)
class Node:
    """An operation."""

    operation: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class OnnxGraph:
    """The graph of a file."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    arrays: Mapping[str, NDArray[Any]]
    input_size: int | None
    """Numbers in an observation; None: the file does not tell."""


def contents(path: Path) -> OnnxGraph:
    """The graph of a file; called in a helper process. Raises ValueError, OSError, and what onnx raises."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise ValueError("the package onnx is not installed: pip install 'greenserve[onnx]'") from None
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is larger than any actor's")
    try:
        # from bytes: tensors in other files are never looked for
        graph = onnx.load_model_from_string(path.read_bytes()).graph
    except Exception as error:  # noqa: BLE001 - protobuf's errors
        raise ValueError(f"it is no ONNX model ({' '.join(str(error).split())[:120]})") from None
    arrays = {}
    for tensor in [*graph.initializer, *(a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute)]:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError(
                f"its tensor {tensor.name} is in another file; save it with its weights inside "
                "(external_data=False in torch.onnx.export)"
            )
        if np.prod([float(size) for size in tensor.dims]) > MAX_ELEMENTS:
            raise ValueError(f"its tensor {tensor.name} has shape {list(tensor.dims)}, more than any actor's")
    arrays = {tensor.name: np.array(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type in (1, 2, 3)}
        if node.op_type == "Constant":
            values = [np.array(numpy_helper.to_array(a.t)) for a in node.attribute if a.name == "value"]
            if len(values) != 1:
                raise ValueError(f"its constant {node.output[0]} is not a tensor")
            arrays[node.output[0]] = values[0]
            continue
        operation = node.op_type if node.domain in DOMAINS else f"{node.domain}::{node.op_type}"
        nodes.append(Node(operation, node.name or node.op_type, tuple(node.input), tuple(node.output), attributes))
    inputs = [value for value in graph.input if value.name not in arrays]
    sizes = [each.dim_value for value in inputs for each in value.type.tensor_type.shape.dim]
    return OnnxGraph(
        tuple(value.name for value in inputs),
        tuple(value.name for value in graph.output),
        tuple(nodes),
        arrays,
        sizes[-1] if sizes and sizes[-1] > 0 else None,
    )


_HELPER = Helper("export.checkpoints.onnx_file", "an ONNX model")


class Onnx(Source):
    format = "onnx"
    suffixes = (".onnx",)
    has_scopes = False

    def open(self, path: Path) -> Checkpoint:
        return checkpoint_of(path, _network(path).arrays, ordered=True)

    def actor(self, path: Path, label: str, wanted: ActorRequest) -> StoredActor:
        self.refuse_scope(label, wanted)
        network = _network(path)
        output = _output(path, network, wanted.output_tensor)
        steps, ends_with_choices = _Chain(path, network).steps_to(output)
        layers = [step for step in steps if isinstance(step, Dense)]
        if not layers:
            raise InputError(f"{path}: its output {output} depends on no linear layer; name the actor's with --output-tensor")
        check_chain(path, steps)
        if network.input_size not in (None, layers[0].kernel.shape[0]):
            raise InputError(
                f"{path}: its input {network.inputs[0]} has {network.input_size} numbers, and its first layer "
                f"{layers[0].kernel.shape[0]} inputs; only actors that take the whole observation at once can be exported"
            )
        taken = {name for layer in layers for name in layer.stored_as.values()}
        unread = tuple(sorted(name for name in network.arrays if name not in taken and network.arrays[name].ndim > 1))
        kind = "categorical" if ends_with_choices else None
        if wanted.categorical and isinstance(steps[-1], Activation | Clip):
            raise InputError(
                f"{path}: its output {output} ends with {_last(steps)}, not with logits; pass --action, or --output-tensor"
            )
        return StoredActor(Actor("mlp", tuple(steps), unread), "", action_kind=kind)


def _last(steps: list[Step]) -> str:
    return steps[-1].kind if isinstance(steps[-1], Activation) else "clip"


def _network(path: Path) -> OnnxGraph:
    network = _HELPER.read(path)
    assert isinstance(network, OnnxGraph)
    if len(network.inputs) != 1:
        raise InputError(f"{path}: has the inputs {', '.join(network.inputs) or 'none'}; an actor has one, its observation")
    return network


def _output(path: Path, network: OnnxGraph, wanted: str | None) -> str:
    produced = [name for node in network.nodes for name in node.outputs]
    if wanted is not None:
        if wanted not in produced:
            raise InputError(f"{path}: has no tensor {wanted}; its outputs are {', '.join(network.outputs)}")
        return wanted
    if len(network.outputs) != 1:
        raise InputError(f"{path}: has the outputs {', '.join(network.outputs)}; pass --output-tensor with the actor's")
    return network.outputs[0]


class _Chain:
    """The operations from the observation to an output, each of one input that is not constant."""

    def __init__(self, path: Path, network: OnnxGraph) -> None:
        self._path, self._arrays, self._observation = path, network.arrays, network.inputs[0]
        self._input_size = network.input_size
        self._producer = {name: node for node in network.nodes for name in node.outputs}

    def steps_to(self, output: str) -> tuple[list[Step], bool]:
        """The steps, and whether the last operation shows that the output is a choice. Raises InputError."""
        chain: list[Node] = []
        name = output
        while name != self._observation:
            node = self._producer.get(name)
            if node is None or node in chain:
                raise InputError(f"{self._path}: {name} does not come from the observation {self._observation}")
            chain.append(node)
            variable = [source for source in node.inputs if source and source not in self._arrays]
            if node.operation in ("Reshape", "Dropout", "Squeeze", "Unsqueeze", "Clip", "Cast"):
                variable = variable[:1]
            if len(variable) != 1:
                raise InputError(
                    f"{self._path}: operation {node.operation} ({node.name}) has {len(variable)} inputs; an MLP's has one; "
                    "pass --output-tensor if the actor's output comes before it"
                )
            name = variable[0]
        steps: list[Step] = []
        chooses = False
        for node in reversed(chain):
            if chooses and node.operation not in NO_OPERATIONS and node.operation != "ArgMax":
                raise InputError(f"{self._path}: operation {node.operation} ({node.name}) follows a softmax; an actor ends there")
            if node.operation in (*PROBABILITIES_OF, "ArgMax"):
                chooses = True
            elif not chooses:
                self._append(steps, node)
        return steps, chooses

    def _append(self, steps: list[Step], node: Node) -> None:
        """Add one operation to the steps; an Add after a bare MatMul is its bias."""
        operation = node.operation
        constants = [source for source in node.inputs if source in self._arrays]
        if operation == "Cast" and node.attributes.get("to") not in FLOATS:
            raise self._refused(node, "to whole numbers")
        if operation == "Reshape" and not self._keeps_rows(steps, node):
            raise self._refused(node, "to another shape than one row for each observation")
        if operation in NO_OPERATIONS:
            return
        if operation in OPERATION_ACTIVATIONS:
            alpha = node.attributes.get("alpha", 1.0 if operation == "Elu" else None)
            if operation == "Elu" and alpha != 1.0:
                raise self._refused(node, f"with alpha {alpha:g}")
            if operation == "Selu" and any(abs(node.attributes.get(key, value) - value) > 1e-5 for key, value in SELU.items()):
                raise self._refused(node, "with an alpha or gamma of its own")
            if operation == "Gelu" and node.attributes.get("approximate", b"none") != b"none":
                raise self._refused(node, "approximated by tanh")
            steps.append(Activation(OPERATION_ACTIVATIONS[operation]))
        elif operation == "LeakyRelu" and abs(node.attributes.get("alpha", 0.01) - 0.2) < 1e-6:
            steps.append(Activation("leaky_relu"))
        elif operation == "Gemm" and len(constants) >= 1 and node.inputs[0] not in self._arrays:
            attributes = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **node.attributes}
            if (attributes["alpha"], attributes["beta"], attributes["transA"]) != (1.0, 1.0, 0):
                raise self._refused(node, "with alpha, beta or transA")
            kernel = self._values(node.inputs[1], 2)
            bias = self._bias(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
            stored_as = {"kernel": node.inputs[1], **({"bias": node.inputs[2]} if bias is not None else {})}
            self._dense(steps, node, kernel.T if attributes["transB"] else kernel, bias, stored_as)
        elif operation == "MatMul" and node.inputs[1] in self._arrays:
            self._dense(steps, node, self._values(node.inputs[1], 2), None, {"kernel": node.inputs[1]})
        elif operation == "Add" and steps and isinstance(steps[-1], Dense) and steps[-1].bias is None:
            layer = steps.pop()
            assert isinstance(layer, Dense)
            self._dense(steps, node, layer.kernel, self._bias(constants[0]), {**layer.stored_as, "bias": constants[0]})
        elif operation in ("Add", "Sub", "Mul", "Div") and len(constants) == 1:
            if operation in ("Sub", "Div") and node.inputs[0] in self._arrays:
                raise self._refused(node, "of a constant by the observation")
            steps.append(self._scale(steps, node, self._constant(constants[0])))
        elif operation == "Clip":
            low, high = (self._bound(node, k, missing) for k, missing in ((1, -np.inf), (2, np.inf)))
            if not low < high:
                raise self._refused(node, f"to the range {low:g} to {high:g}")
            steps.append(Clip((low,), (high,)))
        else:
            raise self._refused(node, "")

    def _dense(
        self,
        steps: list[Step],
        node: Node,
        kernel: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        stored_as: dict[str, str],
    ) -> None:
        if 0 in kernel.shape or (bias is not None and bias.shape != kernel.shape[1:]):
            raise self._refused(node, "whose weights do not fit each other")
        steps.append(Dense(node.name, np.ascontiguousarray(kernel), bias, stored_as))

    def _scale(self, steps: list[Step], node: Node, values: NDArray[np.float32]) -> BatchNorm:
        """x + c, x - c, x * c or x / c as a batch norm with fixed statistics."""
        width = self._width(steps)
        size = width if width is not None else values.size
        if values.size not in (1, size) or (width is None and values.size == 1):
            raise self._refused(node, "whose constant does not fit")
        c = np.broadcast_to(values.reshape(-1), (size,)).astype(np.float32)
        zeros, ones = np.zeros(size, np.float32), np.ones(size, np.float32)
        match node.operation:
            case "Add":
                return BatchNorm(node.name, None, c, zeros, ones, 0.0)
            case "Sub":
                return BatchNorm(node.name, None, None, c, ones, 0.0)
            case "Mul":
                return BatchNorm(node.name, c, None, zeros, ones, 0.0)
        if (c == 0).any():
            raise self._refused(node, "by zero")
        return BatchNorm(node.name, (1.0 / c.astype(np.float64)).astype(np.float32), None, zeros, ones, 0.0)

    def _width(self, steps: list[Step]) -> int | None:
        """Numbers in a row after these steps; None: the file does not tell."""
        return next((step.kernel.shape[1] for step in reversed(steps) if isinstance(step, Dense)), self._input_size)

    def _keeps_rows(self, steps: list[Step], node: Node) -> bool:
        """Whether a Reshape keeps each observation in one row: its shape is [-1, N], or [0 or 1, -1 or N]."""
        shape = self._arrays.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if shape is None or shape.shape != (2,):
            return False
        first, last = shape.tolist()
        width = self._width(steps)
        keeps_width = last > 0 if width is None else last == width
        return first in (-1, 0, 1) and (keeps_width or (last == -1 and first != -1))

    def _bias(self, name: str) -> NDArray[np.float32]:
        """A layer's bias, stored as [units] or [1, units]."""
        is_row = name in self._arrays and self._arrays[name].ndim == 2 and self._arrays[name].shape[0] == 1
        return self._values(name, 2).reshape(-1) if is_row else self._values(name, 1)

    def _bound(self, node: Node, k: int, missing: float) -> float:
        if len(node.inputs) <= k or not node.inputs[k]:
            return float(node.attributes.get("min" if k == 1 else "max", missing))
        if node.inputs[k] not in self._arrays or self._arrays[node.inputs[k]].size != 1:
            raise self._refused(node, "with bounds that are not constant")
        return float(self._arrays[node.inputs[k]].reshape(()))

    def _constant(self, name: str) -> NDArray[np.float32]:
        values = self._arrays[name]
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused
            narrow = np.asarray(values, np.float32) if values.dtype.kind == "f" else None
        if narrow is None or not np.isfinite(narrow).all():
            raise InputError(f"{self._path}: its constant {name} holds {values.dtype} values that are not finite numbers")
        return narrow

    def _values(self, name: str, dimensions: int) -> NDArray[np.float32]:
        if name not in self._arrays:
            raise InputError(f"{self._path}: weights {name} are computed, not stored; export the model with constant folding")
        values = self._constant(name)
        if values.ndim != dimensions:
            raise InputError(f"{self._path}: weights {name} have shape {list(values.shape)}, not {dimensions} dimensions")
        return values

    def _refused(self, node: Node, why: str) -> InputError:
        activations = (*OPERATION_ACTIVATIONS, "LeakyRelu (alpha 0.2)")
        known = ", ".join(["Gemm", "MatMul", "Add", "Sub", "Mul", "Div", *activations, "Clip", *PROBABILITIES_OF, "ArgMax"])
        return InputError(
            f"{self._path}: operation {node.operation} ({node.name}) {why}".rstrip() + f" is not an actor's; known are {known}"
        )


SOURCE = Onnx()
