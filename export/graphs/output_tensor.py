"""Find an actor's observation and its deterministic output in a training graph.

The output is the mean (or the logits), not the sampled action or a loss. The search
starts at the product of the actor's last layer and follows element-wise operations
(a bias, tanh, a scale, a clip) to a tensor that training uses, for example by adding
noise to it or comparing it with an action. An unclear output is refused, never guessed.
"""

import collections
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2, types_pb2

from city.errors import InputError
from export.graphs.graph_actor import RANDOM_MEAN, VARIABLES, node_of

RANDOM = {*RANDOM_MEAN, "Multinomial", "RandomGamma", "RandomUniformInt", "StatelessMultinomial", "RandomPoissonV2"}
MATMUL_OPS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "SparseMatMul", "_FusedMatMul")
BOUNDING_OPS = ("Tanh", "Sigmoid", "Softsign", "ClipByValue", "Sin", "Cos")
# fmt: off
ELEMENTWISE_OPS = {
    *BOUNDING_OPS, "Add", "AddV2", "BiasAdd", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum",
    "Identity",
    "Reshape", "Squeeze", "ExpandDims", "Softmax", "Select", "SelectV2", "Cast", "CheckNumerics", "StopGradient",
}
# fmt: on
"""Operations between the last layer and the mean: bounds, scales and clips, but none that only a loss has (a
square)."""
HARMLESS_OPS = ("ArgMax", "Softmax", "LogSoftmax", "TopKV2")
"""Operations on logits that keep the best action."""
SLICES = ("Split", "SplitV", "StridedSlice", "Slice", "Unpack", "GatherV2")
MEAN_WORDS = {"mean", "means", "mu", "loc", "logit", "logits"}
"""Words in the name of the layer that returns the mean or the logits."""
PLACEHOLDERS = ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2")
_FLOATS = (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF)
_TRAINING_WORDS = {"train", "training", "phase", "learning", "dropout", "explore", "stochastic"}
_INFERENCE_WORDS = {
    "eval",
    "evaluate",
    "evaluation",
    "inference",
    "infer",
    "test",
    "testing",
    "deterministic",
    "greedy",
}
"""Words in the names of switches that are on at inference; those with _TRAINING_WORDS are off."""
_FRACTIONS = {"keep": 1.0, "dropout": 0.0, "drop": 0.0, "rate": 0.0}
"""Words in the names of dropout's settings -> value at inference; the first word that matches counts."""


@dataclass(frozen=True)
class GraphIndex:
    """A GraphDef with its nodes by name, and the consumers of each node."""

    nodes: Mapping[str, Any]
    consumers: Mapping[str, list[str]]
    variables: Mapping[str, str]
    """Name of a variable in the checkpoint -> its node."""

    @classmethod
    def of(cls, graph: graph_pb2.GraphDef) -> "GraphIndex":
        consumers: dict[str, list[str]] = collections.defaultdict(list)
        for node in graph.node:
            for source in node.input:
                if not source.startswith("^"):
                    consumers[node_of(source)].append(node.name)
        variables = {stored_as(node): node.name for node in graph.node if node.op in VARIABLES}
        return cls({node.name: node for node in graph.node}, consumers, variables)

    def ancestors(self, name: str) -> dict[str, Any]:
        """The nodes that a node depends on, with itself."""
        needed: dict[str, Any] = {}
        stack = [name]
        while stack:
            node = self.nodes.get(stack.pop())
            if node is not None and node.name not in needed:
                needed[node.name] = node
                stack += [node_of(source) for source in node.input if not source.startswith("^")]
        return needed


def constants(where: Path, ancestors: Mapping[str, Any], observation: str) -> dict[str, Any]:
    """The values at inference of the placeholders other than the observation.

    Raises InputError with the name of a placeholder whose value is unknown.
    """
    values: dict[str, Any] = {}
    for node in ancestors.values():
        if node.name == observation or node.op not in PLACEHOLDERS:
            continue
        value = training_switch_value(node)
        if value is None and node.op != "PlaceholderWithDefault":
            raise InputError(
                f"{where}: the output depends on placeholder {node.name}, and its value at inference is unknown; "
                "name another tensor with --output-tensor"
            )
        if value is not None:
            values[node.name] = value
    return values


def training_switch_value(node: Any) -> Any:
    """The value of a training switch at inference. `None` if the placeholder is not a known switch."""
    dtype, shape = node.attr["dtype"].type, node.attr["shape"].shape
    name = node.name.rsplit("/", 1)[-1]
    if dtype == types_pb2.DT_BOOL:
        return switch_value(name)
    if dtype not in _FLOATS or shape.dim or node.op == "PlaceholderWithDefault":
        return None  # a switch is a scalar; a placeholder with a default keeps it
    return next((value for word, value in _FRACTIONS.items() if word in _words(name)), None)


def switch_value(name: str) -> bool | None:
    """The value of a boolean with this name at inference. `None` if the name does not determine it."""
    words = _words(name)
    if bool(words & _TRAINING_WORDS) == bool(words & _INFERENCE_WORDS):
        return None
    return bool(words & _INFERENCE_WORDS)


def _words(name: str) -> set[str]:
    """The words of a name in lower case: `isTraining_1` -> is, training."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def required_placeholders(ancestors: Mapping[str, Any]) -> list[str]:
    """Placeholders that must be fed. Training switches are not, nor those with a default, unless it is an
    observation's."""
    return [
        node.name
        for node in ancestors.values()
        if node.op in PLACEHOLDERS
        and training_switch_value(node) is None
        and (node.op != "PlaceholderWithDefault" or len(node.attr["shape"].shape.dim) == 2)
    ]


def observation(where: Path, ancestors: Mapping[str, Any], output: str) -> str:
    """The observation: the only placeholder that an output depends on, float [-1, O]. Raises InputError."""
    inputs = required_placeholders(ancestors)
    if len(inputs) != 1:
        required = f"the placeholders {', '.join(sorted(inputs))}" if inputs else "no placeholder of an observation"
        raise InputError(
            f"{where}: tensor {output} depends on {required}; name the actor's own output with --output-tensor"
        )
    node = ancestors[inputs[0]]
    dims = node.attr["shape"].shape.dim
    if node.attr["dtype"].type not in _FLOATS or (dims and len(dims) != 2):
        dtype = types_pb2.DataType.Name(node.attr["dtype"].type).removeprefix("DT_").lower()
        raise InputError(
            f"{where}: its observation {node.name} is {dtype} {[dim.size for dim in dims]}, not float [-1, O]; "
            "such an actor cannot be exported"
        )
    return inputs[0]


class NotInGraph(InputError):
    """The graph does not run the actor."""


def find_output(
    where: Path, graph: GraphIndex, layers: Iterable[str], is_actor_variable: Callable[[str], bool], categorical: bool
) -> str:
    """Find the output tensor of an actor.

    Args:
        where: the graph's file.
        graph: the graph.
        layers: nodes of the variables of the actor's layers.
        is_actor_variable: whether a variable node belongs to the actor, such as statistics that normalise its
            observation.
        categorical: whether the output is logits or probabilities.

    Raises:
        InputError: the output is not clear.
        NotInGraph: the graph does not run the actor.
    """
    layer_variables = {name for name in layers if name in graph.nodes and graph.nodes[name].op in VARIABLES}
    head, other_heads = _head(where, graph, layer_variables)
    ancestors = graph.ancestors(head)
    outside_variables = sorted(
        n
        for n, node in ancestors.items()
        if node.op in VARIABLES and n not in layer_variables and not is_actor_variable(n)
    )
    if outside_variables:
        raise InputError(
            f"{where}: the output of its actor depends on variables outside its scope "
            f"({', '.join(outside_variables[:5])}); name its mean with --output-tensor"
        )
    if random := [name for name, node in ancestors.items() if node.op in RANDOM and not _is_dropout(name)]:
        raise InputError(f"{where}: its actor is random ({random[0]}); name its mean with --output-tensor")
    observation_name = observation(where, ancestors, head)

    def is_training(name: str) -> bool:
        """Whether a tensor depends on more than the observation and the actor's variables."""
        inputs = graph.ancestors(name)
        return (
            set(required_placeholders(inputs)) != {observation_name}
            or any(node.op in RANDOM and not _is_dropout(n) for n, node in inputs.items())
            or any(
                node.op in VARIABLES and n not in layer_variables and not is_actor_variable(n)
                for n, node in inputs.items()
            )
            or any(other in inputs for other in other_heads)
        )

    chain = _elementwise_chain(where, graph, head, is_training, categorical)
    used_by_training = [k for k, name in enumerate(chain) if any(map(is_training, _consumers(graph, name)))]
    if not used_by_training:
        unknown = _path_to_training(graph, chain[-1], is_training, HARMLESS_OPS if categorical else ())
        if unknown:
            raise InputError(
                f"{where}: its actor continues with {unknown} after {chain[-1]}; "
                "name its mean (or its logits) with --output-tensor"
            )
        return f"{chain[-1]}:0"
    last_used = used_by_training[-1]
    if not categorical and any(graph.nodes[name].op in BOUNDING_OPS for name in chain[last_used + 1 :]):
        raise InputError(
            f"{where}: its actor's mean is {chain[last_used]} or {chain[-1]}; choose one with --output-tensor"
        )
    return f"{chain[last_used]}:0"


def _head(where: Path, graph: GraphIndex, layer_variables: set[str]) -> tuple[str, list[str]]:
    """(the product of the actor's last layer, those of other last layers such as a deviation's). Raises InputError."""
    products = [
        name
        for name in _reachable(graph, layer_variables)
        if graph.nodes[name].op in MATMUL_OPS and _kernel(graph, name, layer_variables)
    ]
    if not products:
        raise NotInGraph(f"{where}: its graph does not run the actor")
    if not any(node.op in PLACEHOLDERS for name in products for node in graph.ancestors(name).values()):
        # not NotInGraph: the graph has the activations, and an export of the weights alone would assume the defaults
        raise InputError(
            f"{where}: its graph runs the actor on something other than a placeholder, such as an iterator"
        )
    inner = {name for product in products for name in graph.ancestors(product) if name != product}
    heads = [name for name in products if name not in inner]
    if len(heads) > 1:
        kernels = {name: _kernel(graph, name, layer_variables) for name in heads}
        means = [name for name, kernel in kernels.items() if _words(kernel) & MEAN_WORDS]
        not_deviations = [
            name for name, kernel in kernels.items() if not re.search(r"std|sigma|var\b|scale|dev", kernel.lower())
        ]
        chosen = means if len(means) == 1 else not_deviations
        if len(chosen) != 1:
            names = ", ".join(sorted(kernels.values()))
            raise InputError(
                f"{where}: its actor ends with several layers ({names}); name its mean with --output-tensor"
            )
        return chosen[0], [name for name in heads if name != chosen[0]]
    return heads[0], []


def _kernel(graph: GraphIndex, product: str, layer_variables: set[str]) -> str:
    """The variable of a layer that a product multiplies by, or ""."""
    for source in graph.nodes[product].input[1:]:
        name = node_of(source)
        while graph.nodes[name].op in ("Identity", "ReadVariableOp", "Cast", "Enter", "Reshape", "StopGradient"):
            name = node_of(graph.nodes[name].input[0])
        if name in layer_variables:
            return name
    return ""


def _elementwise_chain(
    where: Path, graph: GraphIndex, head: str, is_training: Callable[[str], bool], categorical: bool
) -> list[str]:
    """Tensors from the last layer's product on, each a function of only the previous one. Raises InputError."""
    chain = [head]
    while True:
        consumers = [name for name in _consumers(graph, chain[-1]) if not is_training(name)]
        if any(graph.nodes[name].op in SLICES for name in consumers):
            raise InputError(
                f"{where}: the output of its last layer is split after {chain[-1]}; name its mean with --output-tensor"
            )
        following = [
            name
            for name in consumers
            if graph.nodes[name].op in ELEMENTWISE_OPS and not _uses_twice(graph, name, chain[-1])
        ]
        if categorical and any(graph.nodes[name].op == "Softmax" for name in following):
            return chain
        if len(following) > 1:
            following = [name for name in following if graph.nodes[name].op in BOUNDING_OPS] or following
        if not following or graph.nodes[chain[-1]].op == "Softmax":
            return chain
        if len(following) > 1:
            names = ", ".join(sorted(following))
            raise InputError(f"{where}: its actor continues with {names}; name its mean with --output-tensor")
        chain.append(following[0])


def _path_to_training(
    graph: GraphIndex, tensor: str, is_training: Callable[[str], bool], ignored: Sequence[str]
) -> str:
    """The consumer of a tensor on a path to training, or "". `ignored`: operations of consumers that do not count."""
    for first in _consumers(graph, tensor):
        if is_training(first) or graph.nodes[first].op in ignored:
            continue
        seen, stack = {first}, [first]
        while stack:
            for name in _consumers(graph, stack.pop()):
                if is_training(name):
                    return first
                if name not in seen:
                    seen.add(name)
                    stack.append(name)
    return ""


def _uses_twice(graph: GraphIndex, name: str, source: str) -> bool:
    """Whether an operation takes a tensor twice, such as a loss that squares it."""
    return [node_of(name) for name in graph.nodes[name].input].count(source) > 1


def _consumers(graph: GraphIndex, name: str) -> list[str]:
    """Consumers of a tensor, without gradients, updates and shapes."""
    return [
        consumer
        for consumer in dict.fromkeys(graph.consumers.get(name, ()))
        if "gradients" not in consumer
        and not re.match(
            r"(Assign|Save|Apply|Resource|Shape|Rank|Size|ZerosLike|OnesLike|.*Summary)", graph.nodes[consumer].op
        )
    ]


def _reachable(graph: GraphIndex, variables: Iterable[str]) -> list[str]:
    """Nodes that depend on the variables."""
    reached: dict[str, None] = {}  # an ordered set
    stack = sorted(variables)
    while stack:
        for name in _consumers(graph, stack.pop()):
            if name not in reached:
                reached[name] = None
                stack.append(name)
    return list(reached)


def _is_dropout(name: str) -> bool:
    return "dropout" in name.lower()


def stored_as(node: Any) -> str:
    """Name of a variable in the checkpoint; for a resource it is the shared name."""
    name = node.attr["shared_name"].s.decode() if node.op == "VarHandleOp" else ""
    return name or str(node.name)
