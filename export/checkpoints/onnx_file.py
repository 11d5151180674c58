"""ONNX files of MLP actors: a chain of known operations from one observation to one output.

Each operation is mapped to one step, such as Gemm to a dense layer. The step's output is compared
with that of ONNX's own reference evaluation, which accounts for attributes too. A helper process reads the graph and
evaluates it, if every operation that its output depends on is one of OPERATIONS or PARTS.
Operators: https://onnx.ai/onnx/operators/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError, library_errors
from export.actors import Actor, activations
from export.actors.activations import Floats
from export.actors.steps import Activation, Affine, Clip, Dense, Step, check_sizes
from export.checkpoints.checkpoint import MAX_ELEMENTS, Checkpoint, float32_weights
from export.checkpoints.helper_process import Helper
from export.checkpoints.linear_layers import checkpoint_of
from export.checkpoints.source import ActorRequest, RebuiltActor, Source
from serving.contract import PROBABILITIES

DOMAINS = ("", "ai.onnx")
"""Domains of ONNX's own operators."""
ACTIVATIONS = {
    "Relu": "relu", "Tanh": "tanh", "Elu": "elu", "Selu": "selu", "Sigmoid": "sigmoid", "Softplus": "softplus",
    "Gelu": "gelu", "Swish": "silu",
}  # fmt: skip
LEAKY_RELU = "LeakyRelu"
SOFTMAXES = ("Softmax", "LogSoftmax")
CHOICES = (*SOFTMAXES, "ArgMax")
"""Operations on logits that keep the best choice. They are left out: the exported model has its own softmax."""
UNCHANGED = ("Identity", "Cast", "Flatten", "Reshape", "Dropout", "Squeeze", "Unsqueeze")
"""Operations that are left out. An actor may have them if they do not change its values."""
OPERATIONS = {
    LEAKY_RELU,
    *("Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Clip", "Constant", "Transpose"),
    *ACTIVATIONS,
    *CHOICES,
    *UNCHANGED,
}
PARTS = {
    *("Erf", "Exp", "Log", "Pow", "Sqrt", "Neg", "Abs", "Max", "Min", "Reciprocal", "Where"),
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
}
"""Elementwise operations that exporters write an activation with, such as PyTorch's gelu."""
PROBE_SCALES = (1.0, 10.0, 100.0)
PROBES_OF_A_SCALE = 8
TOLERANCE = 1e-4
"""Permitted difference, relative to the largest value of the tensor (at least 1): ONNX evaluates in float32."""
MAX_FACTORS = 2
"""Operations after the last one that uses an activation's input twice."""


@dataclass(frozen=True)
class Node:
    """An operation."""

    operation: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Those that are numbers or strings."""


@dataclass(frozen=True)
class OnnxGraph:
    """The graph of a file."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    arrays: Mapping[str, NDArray[Any]]
    """Stored tensors by name."""
    input_size: int | None
    """Size of the observation, if the file defines it."""

    def upstream(self, output: str) -> list[Node]:
        """The operations that an output depends on, in the file's order, which is the order of evaluation."""
        needed, nodes = {output}, []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed |= set(node.inputs)
                nodes.append(node)
        return nodes[::-1]


Values = Mapping[str, Sequence[NDArray[Any]]]
"""Tensors by name, one array for each observation."""


def contents(path: Path, output: str = "", observations: NDArray[np.float32] | None = None) -> Any:
    """Read the graph of a file, or with observations [n, O] the values of the tensors that `output` depends on.

    Called in a helper process. Raises ValueError, OSError and onnx's exceptions.
    """
    model = _loaded(path)
    graph = _parsed(model)
    return graph if observations is None else _values(model, graph, output, observations)


def _loaded(path: Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise ValueError("the package onnx is not installed: pip install 'greenserve[onnx]'") from None
    try:
        # from bytes, so that onnx does not open other files for external tensors
        model = onnx.load_model_from_string(path.read_bytes())
    except Exception as error:  # noqa: BLE001 - protobuf's errors
        raise ValueError(f"it is not an ONNX model ({' '.join(str(error).split())[:120]})") from None
    constants = [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute]
    for tensor in [*model.graph.initializer, *constants]:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError(
                f"its tensor {tensor.name} is in another file; save it with its weights inside "
                "(external_data=False in torch.onnx.export)"
            )
        if np.prod([float(size) for size in tensor.dims]) > MAX_ELEMENTS:
            raise ValueError(f"its tensor {tensor.name} has shape {list(tensor.dims)}, more than any actor's")
    return model


def _parsed(model: Any) -> OnnxGraph:
    from onnx import numpy_helper

    arrays = {tensor.name: np.array(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in arrays]
    sizes = [dim.dim_value for value in inputs for dim in value.type.tensor_type.shape.dim]
    return OnnxGraph(
        tuple(value.name for value in inputs),
        tuple(value.name for value in model.graph.output),
        tuple(map(_node, model.graph.node)),
        arrays,
        sizes[-1] if sizes and sizes[-1] > 0 else None,
    )


def _node(node: Any) -> Node:
    from onnx import helper

    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.type in (1, 2, 3)}
    operation = node.op_type if node.domain in DOMAINS else f"{node.domain}::{node.op_type}"
    return Node(operation, node.name or node.op_type, tuple(node.input), tuple(node.output), attributes)


def _values(model: Any, graph: OnnxGraph, output: str, observations: NDArray[np.float32]) -> Values:
    from onnx import helper, shape_inference
    from onnx.reference import ReferenceEvaluator

    upstream = graph.upstream(output)
    used = {output, *(name for node in upstream for name in (*node.inputs, node.outputs[0]))}
    names = [name for node in upstream for name in node.outputs if name in used]
    nodes = [node for node in model.graph.node if not used.isdisjoint(node.output)]
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    # ONNX writes Gelu as operations for the types of its inputs
    evaluator = ReferenceEvaluator(shape_inference.infer_shapes(model))
    (observation,) = (value for value in model.graph.input if value.name == graph.inputs[0])
    dtype = helper.tensor_dtype_to_np_dtype(observation.type.tensor_type.elem_type)
    # one by one, because the graph may have a fixed batch size of 1
    rows = [evaluator.run(names, {observation.name: row[None].astype(dtype)}) for row in observations]
    return dict(zip(names, (list(map(np.asarray, tensors)) for tensors in zip(*rows, strict=True)), strict=True))


_HELPER = Helper(contents, "an ONNX model", libraries=["onnx.reference"])


class Onnx(Source):
    format = "onnx"
    suffixes = (".onnx",)
    has_scopes = False
    has_tensors = True

    def open(self, path: Path) -> Checkpoint:
        return checkpoint_of(_graph(path).arrays, ordered=True)

    def actor(self, path: Path, request: ActorRequest) -> RebuiltActor:
        graph = _graph(path)
        output = _output(graph, request.output_tensor)
        steps, ends_with_choices = _Chain(path, graph, output).steps()
        ends_with_softmax = any(node.operation in SOFTMAXES for node in graph.upstream(output))
        layers = [step for step in steps if isinstance(step, Dense)]
        if not layers:
            raise InputError(f"its output {output} depends on no linear layer; name the actor's with --output-tensor")
        check_sizes(steps)
        read_names = {name for layer in layers for name in layer.stored_as.values()}
        unread = tuple(sorted(name for name in graph.arrays.keys() - read_names if graph.arrays[name].ndim > 1))
        if request.categorical and isinstance(steps[-1], Activation | Clip):
            raise InputError(
                f"its output {output} ends with {steps[-1].note or steps[-1].key}, not with logits; pass "
                "--action, or --output-tensor"
            )
        scores = PROBABILITIES
        if (request.categorical or ends_with_choices) and not ends_with_softmax:
            scores = request.scores([output, *read_names])
        actor = Actor("mlp", tuple(steps), unread, scores)
        return RebuiltActor(actor, action_kind="categorical" if ends_with_choices else None)


def _graph(path: Path) -> OnnxGraph:
    graph: OnnxGraph = _HELPER.read(path)
    if len(graph.inputs) != 1:
        raise InputError(f"has the inputs {', '.join(graph.inputs) or 'none'}; an actor has one, its observation")
    return graph


def _output(graph: OnnxGraph, requested: str | None) -> str:
    """The requested tensor, or the only output. Raises InputError."""
    if requested is not None:
        if not any(requested in node.outputs for node in graph.nodes):
            raise InputError(f"has no tensor {requested}; its outputs are {', '.join(graph.outputs)}")
        return requested
    if len(graph.outputs) != 1:
        raise InputError(f"has the outputs {', '.join(graph.outputs)}; pass --output-tensor with the actor's")
    return graph.outputs[0]


class _Chain:
    """The operations from the observation to an output, each with one input that is not constant."""

    def __init__(self, path: Path, graph: OnnxGraph, output: str) -> None:
        self._observation = graph.inputs[0]
        self._dependent = {self._observation}
        """Tensors that depend on the observation."""
        nodes: list[Node] = []
        for node in graph.upstream(output):
            if node.operation not in OPERATIONS | PARTS:
                raise self._refused(
                    node, f"is not supported; supported are {', '.join(sorted(OPERATIONS - {'Constant'}))}"
                )
            if self._dependent & set(node.inputs):
                self._dependent |= set(node.outputs)
                nodes.append(node)
        if output not in self._dependent or output == self._observation:
            raise InputError(
                f"tensor {output} does not depend on the observation {self._observation}; name another --output-tensor"
            )
        self._blocks = self._chained(nodes, output)
        size = graph.input_size or self._first_size(graph.arrays)
        scales = np.repeat(PROBE_SCALES, PROBES_OF_A_SCALE)[:, None]
        self._probes = (scales * np.random.default_rng(3).standard_normal((len(scales), size))).astype(np.float32)
        self._values: Values = _HELPER.call(path, output, self._probes)
        computed = {name: rows[0] for name, rows in self._values.items() if name not in self._dependent}
        self._constants = {**graph.arrays, **computed}

    def steps(self) -> tuple[list[Step], bool]:
        """(steps, whether the output is a choice by its last operation). Raises InputError."""
        steps: list[Step] = []
        chooses = False
        last, skipped = self._observation, 0
        for k, block in enumerate(self._blocks):
            node = block[-1]
            if skipped:
                skipped -= 1
            elif not chooses and (len(block) > 1 or self._dependent.intersection(node.inputs) != {last}):
                activation, skipped = self._activation(k, last)
                steps.append(activation)
            elif node.operation in CHOICES:
                chooses = True
            elif chooses and node.operation not in UNCHANGED:
                raise self._refused(node, "follows a softmax or argmax, where an actor ends")
            elif not chooses:
                self._append(steps, node)
                self._compare(steps, node)
            last = node.outputs[0]
        return steps, chooses

    def _chained(self, nodes: Sequence[Node], output: str) -> list[list[Node]]:
        """Cut the operations where the ones after depend on the last one's output alone."""
        last_use = {name: k for k, node in enumerate(nodes) for name in node.inputs} | {output: len(nodes)}
        blocks: list[list[Node]] = [[]]
        live = {self._observation}
        for k, node in enumerate(nodes):
            blocks[-1].append(node)
            live = {name for name in live | set(node.outputs) if last_use.get(name, 0) > k}
            if live == {node.outputs[0]}:
                blocks.append([])
        return blocks[:-1]

    def _activation(self, k: int, last: str) -> tuple[Activation, int]:
        """The activation that several operations compute, and how many further blocks belong to it.

        PyTorch writes silu as x * sigmoid(x), and the factor of its gelu may follow. Raises InputError.
        """
        x = self._rows(last)
        for more, block in enumerate(self._blocks[k : k + 1 + MAX_FACTORS]):
            y = self._rows(block[-1].outputs[0])
            for kind in activations.ACTIVATIONS if x.shape == y.shape else ():
                if (np.abs(activations.numpy(kind)(x) - y) <= TOLERANCE * np.maximum(1.0, np.abs(y))).all():
                    return Activation(kind), more
        raise self._refused(
            self._blocks[k][-1], "does not continue a single chain of operations; only an MLP can be exported"
        )

    def _rows(self, tensor: str) -> Floats:
        """A tensor's values, one row for each probe: all rows have the shape of one observation's."""
        values = self._probes if tensor == self._observation else self._values[tensor]
        return np.stack([value.reshape(-1) for value in values]).astype(np.float64)

    def _append(self, steps: list[Step], node: Node) -> None:
        """Add one operation to the steps. An Add after a MatMul becomes the bias of its layer."""
        operation, inputs, last = node.operation, node.inputs, steps[-1] if steps else None
        if operation in UNCHANGED:
            return
        if node.attributes.get("approximate", b"none") != b"none":
            # closer to gelu than the probes of large values show
            raise self._refused(node, "approximates gelu by tanh, and only its exact form can be exported")
        if operation in ACTIVATIONS:
            steps.append(Activation(ACTIVATIONS[operation]))
        elif operation == LEAKY_RELU:
            steps.append(Activation(f"leaky_relu:{np.float32(node.attributes.get('alpha', 0.01))}"))
        elif operation in ("Gemm", "MatMul"):
            kernel, bias = self._constant(inputs[1]), inputs[2] if len(inputs) > 2 else ""
            steps.append(self._dense(node, inputs[1], kernel.T if node.attributes.get("transB") else kernel, bias))
        elif operation == "Clip":
            steps.append(Clip((self._bound(node, 1),), (self._bound(node, 2),)))
        elif operation == "Add" and isinstance(last, Dense) and last.bias is None:
            steps[-1] = self._dense(node, last.stored_as["kernel"], last.kernel, self._constant_of(node))
        elif operation == "Transpose":
            raise self._refused(node, "changes the order of values")
        elif operation in PARTS:
            raise self._refused(node, "is not supported alone, only as a part of a known activation")
        else:
            steps.append(self._scale(node))

    def _compare(self, steps: Sequence[Step], node: Node) -> None:
        """Raise InputError unless the steps up to an operation have the same output as it."""
        actual: Floats = self._probes.astype(np.float64)
        try:
            for step in steps:
                actual = step.evaluate(actual, [])
            difference = np.abs(self._rows(node.outputs[0]) - actual).max()
            agrees = difference <= TOLERANCE * max(1.0, float(np.abs(actual).max()))
        except ValueError:
            agrees = False  # different shapes
        if not agrees:
            settings = ", ".join(f"{name} {_text(value)}" for name, value in node.attributes.items())
            raise self._refused(
                node, f"gives other values than its exported step{f', with {settings}' if settings else ''}"
            )

    def _dense(self, node: Node, kernel_name: str, kernel: NDArray[np.float32], bias: str) -> Dense:
        # a bias may have shape [1, units]
        shift = self._constant(bias, kernel.shape[1]) if bias else None
        stored_as = {"kernel": kernel_name, **({"bias": bias} if bias else {})}
        return Dense(node.name, np.ascontiguousarray(kernel), shift, stored_as)

    def _scale(self, node: Node) -> Affine:
        size = self._values[node.outputs[0]][0].size
        c = self._constant(self._constant_of(node), size)
        zeros, ones = np.zeros(size, np.float32), np.ones(size, np.float32)
        match node.operation:
            case "Add":
                return Affine(node.name, ones, c)
            case "Sub":
                return Affine(node.name, ones, -c)
            case "Mul":
                return Affine(node.name, c, zeros)
        with np.errstate(divide="ignore"):
            return Affine(node.name, (1.0 / c.astype(np.float64)).astype(np.float32), zeros)

    def _bound(self, node: Node, k: int) -> float:
        """Lower (k = 1) or upper (k = 2) bound of a Clip: an input, or an attribute before opset 11."""
        if len(node.inputs) > k and node.inputs[k]:
            bound = self._constants[node.inputs[k]]
            if bound.size != 1:
                raise self._refused(node, "has several bounds")
            return float(bound.reshape(()))
        return float(node.attributes.get("min" if k == 1 else "max", -np.inf if k == 1 else np.inf))

    def _constant_of(self, node: Node) -> str:
        return next(name for name in node.inputs if name not in self._dependent)

    def _constant(self, name: str, size: int = 0) -> NDArray[np.float32]:
        """A constant's values, repeated to a row of this size if there is one. Raises InputError."""
        if name not in self._constants:
            raise InputError(f"weights {name} depend on the observation; an actor's are constant")
        values = float32_weights(name, self._constants[name])
        if size:
            with library_errors(f"its constant {name} has another size"):
                values = np.broadcast_to(values.reshape(-1), (size,))
        elif values.ndim != 2:
            raise InputError(f"weights {name} have shape {list(values.shape)}, not 2 dimensions")
        return values

    def _first_size(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Number of inputs of the first layer, for files without the size of the observation. Raises InputError."""
        for node in (node for block in self._blocks for node in block):
            kernel = next((arrays[name] for name in node.inputs if name in arrays and arrays[name].ndim == 2), None)
            if kernel is not None and node.operation in ("Gemm", "MatMul"):
                return int(kernel.shape[1 if node.attributes.get("transB") else 0])
        raise InputError("does not define the size of an observation; export it with fixed sizes")

    def _refused(self, node: Node, reason: str) -> InputError:
        hint = "pass --output-tensor if the actor's output comes before it"
        return InputError(f"operation {node.operation} ({node.name}) {reason}; {hint}")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value:g}"


SOURCE = Onnx()
