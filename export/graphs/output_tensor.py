"""Where an actor begins and ends in a training graph: its observation, its deterministic output.

The output is the mean (or the logits), not the sampled action, not a loss. From
the product of the actor's last layer the way goes on through what works on each
number alone (a bias, tanh, a scale, a clip), as far as a tensor that training
uses: that noise is added to, or that is compared with an action. What is not
clear is asked, never guessed.
"""

import collections
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2, types_pb2

from city.errors import InputError
from export.graphs.graph_actor import RANDOM_MEAN, VARIABLES, node_of

RANDOM = {*RANDOM_MEAN, "Multinomial", "RandomGamma", "RandomUniformInt", "StatelessMultinomial", "RandomPoissonV2"}
PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "SparseMatMul", "_FusedMatMul")
BOUNDED = ("Tanh", "Sigmoid", "Softsign", "ClipByValue", "Sin", "Cos")
# fmt: off
ON_EACH = {
    *BOUNDED, "Add", "AddV2", "BiasAdd", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "Identity", "Reshape",
    "Squeeze", "ExpandDims", "Softmax", "Select", "SelectV2", "Cast", "CheckNumerics", "StopGradient",
}
# fmt: on
"""Operations on the way from the last layer to the mean: bounds, scales and clips, nothing that only a loss has (a square)."""
SLICES = ("Split", "SplitV", "StridedSlice", "Slice", "Unpack", "GatherV2")
PLACEHOLDERS = ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2")
_FLOATS = (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF)
_SWITCHES = {
    "train": False, "training": False, "phase": False, "learning": False,
    "keep": 1.0, "prob": 1.0, "dropout": 0.0, "rate": 0.0,
}  # fmt: skip
"""What placeholders that steer training are at inference, by a word of their name."""


@dataclass(frozen=True)
class Graph:
    """A GraphDef with its nodes by name and by what they feed."""

    nodes: Mapping[str, Any]
    consumers: Mapping[str, list[str]]
    variables: Mapping[str, str]
    """Name of a variable in the checkpoint -> its node."""

    @classmethod
    def of(cls, graph: graph_pb2.GraphDef) -> "Graph":
        consumers: dict[str, list[str]] = collections.defaultdict(list)
        for node in graph.node:
            for source in node.input:
                if not source.startswith("^"):
                    consumers[node_of(source)].append(node.name)
        variables = {stored_as(node): node.name for node in graph.node if node.op in VARIABLES}
        return cls({node.name: node for node in graph.node}, consumers, variables)

    def behind(self, name: str) -> dict[str, Any]:
        """Every node that a node needs, itself too."""
        found: dict[str, Any] = {}
        stack = [name]
        while stack:
            node = self.nodes.get(stack.pop())
            if node is not None and node.name not in found:
                found[node.name] = node
                stack += [node_of(source) for source in node.input if not source.startswith("^")]
        return found


def constants(where: Path, behind: Mapping[str, Any], observation: str) -> dict[str, Any]:
    """Values at inference of the placeholders that an output needs beside the observation.

    Raises InputError with the name of one whose value nothing tells.
    """
    values: dict[str, Any] = {}
    for node in behind.values():
        if node.name == observation or node.op not in PLACEHOLDERS:
            continue
        value = switch(node)
        if value is None and node.op != "PlaceholderWithDefault":
            raise InputError(
                f"{where}: the output needs placeholder {node.name}, whose value at inference nothing tells; "
                "name another tensor with --output-tensor"
            )
        if value is not None:
            values[node.name] = value
    return values


def switch(node: Any) -> Any:
    """What a placeholder that steers training is at inference; None: it does not steer, or is unknown."""
    dtype, shape = node.attr["dtype"].type, node.attr["shape"].shape
    if dtype == types_pb2.DT_BOOL:
        return False
    if dtype not in _FLOATS or shape.dim:
        return None  # one that steers is a single number
    words = re.findall(r"[a-z]+", node.name.rsplit("/", 1)[-1].lower())
    told = next((value for key, value in _SWITCHES.items() if key in words), None)
    return None if told is None else float(told)


def fed(behind: Mapping[str, Any]) -> list[str]:
    """Placeholders that must be fed: what steers nothing, and has no value of its own unless it is an observation's."""
    return [
        node.name
        for node in behind.values()
        if node.op in PLACEHOLDERS
        and switch(node) is None
        and (node.op != "PlaceholderWithDefault" or len(node.attr["shape"].shape.dim) == 2)
    ]


def observation(where: Path, behind: Mapping[str, Any], output: str) -> str:
    """The one placeholder that is an output's observation: floats, a row for each. Raises InputError."""
    found = fed(behind)
    if len(found) != 1:
        told = f"the placeholders {', '.join(sorted(found))}" if found else "no placeholder of an observation"
        raise InputError(f"{where}: tensor {output} needs {told}; name the actor's own output with --output-tensor")
    node = behind[found[0]]
    dims = node.attr["shape"].shape.dim
    if node.attr["dtype"].type not in _FLOATS or (dims and len(dims) != 2):
        told = types_pb2.DataType.Name(node.attr["dtype"].type).removeprefix("DT_").lower()
        raise InputError(
            f"{where}: its observation {node.name} is {told} {[dim.size for dim in dims]}, not rows of numbers; "
            "an actor that takes such is not one that can be served"
        )
    return found[0]


class NotInGraph(InputError):
    """A graph that does not run the actor on a placeholder: it tells nothing of it."""


def guess(where: Path, graph: Graph, layers: Iterable[str], own: Callable[[str], bool], categorical: bool) -> str:
    """The output tensor of the actor that has these layers' variables.

    `own`: whether a variable node is the actor's beside its layers (such as the
    statistics that normalise its observation). Raises InputError where no tensor
    is clear, NotInGraph where the graph does not run the actor on a placeholder.
    """
    wanted = {name for name in layers if name in graph.nodes and graph.nodes[name].op in VARIABLES}
    head, others = _head(where, graph, wanted)
    behind = graph.behind(head)
    foreign = sorted(n for n, node in behind.items() if node.op in VARIABLES and n not in wanted and not own(n))
    if foreign:
        raise InputError(
            f"{where}: what its actor gives needs variables of others too ({', '.join(foreign[:5])}); "
            "name its mean with --output-tensor"
        )
    if random := [name for name, node in behind.items() if node.op in RANDOM and not _is_dropout(name)]:
        raise InputError(f"{where}: its actor is random ({random[0]}); name its mean with --output-tensor")
    observed = observation(where, behind, head)

    def is_training(name: str) -> bool:
        """Whether a tensor is more than a function of the observation and the actor's variables."""
        needs = graph.behind(name)
        return (
            set(fed(needs)) != {observed}
            or any(node.op in RANDOM and not _is_dropout(n) for n, node in needs.items())
            or any(node.op in VARIABLES and n not in wanted and not own(n) for n, node in needs.items())
            or any(other in needs for other in others)
        )

    way = _way(where, graph, head, is_training, categorical)
    used = [k for k, name in enumerate(way) if any(map(is_training, _consumers(graph, name)))]
    if not used:
        return f"{way[-1]}:0"
    after = [graph.nodes[name].op for name in way[used[-1] + 1 :]]
    if not categorical and any(op in BOUNDED for op in after):
        raise InputError(f"{where}: its actor's mean is {way[used[-1]]} or {way[-1]}; say which with --output-tensor")
    return f"{way[used[-1]]}:0"


def _head(where: Path, graph: Graph, wanted: set[str]) -> tuple[str, list[str]]:
    """The product of the actor's last layer, and those of its other last layers (a deviation's). Raises InputError."""
    reached = _reached(graph, wanted)
    products = [name for name in reached if graph.nodes[name].op in PRODUCTS and _kernel(graph, name, wanted)]
    if not any(node.op in PLACEHOLDERS for name in products for node in graph.behind(name).values()):
        raise NotInGraph(f"{where}: its graph does not run the actor on a placeholder")
    inner = {name for product in products for name in graph.behind(product) if name != product}
    heads = [name for name in products if name not in inner]
    if len(heads) > 1:
        named = [name for name in heads if re.search(r"mean|mu|loc|logits", _kernel(graph, name, wanted).lower())]
        plain = [name for name in heads if not re.search(r"std|sigma|var\b|scale|dev", _kernel(graph, name, wanted).lower())]
        chosen = named if len(named) == 1 else plain
        if len(chosen) != 1:
            told = ", ".join(sorted(_kernel(graph, name, wanted) for name in heads))
            raise InputError(f"{where}: its actor ends with several layers ({told}); name its mean with --output-tensor")
        return chosen[0], [name for name in heads if name != chosen[0]]
    return heads[0], []


def _kernel(graph: Graph, product: str, wanted: set[str]) -> str:
    """The layer's variable that a product multiplies by; empty: none."""
    for source in graph.nodes[product].input[1:]:
        name = node_of(source)
        while graph.nodes[name].op in ("Identity", "ReadVariableOp", "Cast", "Enter", "Reshape", "StopGradient"):
            name = node_of(graph.nodes[name].input[0])
        if name in wanted:
            return name
    return ""


def _way(where: Path, graph: Graph, head: str, is_training: Callable[[str], bool], categorical: bool) -> list[str]:
    """Tensors from the last layer's product on, each a function of the one before alone. Raises InputError."""
    way = [head]
    while True:
        after = [name for name in _consumers(graph, way[-1]) if not is_training(name)]
        if any(graph.nodes[name].op in SLICES for name in after):
            raise InputError(f"{where}: what its last layer gives is taken apart after {way[-1]}; say --output-tensor")
        on = [name for name in after if graph.nodes[name].op in ON_EACH and not _with_itself(graph, name, way[-1])]
        if categorical and any(graph.nodes[name].op == "Softmax" for name in on):
            return way
        if len(on) > 1:
            on = [name for name in on if graph.nodes[name].op in BOUNDED] or on
        if not on or graph.nodes[way[-1]].op == "Softmax":
            return way
        if len(on) > 1:
            raise InputError(f"{where}: its actor goes on with {', '.join(sorted(on))}; name its mean with --output-tensor")
        way.append(on[0])


def _with_itself(graph: Graph, name: str, source: str) -> bool:
    """Whether an operation takes a tensor twice: a square, as losses have it."""
    return [node_of(taken) for taken in graph.nodes[name].input].count(source) > 1


def _consumers(graph: Graph, name: str) -> list[str]:
    """What a tensor feeds, gradients, updates and shapes left out."""
    return [
        after
        for after in dict.fromkeys(graph.consumers.get(name, ()))
        if "gradients" not in after
        and not re.match(r"(Assign|Save|Apply|Resource|Shape|Rank|Size|ZerosLike|OnesLike|.*Summary)", graph.nodes[after].op)
    ]


def _reached(graph: Graph, variables: Iterable[str]) -> list[str]:
    """Nodes that variables feed."""
    found: dict[str, None] = {}
    stack = sorted(variables)
    while stack:
        for name in _consumers(graph, stack.pop()):
            if name not in found:
                found[name] = None
                stack.append(name)
    return list(found)


def _is_dropout(name: str) -> bool:
    return "dropout" in name.lower()


def stored_as(node: Any) -> str:
    """Name of a variable in the checkpoint: a resource's own is its shared name."""
    name = node.attr["shared_name"].s.decode() if node.op == "VarHandleOp" else ""
    return name or str(node.name)
