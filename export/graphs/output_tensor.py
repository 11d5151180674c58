"""Find an actor's observation and its deterministic output in a training graph.

The output is the mean (or the logits), not the sampled action or a loss: the only tensor computed from the actor's
last layer that training uses, for example by adding noise to it or comparing it with an action. If there are several,
the user names one.
"""

import collections
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorflow.core.framework import graph_pb2, types_pb2

from city.errors import InputError
from export.checkpoints.scopes import name_parts
from export.graphs.graph_actor import RANDOM_MEAN, VARIABLES, node_of

RANDOM = {*RANDOM_MEAN, "Multinomial", "RandomGamma", "RandomUniformInt", "StatelessMultinomial", "RandomPoissonV2"}
MATMUL_OPS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "SparseMatMul", "_FusedMatMul")
UNCHANGED_OPS = ("Identity", "StopGradient", "CheckNumerics", "ReadVariableOp", "Enter", "Cast")
BEYOND_OUTPUT_OPS = {
    *("Mean", "Sum", "Max", "Min", "Prod", "All", "Any", "L2Loss", "Square", "Pow", "SquaredDifference"),
    *("Switch", "Merge", "If", "StatelessIf", "While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"),
}
"""Operations of losses and of control flow, which an output never depends on."""
BOUNDING_OPS = ("Tanh", "Sigmoid", "Softsign", "ClipByValue", "Sin", "Cos")
CHOICE_OPS = ("ArgMax", "Softmax", "LogSoftmax", "TopKV2")
"""Operations on logits that keep the best action."""
_NO_CONSUMER = re.compile(r"Assign|Save|Apply|Resource|Shape|Rank|Size|ZerosLike|OnesLike|.*Summary")
"""Operations that use a tensor without computing from its values."""
PLACEHOLDERS = ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2")
_FLOATS = (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF)
_TRAINING_WORDS = {"train", "training", "phase", "learning", "dropout", "explore", "stochastic"}
_INFERENCE_WORDS = {
    *("eval", "evaluate", "evaluation", "inference", "infer", "test", "testing", "deterministic", "greedy"),
}
"""Words in the names of switches that are on at inference; those with _TRAINING_WORDS are off."""
_FRACTIONS = {"keep": 1.0, "dropout": 0.0, "drop": 0.0, "rate": 0.0}
"""Words in the names of dropout's settings -> value at inference; the first word that matches counts."""


@dataclass(frozen=True)
class GraphIndex:
    """A GraphDef with its nodes by name, and the consumers of each node."""

    nodes: Mapping[str, Any]
    consumers: Mapping[str, list[tuple[str, str]]]
    """(tensor, consumer) of each node, without gradients, updates and shapes."""
    variables: Mapping[str, str]
    """Name of a variable in the checkpoint -> its node."""

    @classmethod
    def of(cls, graph: graph_pb2.GraphDef) -> "GraphIndex":
        consumers: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
        for node in graph.node:
            if "gradients" in node.name or _NO_CONSUMER.match(node.op):
                continue
            for source in node.input:
                if not source.startswith("^"):
                    consumers[node_of(source)].append((tensor_of(source), node.name))
        variables = {stored_as(node): node.name for node in graph.node if node.op in VARIABLES}
        return cls({node.name: node for node in graph.node}, consumers, variables)

    def users(self, tensor: str) -> list[str]:
        """The nodes that use a tensor, directly or through operations that do not change it."""
        users: list[str] = []
        for used, name in self.consumers.get(node_of(tensor), ()):
            if used == tensor:
                users += self.users(f"{name}:0") if self.nodes[name].op in UNCHANGED_OPS else [name]
        return list(dict.fromkeys(users))

    def source(self, name: str) -> str:
        """The tensor that an input names, before operations that do not change it."""
        tensor = tensor_of(name)
        while (node := self.nodes.get(node_of(tensor))) is not None and node.op in UNCHANGED_OPS:
            tensor = tensor_of(node.input[0])
        return tensor

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


def constants(ancestors: Mapping[str, Any], observation: str) -> dict[str, Any]:
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
                f"the output depends on placeholder {node.name}, and its value at inference is unknown; "
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
    return next((value for word, value in _FRACTIONS.items() if word in name_parts(name)), None)


def switch_value(name: str) -> bool | None:
    """The value of a boolean with this name at inference. `None` if the name does not determine it."""
    words = name_parts(name)
    if bool(words & _TRAINING_WORDS) == bool(words & _INFERENCE_WORDS):
        return None
    return bool(words & _INFERENCE_WORDS)


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


def observation(ancestors: Mapping[str, Any], output: str) -> str:
    """The observation: the only placeholder that an output depends on, float [-1, O]. Raises InputError."""
    inputs = required_placeholders(ancestors)
    if len(inputs) != 1:
        required = f"the placeholders {', '.join(sorted(inputs))}" if inputs else "no placeholder of an observation"
        raise InputError(f"tensor {output} depends on {required}; name the actor's own output with --output-tensor")
    node = ancestors[inputs[0]]
    dims = node.attr["shape"].shape.dim
    if node.attr["dtype"].type not in _FLOATS or (dims and len(dims) != 2):
        dtype = types_pb2.DataType.Name(node.attr["dtype"].type).removeprefix("DT_").lower()
        raise InputError(
            f"its observation {node.name} is {dtype} {[dim.size for dim in dims]}, not float [-1, O]; "
            "such an actor cannot be exported"
        )
    return inputs[0]


class NotInGraph(InputError):
    """The graph does not run the actor."""


def find_output(graph: GraphIndex, layers: set[str], own: set[str], categorical: bool) -> str:
    """Find the output tensor of an actor: the only candidate.

    Args:
        graph: the graph.
        layers: nodes of the variables of the actor's layers.
        own: nodes of the actor's variables, such as statistics that normalise its observation.
        categorical: whether the output is logits or probabilities.

    Raises:
        InputError: there are several candidates, or none.
        NotInGraph: the graph does not run the actor.
    """
    users = (user for layer in sorted(layers) for user in graph.users(f"{layer}:0"))
    products = {user: graph.ancestors(user) for user in users if graph.nodes[user].op in MATMUL_OPS}
    if not products:
        raise NotInGraph("its graph does not run the actor")
    last = [name for name in products if not any(name in products[other] for other in products if other != name)]
    actors = [_ActorGraph(graph, name, layers | own, CHOICE_OPS if categorical else ()) for name in last]
    candidates = [tensor for actor in actors for tensor in actor.candidates]
    if len(candidates) != 1:
        names = candidates or [tensor for actor in actors for tensor in actor.computed]
        raise InputError(
            f"its actor's output may be {' or '.join(names)}; choose its mean (or its logits) with --output-tensor, or "
            "output_tensor in city.toml"
        )
    return candidates[0]


class _ActorGraph:
    """The tensors computed from an actor's last product alone.

    Raises InputError if that product depends on more than one observation and the actor's variables.
    """

    def __init__(self, graph: GraphIndex, product: str, variables: set[str], beyond: Iterable[str]) -> None:
        """`variables`: nodes of the actor's variables. `beyond`: operations that an output comes before."""
        self._graph, self._variables = graph, variables
        ancestors = graph.ancestors(product)
        if foreign := self._foreign(ancestors):
            raise InputError(
                f"the output of its actor depends on {', '.join(foreign)}; name its mean with --output-tensor"
            )
        self._observation = observation(ancestors, product)
        self.computed = [f"{product}:0"]
        used, unused = [], []
        for tensor in self.computed:  # grows meanwhile
            users = graph.users(tensor)
            uses = {user for user in users if graph.nodes[user].op in beyond or self._is_training(user)}
            if uses:
                used.append(tensor)
            elif not users:
                unused.append(tensor)
            for user in users:
                if user not in uses and self._is_function(user):
                    outputs = {output for output, _ in graph.consumers.get(user, ())} or {f"{user}:0"}
                    self.computed += sorted(outputs - set(self.computed))
        # training samples around a mean, but the action may be the bounded mean, which training does not use
        bounded = [tensor for tensor in unused if graph.nodes[node_of(tensor)].op in BOUNDING_OPS]
        self.candidates = used + bounded if used else unused

    def _is_training(self, name: str) -> bool:
        """Tell whether a node depends on more than the observation and the actor's variables."""
        ancestors = self._graph.ancestors(name)
        return bool(set(required_placeholders(ancestors)) - {self._observation} or self._foreign(ancestors))

    def _foreign(self, ancestors: Mapping[str, Any]) -> list[str]:
        """Random operations, and variables outside the actor, that a tensor depends on."""
        random = [f"{n} (random)" for n, node in ancestors.items() if node.op in RANDOM and "dropout" not in n.lower()]
        variables = sorted(n for n, node in ancestors.items() if node.op in VARIABLES and n not in self._variables)
        return [*random[:1], *([f"variables outside its scope ({', '.join(variables[:5])})"] if variables else [])]

    def _is_function(self, name: str) -> bool:
        """Tell whether a node is a function of one computed tensor and of constants, and not part of a loss."""
        node = self._graph.nodes[name]
        sources = [self._graph.source(source) for source in node.input if not source.startswith("^")]
        others = [source for source in sources if source not in self.computed]
        return (
            node.op not in BEYOND_OUTPUT_OPS
            and len(sources) - len(others) == 1  # otherwise a square
            and not any(self._observation in self._graph.ancestors(node_of(source)) for source in others)
        )


def tensor_of(name: str) -> str:
    """The tensor that an input names: a:0 for `a`."""
    return name if ":" in name else f"{name}:0"


def stored_as(node: Any) -> str:
    """Name of a variable in the checkpoint; for a resource it is the shared name."""
    name = node.attr["shared_name"].s.decode() if node.op == "VarHandleOp" else ""
    return name or str(node.name)
