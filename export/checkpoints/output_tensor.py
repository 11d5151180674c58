"""Where an actor begins and ends in a training graph: its observation, its deterministic output.

The output is the mean (or the logits), not the sampled action, not a loss: of
all tensors that need every layer of the actor, nothing random, no placeholder
but the observation and no variable of anything else, the first; or the
activation that follows it at once.
"""

import collections
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2, types_pb2

from city.errors import InputError
from export.actors.graph_actor import RANDOM_MIDDLE, VARIABLES, node_of

RANDOM = {*RANDOM_MIDDLE, "Multinomial", "RandomGamma", "RandomUniformInt", "StatelessMultinomial", "RandomPoissonV2"}
BOUNDED = ("Tanh",)
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


def stored_as(node: Any) -> str:
    """Name of a variable in the checkpoint: a resource's own is its shared name."""
    name = node.attr["shared_name"].s.decode() if node.op == "VarHandleOp" else ""
    return name or str(node.name)


def constants(where: Path, behind: Mapping[str, Any], observation: str) -> dict[str, Any]:
    """Values at inference of the placeholders that an output needs beside the observation.

    Raises InputError with the name of one whose value nothing tells.
    """
    values: dict[str, Any] = {}
    for node in behind.values():
        if node.name == observation or node.op not in ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2"):
            continue
        value = _switch(node)
        if value is None and node.op != "PlaceholderWithDefault":
            raise InputError(
                f"{where}: the output needs placeholder {node.name}, whose value at inference nothing tells; "
                "name another tensor with --output-tensor"
            )
        if value is not None:
            values[node.name] = value
    return values


def _switch(node: Any) -> Any:
    """What a placeholder that steers training is at inference; None: unknown."""
    dtype = node.attr["dtype"].type
    if dtype == types_pb2.DT_BOOL:
        return False
    words = re.findall(r"[a-z]+", node.name.rsplit("/", 1)[-1].lower())
    told = next((value for key, value in _SWITCHES.items() if key in words), None)
    return None if told is None or dtype not in _FLOATS else float(told)


def observations(behind: Mapping[str, Any]) -> list[str]:
    """Placeholders that can be the observation: floats that steer nothing."""
    return [
        node.name
        for node in behind.values()
        if node.op in ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2")
        and node.attr["dtype"].type in _FLOATS
        and _switch(node) is None
        and len(node.attr["shape"].shape.dim) != 1
    ]


def observation(where: Path, behind: Mapping[str, Any], output: str) -> str:
    """The one placeholder that is an output's observation. Raises InputError."""
    found = observations(behind)
    if len(found) > 1:
        found = [name for name in found if re.search(r"obs|state", name.lower())] or found
    if len(found) != 1:
        told = f"the placeholders {', '.join(sorted(found))}" if found else "no placeholder of an observation"
        raise InputError(f"{where}: tensor {output} needs {told}; name the actor's own output with --output-tensor")
    return found[0]


class NotInGraph(InputError):
    """A graph that does not run the actor on a placeholder: it tells nothing of it."""


def guess(where: Path, graph: Graph, layers: Iterable[str], own: Callable[[str], bool]) -> str:
    """The output tensor of the actor that has these layers' variables.

    `own`: whether a variable node is the actor's beside its layers (such as the
    statistics that normalise its observation). Raises InputError where no tensor
    is clear, NotInGraph where the graph holds no such actor at all.
    """
    wanted = [name for name in layers if name in graph.nodes and graph.nodes[name].op in VARIABLES]
    best: dict[int, list[str]] = collections.defaultdict(list)
    needs: dict[int, set[str]] = collections.defaultdict(set)
    for name in _reached(graph, wanted):
        behind = graph.behind(name)
        if len(observations(behind)) != 1 or any(node.op in RANDOM and not _is_dropout(node.name) for node in behind.values()):
            continue
        mine = sum(variable in behind for variable in wanted)
        foreign = {n for n, node in behind.items() if node.op in VARIABLES and n not in wanted and not own(n)}
        needs[mine] |= foreign
        if not foreign:
            best[mine].append(name)
    if not needs:
        raise NotInGraph(f"{where}: its graph does not run the actor on a placeholder")
    most = max(needs)
    if most not in best:
        told = ", ".join(sorted(needs[most])[:5])
        raise InputError(
            f"{where}: what its actor gives needs variables of others too ({told}); name its mean with --output-tensor"
        )
    tops = set(best[most])
    first = [name for name in best[most] if not any(source in tops for source in _sources(graph, name))]
    ends = [_bounded(graph, name, tops) for name in first]
    if len(ends) > 1:
        # a deviation has a head of its own: the mean is the one that is bounded, or called so
        ends = [name for name in ends if re.search(r"mean|mu\b|logits", name.lower())] or ends
        ends = [name for name in ends if graph.nodes[name].op in BOUNDED] or ends
    if len(set(ends)) > 1:
        raise InputError(f"{where}: its actor ends with {', '.join(sorted(set(ends)))}; say which with --output-tensor")
    return f"{ends[0]}:0"


def _reached(graph: Graph, variables: Iterable[str]) -> list[str]:
    """Nodes that variables feed, gradients and updates left out."""
    found: dict[str, None] = {}
    stack = list(variables)
    while stack:
        for name in graph.consumers.get(stack.pop(), ()):
            node = graph.nodes[name]
            if name not in found and "gradients" not in name and not re.match(r"(Assign|Save|Apply|Resource|.*Summary)", node.op):
                found[name] = None
                stack.append(name)
    return [name for name in found if graph.nodes[name].op not in ("Identity", "ReadVariableOp", "Shape", *VARIABLES)]


def _bounded(graph: Graph, name: str, tops: set[str]) -> str:
    """From the last layer's product on over its bias to the tanh that follows at once, if one does."""
    while True:
        node = graph.nodes[name]
        after = [graph.nodes[after] for after in graph.consumers.get(name, ()) if after in tops]
        bound = [other for other in after if other.op in BOUNDED]
        if bound:
            return str(bound[0].name)
        biased = [other for other in after if other.op in ("BiasAdd", "Add", "AddV2") and _adds_a_bias(graph, other)]
        if node.op in ("MatMul", "Identity", "Reshape", "Squeeze") and len(biased or after) == 1:
            name = (biased or after)[0].name
            if (biased or after)[0].op in ("BiasAdd", "Add", "AddV2", "Identity", "Reshape", "Squeeze"):
                continue
            return str(node.name)
        return name


def _adds_a_bias(graph: Graph, node: Any) -> bool:
    return any(graph.nodes[node_of(s)].op in ("Identity", "ReadVariableOp", *VARIABLES) for s in node.input[1:])


def _sources(graph: Graph, name: str) -> list[str]:
    return [node_of(source) for source in graph.nodes[name].input]


def _is_dropout(name: str) -> bool:
    return "dropout" in name.lower()
