"""Read the graph of an ONNX file and evaluate it for some observations; both run in a helper process.

A graph is evaluated only if every operation that its output depends on is one of OPERATIONS or PARTS.
Operators: https://onnx.ai/onnx/operators/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


Values = Mapping[str, Sequence[NDArray[Any]]]
"""Tensors by name, one array for each observation."""


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
