"""Architectures: the steps that a checkpoint's layers form.

A checkpoint has its dense layers and its batch norms, each in order. Settings and
file names define what shapes do not: activations and residuals.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors import Actor, activations, permitted_difference
from export.actors.activations import ACTIVATIONS, LEAKY_RELU
from export.actors.steps import (
    Activation,
    BatchNorm,
    Branch,
    Clip,
    Dense,
    Join,
    SizeMismatch,
    Step,
    activated,
    check_sizes,
    mlp,
)
from serving.contract import PROBABILITIES

OUTPUT_ACTIVATIONS = ("tanh", "linear", "sigmoid")
CLIP = "clip"
"""Output of trainers whose environment clips actions to [-1, 1]."""
MATCH_TOLERANCES = {1.0: 1e-5, 10.0: 1e-4, 100.0: 1e-3, 1000.0: 1e-2}
"""Tolerance between equal actions by the scale of observations: float32 has seven digits."""
RELATIVE_TOLERANCE = 1e-5
"""Tolerance relative to the scale of the actions, or of the logits before a tanh or softmax."""
MAX_BOUNDED_DIFFERENCE = 1e-2
"""Limit for differences of probabilities, and of actions after a tanh, whatever the scale of the logits."""
BATCH_NORM_EPSILON = 1e-5
"""Default of the sappo dialect's trainer; weights files do not contain it."""
MAX_ORDERS = 5040
"""Orders of groups to try: 7!."""


@dataclass(frozen=True)
class Layers:
    """The layers of an actor, as a reader found them."""

    dense: tuple[Dense, ...]
    norms: tuple[BatchNorm, ...]
    unread: tuple[str, ...]
    groups: tuple["Layers", ...] = ()
    """Attributes of a subclassed model: the file defines the order of layers within each group, but not the order of
    the groups."""
    name: str = ""
    """Name of a group; empty for the whole actor."""
    sequence: str = ""
    """Groups of one sequence, such as fc1 and fc2, are called in their order. Empty without a sequence."""

    @property
    def variables(self) -> list[str]:
        """Names of the layers' variables in the checkpoint."""
        layers: tuple[Dense | BatchNorm, ...] = (*self.dense, *self.norms)
        return [name for layer in layers for name in layer.stored_as.values()]

    def joined(self, groups: Sequence["Layers"]) -> "Layers":
        """These layers with their groups in an order."""
        dense = tuple(layer for group in groups for layer in group.dense)
        norms = tuple(norm for group in groups for norm in group.norms)
        return Layers(dense, norms, self.unread)


@dataclass(frozen=True)
class ArchitectureHints:
    """An architecture's settings in city.toml, flags and file names."""

    architecture: str | None = None
    """Without it, the architecture is recognised from the layers."""
    hidden_activation: str | None = None
    """Without it, relu; a source whose trainers have no common default requires it."""
    output_activation: str | None = None
    """Activation of a continuous actor's output, or `clip` to [-1, 1]. Without it, tanh. Categorical actors end with
    logits."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of the hidden layers, from the file name (netSz) or city.toml."""
    epsilon: float | None = None
    """Epsilon of batch norms. Without it, BATCH_NORM_EPSILON."""
    layer_order: tuple[str, ...] | None = None
    """Names of the actor's layers, in call order."""
    scores: str | None = None
    """Meaning of a categorical actor's outputs, `probabilities` or `q_values`. Without it, `ActorRequest.scores`
    decides."""

    @property
    def hidden(self) -> str:
        return self.hidden_activation or "relu"

    @property
    def output(self) -> str:
        return self.output_activation or "tanh"


def build(layers: Layers, hints: ArchitectureHints, categorical: bool) -> Actor:
    """The actor that the layers form. Raises InputError if they do not form one."""
    return _assemble(_in_order(layers, hints, categorical), hints, categorical)


def _assemble(layers: Layers, hints: ArchitectureHints, categorical: bool) -> Actor:
    name = hints.architecture or _recognise(layers, hints)
    if name not in BUILDERS:
        raise InputError(
            f"actor {name!r} (--actor, or [tl.NAME] actor) is not one of {', '.join(BUILDERS)} or MODULE:FUNCTION"
        )
    for key, kind, others in (("hidden_activation", hints.hidden, ()), ("output_activation", hints.output, (CLIP,))):
        if reason := activations.refusal(kind, others):
            raise InputError(f"{key} {reason}; set it in [tl.NAME] of city.toml")
    steps = BUILDERS[name](layers, hints)
    try:
        check_sizes(steps)
    except SizeMismatch as error:
        raise InputError(f"{error}: a layer between them is missing, or this is not a {name}") from None
    _check_hidden_sizes(name, layers, hints)
    if not categorical:
        steps.append(Clip((-1.0,), (1.0,)) if hints.output == CLIP else Activation(hints.output))
    return Actor(name, tuple(steps), layers.unread, hints.scores or PROBABILITIES)


def find_equivalent_actor(
    layers: Layers,
    hints: ArchitectureHints,
    reference_model: Callable[[NDArray[np.float32], bool], NDArray[Any]],
    inputs: int,
    categorical: bool,
) -> Actor | None:
    """The actor of these layers that acts like the reference model, or `None` if no architecture does.

    Weights do not determine architectures and activations; they are tried in
    turn, the hinted ones first.

    Args:
        layers: the checkpoint's layers.
        hints: settings of the architecture.
        reference_model: [n, inputs] observations and `categorical` -> [n, A] actions or scores.
        inputs: number of inputs of the reference model.
        categorical: whether the actor is categorical.
    """
    try:
        layers = _in_order(layers, hints, categorical)
    except InputError:
        if hints.architecture:
            raise
        return None
    rng = np.random.default_rng(2)
    # large observations too: a clip or a relu6 acts only on these
    probes = [(scale * rng.standard_normal((64, inputs))).astype(np.float32) for scale in MATCH_TOLERANCES]
    references = [reference_model(probe, categorical) for probe in probes]
    architectures = [hints.architecture] if hints.architecture else list(BUILDERS)
    hidden_activations = dict.fromkeys([hints.hidden, *ACTIVATIONS])
    hidden_activations.pop(LEAKY_RELU, None)  # its slope is found by trying
    output_activations = [hints.output] if categorical else dict.fromkeys([hints.output, *OUTPUT_ACTIVATIONS])
    for architecture, hidden, output in itertools.product(architectures, hidden_activations, output_activations):
        if architecture.startswith("bn-") and hidden != hints.hidden:
            continue
        candidate = replace(hints, architecture=architecture, hidden_activation=hidden, output_activation=output)
        try:
            actor = _assemble(layers, candidate, categorical)
        except InputError:
            if hints.architecture:
                raise
            continue
        if actor.inputs != inputs:
            return None
        if all(
            _agree(actor, probe, expected, tolerance, categorical)
            for probe, expected, tolerance in zip(probes, references, MATCH_TOLERANCES.values(), strict=True)
        ):
            return actor
    return None


def _agree(
    actor: Actor, probe: NDArray[np.float32], expected: NDArray[Any], tolerance: float, categorical: bool
) -> bool:
    """Tell whether an actor's actions are the expected ones, up to the rounding of float32.

    Args:
        actor: the actor.
        probe: [n, inputs] observations.
        expected: [n, A] actions or scores.
        tolerance: difference of actions whose scale, and that of their logits, is at most 1.
        categorical: whether the actor is categorical.
    """
    actual = actor.evaluate(probe, categorical)
    if actual.shape != expected.shape:
        return False
    # a tanh or softmax of large logits: the output is small, its rounding is that of the logits
    of_logits: NDArray[Any] | float = 0.0
    if not categorical:
        of_logits = actor.rounding_of_actions(RELATIVE_TOLERANCE, probe)
    elif actor.scores == PROBABILITIES:
        of_logits = permitted_difference(RELATIVE_TOLERANCE, actor.evaluate(probe, categorical=False))
    of_actions = max(tolerance, permitted_difference(RELATIVE_TOLERANCE, expected))
    permitted = np.maximum(of_actions, np.minimum(of_logits, MAX_BOUNDED_DIFFERENCE))
    return bool((np.abs(actual - expected) <= permitted).all())


def _select(layers: Layers, names: Sequence[str]) -> Layers:
    """The layers with these names, in this order; the others are unread. Raises InputError."""
    selected = []
    for name in names:
        matches = [layer for layer in layers.dense if layer.name == name or layer.name.endswith(f"/{name}")]
        if len(matches) != 1:
            stored = ", ".join(
                dict.fromkeys([group.name for group in layers.groups] or [layer.name for layer in layers.dense])
            )
            raise InputError(
                f"layers are {stored}, but --layers or city.toml has {', '.join(names)}; name each layer once"
            )
        selected += matches
    selected_names = {layer.name for layer in selected}
    unread = [name for layer in layers.dense if layer.name not in selected_names for name in layer.stored_as.values()]
    return Layers(tuple(selected), (), (*layers.unread, *unread))


def _in_order(layers: Layers, hints: ArchitectureHints, categorical: bool) -> Layers:
    """The layers in the order of the hints, or with their groups in the only order in which they fit.

    A file of a subclassed model lists its attributes alphabetically, not in the
    order in which they are called. Raises InputError if the order is not clear.
    """
    groups_by_name = {group.name: group for group in layers.groups}
    if hints.layer_order and sorted(hints.layer_order) != sorted(groups_by_name):
        return _select(layers, hints.layer_order)
    if hints.layer_order:
        return layers.joined([groups_by_name[name] for name in hints.layer_order])
    if not layers.groups:
        return layers
    fitting: dict[tuple[int, ...], Layers] = {}
    for groups in _possible_orders(layers.groups):
        ordered = layers.joined(groups)
        try:
            _assemble(ordered, hints, categorical)
        except InputError:
            continue
        fitting.setdefault(tuple(id(layer) for layer in (*ordered.dense, *ordered.norms)), ordered)
    if len(fitting) != 1:
        raise InputError(
            f"does not define the order of its layers {', '.join(groups_by_name)}; "
            "pass --layers start,middle,end, or set layers in city.toml"
        )
    return next(iter(fitting.values()))


def _possible_orders(groups: Sequence[Layers]) -> Iterator[Sequence[Layers]]:
    """Every order of the groups that keeps the order within each sequence. Empty if there are more than MAX_ORDERS."""
    sequences: dict[str, list[Layers]] = {}
    for group in groups:
        sequences.setdefault(group.sequence or f"group {group.name}", []).append(group)
    count = math.factorial(len(groups)) // math.prod(math.factorial(len(sequence)) for sequence in sequences.values())
    if count > MAX_ORDERS:
        return

    def orders(remaining: list[list[Layers]]) -> Iterator[tuple[Layers, ...]]:
        if not any(remaining):
            yield ()
        for k, sequence in enumerate(remaining):
            if sequence:
                for order in orders([*remaining[:k], sequence[1:], *remaining[k + 1 :]]):
                    yield (sequence[0], *order)

    yield from orders(list(sequences.values()))


def _recognise(layers: Layers, hints: ArchitectureHints) -> str:
    """The only architecture that fits the layers. Raises InputError if there are several or none."""
    if not layers.dense:
        raise InputError(
            "holds no dense layer of an actor; "
            "greenserve inspect lists its variables; pass --scope or --actor MODULE:FUNCTION"
        )
    units = [int(layer.kernel.shape[1]) for layer in layers.dense]
    if layers.norms:
        has_no_bias = all(layer.bias is None for layer in layers.dense[1:-1])
        return "bn-tanh-bottleneck" if has_no_bias else "bn-elu-res"
    *hidden, _ = units
    # hidden layers n0, n1..nk are followed by n0 and nk again
    if len(hidden) < 4 or hidden[-2] != hidden[0] or hidden[-1] != hidden[-3]:
        return "mlp"
    if hints.hidden_sizes is not None:
        return "mlp-res" if len(units) == len(hints.hidden_sizes) + 3 else "mlp"
    raise InputError(
        f"dense layers of {', '.join(map(str, units))} units are an mlp or an mlp-res; "
        "pass --actor mlp or --actor mlp-res"
    )


def _mlp_res(layers: Layers, hints: ArchitectureHints) -> list[Step]:
    """h0 = relu(n0); n1..nk; y = relu(n0) + h0; relu(nk); output (the TF1 variant of the sappo dialect's trainer)."""
    if len(layers.dense) < 5:
        raise InputError(f"mlp-res has at least 5 dense layers; found {len(layers.dense)}; pass another --actor")
    first, *middle, last, output = layers.dense
    activation = Activation(hints.hidden)
    return [first, activation, Branch(), *activated(middle, hints.hidden), Join(), last, activation, output]


def _batch_norm(name: str, layers: Layers, hints: ArchitectureHints) -> list[Step]:
    """A dense layer, then blocks of a batch norm, an activation and a dense layer.

    bn-elu-res: n0 linear; block(n1); then three blocks added to their input, for every size; block(A).
    bn-tanh-bottleneck: n0 with tanh; block(n1); then blocks n/4, n/4, n added to their input; block(A).
    """
    if len(layers.norms) != len(layers.dense) - 1 or len(layers.norms) < 5 or (len(layers.norms) - 2) % 3:
        raise InputError(
            f"{len(layers.dense)} dense layers and {len(layers.norms)} batch norms are not a known architecture, as "
            f"{name} is; pass --actor MODULE:FUNCTION, or export a file that holds its wiring (a SavedModel, a whole "
            "Keras model)"
        )
    epsilon = BATCH_NORM_EPSILON if hints.epsilon is None else hints.epsilon
    blocks = [(norm.step(epsilon), dense) for norm, dense in zip(layers.norms, layers.dense[1:], strict=True)]
    is_elu = name == "bn-elu-res"
    activation = Activation("elu" if is_elu else "tanh")
    steps: list[Step] = [layers.dense[0]] if is_elu else [layers.dense[0], activation]
    for k, (norm, dense) in enumerate(blocks):
        is_residual = 0 < k < len(blocks) - 1
        if is_residual and k % 3 == 1:
            steps.append(Branch())
        steps += [norm, activation, dense]
        if is_residual and k % 3 == 0:
            steps.append(Join())
    return steps


def _check_hidden_sizes(name: str, layers: Layers, hints: ArchitectureHints) -> None:
    """Raise InputError if the layers do not have the hidden sizes of the file name (netSz) or city.toml."""
    if hints.hidden_sizes is None:
        return
    units = [int(layer.kernel.shape[1]) for layer in layers.dense[:-1]]
    hidden = list(hints.hidden_sizes)
    match name:
        case "mlp":
            expected = hidden
        case "mlp-res":
            expected = [*hidden, hidden[0], hidden[-1]]
        case "bn-elu-res":
            expected = [*hidden[:2], *(n for n in hidden[1:] for _ in range(3))]
        case _:
            expected = [*hidden[:2], *(size for n in hidden[1:] for size in (n // 4, n // 4, n))]
    if units != expected:
        raise InputError(
            f"hidden sizes are {', '.join(map(str, hidden))}, but the hidden layers of its {name} have "
            f"{', '.join(map(str, units)) or 'no'} units, not {', '.join(map(str, expected))}"
        )


BUILDERS: dict[str, Callable[[Layers, ArchitectureHints], list[Step]]] = {
    "mlp": lambda layers, hints: mlp(layers.dense, hints.hidden),
    "mlp-res": _mlp_res,
    "bn-elu-res": functools.partial(_batch_norm, "bn-elu-res"),
    "bn-tanh-bottleneck": functools.partial(_batch_norm, "bn-tanh-bottleneck"),
}
