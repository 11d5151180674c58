"""Read the graph of an ONNX file and evaluate it for some observations; both run in a helper process.

A graph is evaluated only if every operation that its output depends on is one of OPERATIONS.
Operators: https://onnx.ai/onnx/operators/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import first_line
from export.checkpoints.checkpoint import MAX_ELEMENTS

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


@dataclass(frozen=True)
class Values:
    """The values of tensors for some observations."""

    by_name: Mapping[str, Sequence[NDArray[Any]]]
    """One array for each observation. Tensors from the first operation that fails on are missing."""
    reason: str = ""
    """Why that operation cannot be evaluated, or ""."""


def contents(path: Path, output: str = "", observations: NDArray[np.float32] | None = None) -> Any:
    """Read the graph of a file, or with observations [n, O] the values of the tensors that `output` depends on.

    Called in a helper process. Raises ValueError, OSError and onnx's exceptions.
    """
    model = _loaded(path)
    graph = _graph(model)
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


def _graph(model: Any) -> OnnxGraph:
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
    from onnx import helper

    nodes, opsets = _evaluated(model, graph, output)
    evaluators: dict[int, Any] = {}
    (observation,) = (value for value in model.graph.input if value.name == graph.inputs[0])
    dtype = helper.tensor_dtype_to_np_dtype(observation.type.tensor_type.elem_type)
    rows = []
    for row in observations:
        # one by one, because the graph may have a fixed batch size of 1
        results: dict[str, Any] = {**graph.arrays, observation.name: row[None].astype(dtype)}
        reason = _evaluate(nodes, opsets, evaluators, results)
        rows.append(results)
        if reason:
            break
    produced = [name for node in nodes for name in node.output if name in rows[-1]]
    return Values({name: [results[name] for results in rows] for name in produced}, reason)


def _evaluated(model: Any, graph: OnnxGraph, output: str) -> tuple[list[Any], Sequence[Any]]:
    """The operations that an output depends on, and the file's opsets. Raises ValueError if one is unknown."""
    upstream = graph.upstream(output)
    if unknown := [node.operation for node in upstream if node.operation not in OPERATIONS | PARTS]:
        raise ValueError(f"its operation {unknown[0]} is not supported")
    produced = {name for node in upstream for name in node.outputs}
    return [node for node in model.graph.node if produced & set(node.output)], model.opset_import


def _evaluator(node: Any, opsets: Sequence[Any], results: Mapping[str, Any]) -> Any:
    """ONNX's evaluator of one operation, which gets the types of its inputs: it writes Gelu as operations for them."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    types = {name: helper.np_dtype_to_tensor_dtype(results[name].dtype) for name in node.input if name}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "operation", inputs, outputs)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))


def _evaluate(nodes: Sequence[Any], opsets: Sequence[Any], evaluators: dict[int, Any], results: dict[str, Any]) -> str:
    """Add the outputs of each operation to the results. Return why an operation cannot be evaluated, or "".

    Args:
        nodes: the operations, in order.
        opsets: the file's.
        evaluators: by number of the operation; each is made at its first evaluation.
        results: tensors by name, those of the file included.
    """
    for k, node in enumerate(nodes):
        try:
            if k not in evaluators:
                evaluators[k] = _evaluator(node, opsets, results)
            outputs = evaluators[k].run(None, {name: results[name] for name in node.input if name})
        except Exception as error:  # noqa: BLE001 - NumPy and onnx raise several kinds for shapes and types that do not fit
            return first_line(error)
        results |= zip(node.output, map(np.asarray, outputs), strict=False)
    return ""
