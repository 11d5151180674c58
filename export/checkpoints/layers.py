"""The dense layers and batch norms of an actor, out of a checkpoint's variables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from city.errors import InputError
from export.actors.architectures import Layers
from export.actors.steps import BatchNorm, Dense, Float32Array
from export.checkpoints import scopes
from export.checkpoints.checkpoint import PARTS, Checkpoint, StoredVariable, natural, split, unread_variables

TRANSPOSED = "weight"
"""PyTorch's name of a kernel, stored as [units, inputs]."""
LayerParts = dict[str, dict[str, tuple[str, Float32Array]]]
"""Layer -> part -> (the variable's name in the checkpoint, its values)."""
BATCH_NORM_EPSILON = 1e-5
"""The default of the sappo dialect's trainer; weights files do not contain it."""


def read_layers(checkpoint: Checkpoint, scope: str, whole: bool = False) -> Layers:
    """The layers of the actor in a scope of a checkpoint ("": all of it). Raises InputError.

    `whole`: whether every variable in that scope must belong to a layer or to training.
    """
    found = _parts(checkpoint, scope)
    if not found:
        raise InputError(
            f"{checkpoint.where}: {scope or 'the checkpoint'} holds no dense layer of an actor; "
            "greenserve inspect lists its variables; pass --scope or --actor MODULE:FUNCTION"
        )
    order = list(found) if checkpoint.ordered else sorted(found, key=natural)
    check_numbers(checkpoint.where, [name for name in order if "kernel" in found[name]], checkpoint.first)
    unread = unread_variables(checkpoint, [stored for parts in found.values() for stored, _ in parts.values()])
    if whole:
        _refuse_unread(checkpoint, unread, scope, found, order)
    return _grouped(checkpoint, layers(checkpoint.where, found, order, unread), order, f"{scope}/" if scope else "")


def _parts(checkpoint: Checkpoint, scope: str) -> LayerParts:
    """The parts of every layer in a scope; training's variables are left out. Raises InputError."""
    prefix = f"{scope}/" if scope else ""
    found: LayerParts = {}
    keys = set()
    for name in checkpoint.stored:
        layer, part = split(name)
        folders = name.removeprefix(prefix).split("/")[:-1]
        key = checkpoint.keys[name] if checkpoint.keys else name
        if not name.startswith(prefix) or part not in PARTS or key in keys or any(map(scopes.is_training, folders)):
            continue
        keys.add(key)
        values = checkpoint.value(name)
        if values.dtype.kind != "f":
            raise InputError(f"{checkpoint.where}: {name} holds {values.dtype}, not weights")
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused
            found.setdefault(layer, {})[PARTS[part]] = name, np.asarray(values.T if part == TRANSPOSED else values, np.float32)
    return found


def _refuse_unread(checkpoint: Checkpoint, unread: Sequence[str], scope: str, found: LayerParts, order: Sequence[str]) -> None:
    """Raise InputError if a variable outside the layers may belong to the actor."""
    variables = [checkpoint.stored[name] for name in unread]
    inputs, outputs = input_sizes(found, order), output_sizes(found, order)
    refuse_unknown_variables(checkpoint.where, variables, scope, outputs)
    hidden = {parts["kernel"][1].shape[-1] for parts in found.values() if "kernel" in parts} - outputs
    _refuse_parts_elsewhere(checkpoint.where, variables, scope, _ActorSizes(inputs, hidden, outputs))


def _grouped(checkpoint: Checkpoint, every: Layers, order: Sequence[str], prefix: str) -> Layers:
    """The layers in groups whose order the names do not define; `order`: all layers, `prefix`: their scope.

    Names without numbers (fc_one, output; attributes of a model) do not define the call order; a numbered sequence may
    have others between its layers.
    """
    tops = {layer: layer.removeprefix(prefix).split("/")[0] for layer in order}
    sequences = {top: re.sub(r"[_-]?\d+", "", top) for top in tops.values()}
    members: dict[str, list[str]] = {}
    for top, sequence in sequences.items():
        members.setdefault(sequence, []).append(top)
    if any(names != sorted(names, key=natural) for names in members.values()):
        sequences = {top: top for top in sequences}  # the numbers in the names contradict the stored order
    elif checkpoint.ordered and checkpoint.keys is None:
        return every  # as the user wrote them
    if len(set(sequences.values())) == 1:
        return every
    groups = []
    for name, own in _group_layers(order, tops).items():
        dense = tuple(layer for layer in every.dense if layer.name in own)
        norms = tuple(norm for norm in every.norms if norm.name in own)
        groups.append(Layers(dense, norms, (), name=name, sequence=sequences[name]))
    return replace(every, groups=tuple(groups))


def _group_layers(order: Iterable[str], group_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Layers by the part they belong to, in the order given."""
    parts: dict[str, list[str]] = {}
    for layer in order:
        parts.setdefault(group_of[layer], []).append(layer)
    return parts


def output_sizes(found: LayerParts, order: Sequence[str]) -> set[int]:
    """Sizes that the actor's output may have: the last dense layer's units, and those that no layer takes as its input."""
    shapes = [found[name]["kernel"][1].shape for name in order if "kernel" in found[name]]
    matrices = [shape for shape in shapes if len(shape) == 2]
    taken = {inputs for inputs, _ in matrices}
    return {units for _, units in matrices if units not in taken} | {units for _, units in matrices[-1:]}


def input_sizes(found: LayerParts, order: Sequence[str]) -> set[int]:
    """Sizes that the actor's input may have: the first dense layer's, and those that no layer has as its units."""
    shapes = [found[name]["kernel"][1].shape for name in order if "kernel" in found[name]]
    matrices = [shape for shape in shapes if len(shape) == 2]
    produced = {units for _, units in matrices}
    return {inputs for inputs, _ in matrices if inputs not in produced} | {inputs for inputs, _ in matrices[:1]}


def refuse_unknown_variables(where: Path, unread: Iterable[StoredVariable], scope: str, output_sizes: set[int]) -> None:
    """Raise InputError if an actor has a variable of unknown use, such as statistics that normalise its observation.

    Without that variable the actor might act differently than it was trained to.

    Args:
        where: the checkpoint.
        unread: the variables that are not part of a layer.
        scope: the actor's scope.
        output_sizes: sizes that a log_std may have.
    """
    for variable in unread:
        why = scopes.unread_reason(variable.name, scope)
        if scopes.is_unnamed_log_std(variable.name) and not _is_log_std(variable, output_sizes):
            why = scopes.UNKNOWN_USE
        its_own = why == scopes.UNKNOWN_USE and (variable.shape or (scope and not scopes.is_hyperparameter(variable.name)))
        if "float" in variable.dtype and (its_own or scopes.is_normaliser(variable.name)):
            raise InputError(
                f"{where}: {variable.name} {list(variable.shape)} is not part of a layer, but may be part of the actor; no known "
                "architecture uses it; pass --actor MODULE:FUNCTION, or --actor NAME to leave it out"
            )


@dataclass(frozen=True)
class _ActorSizes:
    """Sizes that parts of an actor may have."""

    inputs: set[int]
    hidden: set[int]
    """Units of its hidden layers."""
    outputs: set[int]


def _refuse_parts_elsewhere(where: Path, unread: Sequence[StoredVariable], scope: str, actor: _ActorSizes) -> None:
    """Raise InputError if a variable that no layer of the actor has may belong to the actor by its size.

    `unread`: variables that are not part of the actor's layers; `scope`: the actor's.
    """
    kernels = {layer: variable for variable in unread for layer, part in [split(variable.name)] if PARTS.get(part) == "kernel"}
    for variable in unread:
        if "float" not in variable.dtype or scopes.is_another_agents(variable.name, scope, kernels):
            continue
        is_inside = not scope or variable.name.startswith(f"{scope}/")
        use = _use_inside(variable, kernels, actor) if is_inside else _use_outside(variable, kernels, actor)
        if use:
            raise InputError(
                f"{where}: {variable.name} {list(variable.shape)} is not part of {scope or 'the actor'}, but may be {use}; pass "
                "every layer in the order of calls (--scope . --layers A,B,...), --actor MODULE:FUNCTION, or --actor NAME to "
                "leave it out"
            )


def _use_inside(variable: StoredVariable, kernels: Mapping[str, StoredVariable], actor: _ActorSizes) -> str:
    """What a variable in the actor's scope may be: a layer between two layers of the actor. "": nothing of the actor."""
    layer = split(variable.name)[0]
    if kernels.get(layer) is not variable or len(variable.shape) != 2:
        return ""
    inputs, units = _layer_sizes(variable)
    others = [kernel for name, kernel in kernels.items() if name != layer and len(kernel.shape) == 2]
    # a critic's hidden layer is followed by another layer of the critic
    has_successor = any(_layer_sizes(kernel)[0] == units for kernel in others)
    return "a layer of it" if {inputs, units} <= actor.hidden and not has_successor else ""


def _use_outside(variable: StoredVariable, kernels: Mapping[str, StoredVariable], actor: _ActorSizes) -> str:
    """What a variable outside the actor's scope may be. "": nothing of the actor.

    A layer with as many units as the actor has inputs, or a vector as long as the observation or the action that is not
    the bias of a layer.
    """
    layer = split(variable.name)[0]
    if scopes.serves_training(variable.name):
        return ""
    if kernels.get(layer) is variable and len(variable.shape) == 2:
        return "a layer before it" if _layer_sizes(variable)[1] in actor.inputs else ""
    if layer in kernels:
        return ""
    sizes = [size for size in variable.shape if size != 1]
    is_vector = len(sizes) == 1 and sizes[0] in actor.inputs | actor.outputs
    return "statistics or factors of its observation or output" if is_vector or scopes.is_observations(variable.name) else ""


def _layer_sizes(kernel: StoredVariable) -> tuple[int, int]:
    """(inputs, units) of a layer by its kernel."""
    first, second = kernel.shape
    return (second, first) if split(kernel.name)[1] == TRANSPOSED else (first, second)


def _is_log_std(variable: StoredVariable, output_sizes: set[int]) -> bool:
    return variable.dtype == "float64" and variable.shape in {(size,) for size in output_sizes}


def check_numbers(where: Path, order: list[str], first: int | None = 0) -> None:
    """TF1 and Keras number the layers of a scope dense, dense_1, ...: a gap is a layer that is missing.

    `first`: number of the first layer; None if counters continue from another model's.
    """
    numbers: dict[str, list[int]] = {}
    for name in order:
        match = re.fullmatch(r"(.*\bdense)(?:_(\d+))?", name)
        if not match:
            return
        numbers.setdefault(match[1], []).append(int(match[2] or 0))
    for stem, own in numbers.items():
        for k, number in enumerate(own, own[0] if first is None else first):
            if number != k:
                raise InputError(f"{where}: variable {f'{stem}_{k}' if k else stem}/kernel is missing")


def layers(where: Path, found: LayerParts, order: list[str], unread: tuple[str, ...]) -> Layers:
    """The layers in order, each checked for completeness.

    Raises InputError that names the variables which are missing or wrong.
    """
    dense, norms = [], []
    for name in order:
        parts = {part: values for part, (_, values) in found[name].items()}
        stored_as = {part: stored for part, (stored, _) in found[name].items()}
        for part, values in parts.items():
            if not np.isfinite(values).all():
                raise InputError(f"{where}: {name}/{part} has non-finite values; the training has diverged")
        if "mean" in parts or "variance" in parts:
            norms.append(_batch_norm(where, name, parts, stored_as))
        else:
            dense.append(_dense(where, name, parts, stored_as))
    # the output may go without a bias, and so may all hidden layers together, or all but the first if norms shift them
    bare = [layer.name for layer in dense[:-1] if layer.bias is None]
    if bare and len(bare) != len(dense) - 1 and not (norms and len(bare) == len(dense) - 2 and dense[0].bias is not None):
        raise InputError(f"{where}: variable {bare[0]}/bias is missing")
    return Layers(tuple(dense), tuple(norms), unread)


def _dense(where: Path, name: str, parts: dict[str, Float32Array], stored_as: dict[str, str]) -> Dense:
    if "kernel" not in parts:
        raise InputError(f"{where}: variable {name}/kernel is missing")
    kernel, bias = parts["kernel"], parts.get("bias")
    if kernel.ndim != 2 or 0 in kernel.shape or (bias is not None and bias.shape != kernel.shape[1:]):
        bias_shape = "none" if bias is None else list(bias.shape)
        raise InputError(f"{where}: {name} is not a dense layer: kernel {list(kernel.shape)}, bias {bias_shape}")
    return Dense(name, kernel, bias, stored_as)


def _batch_norm(where: Path, name: str, parts: dict[str, Float32Array], stored_as: dict[str, str]) -> BatchNorm:
    for part, stored_part in (("mean", "moving_mean"), ("variance", "moving_variance")):
        if part not in parts:
            raise InputError(f"{where}: variable {name}/{stored_part} is missing")
    shapes = {values.shape for values in parts.values()}
    if len(shapes) > 1 or len(parts["mean"].shape) != 1:
        raise InputError(f"{where}: {name} is not a batch norm: its variables have shapes {sorted(map(list, shapes))}")
    if (parts["variance"] < 0).any():
        raise InputError(f"{where}: {name}/moving_variance is negative")
    return BatchNorm(name, parts.get("gamma"), parts.get("beta"), parts["mean"], parts["variance"], BATCH_NORM_EPSILON, stored_as)
