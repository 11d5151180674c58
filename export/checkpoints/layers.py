"""The dense layers and batch norms of an actor, read from the variables of a checkpoint."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from city.errors import InputError
from export.actors.architectures import Layers
from export.actors.steps import BatchNorm, Dense, Float32Array
from export.checkpoints import scopes
from export.checkpoints.checkpoint import (
    PARTS,
    Checkpoint,
    StoredVariable,
    float32_weights,
    natural,
    split_name,
    unread_variables,
)

TRANSPOSED = "weight"
"""PyTorch's name of a kernel, stored as [units, inputs]."""
LayerParts = dict[str, dict[str, tuple[str, Float32Array]]]
"""Layer -> part -> (the variable's name in the checkpoint, its values)."""


def read_layers(checkpoint: Checkpoint, scope: str, strict: bool = False) -> Layers:
    """Read the layers of the actor in a scope of a checkpoint; the scope "" is the whole checkpoint. Raises InputError.

    `strict`: refuse a variable in the scope that belongs neither to a layer nor to training.
    """
    if strict:
        refuse_other_layers(checkpoint.stored.values(), scope)
    parts_of = _read_parts(checkpoint, scope)
    if not parts_of:
        raise InputError(
            f"{scope or 'the checkpoint'} holds no dense layer of an actor; "
            "greenserve inspect lists its variables; pass --scope or --actor MODULE:FUNCTION"
        )
    order = list(parts_of) if checkpoint.ordered else sorted(parts_of, key=natural)
    check_numbers([name for name in order if "kernel" in parts_of[name]])
    unread = unread_variables(checkpoint, [stored for parts in parts_of.values() for stored, _ in parts.values()])
    if strict:
        _refuse_unread([checkpoint.stored[name] for name in unread], scope, parts_of, order)
    return grouped(checkpoint, build_layers(parts_of, order, unread), order, f"{scope}/" if scope else "")


def _read_parts(checkpoint: Checkpoint, scope: str) -> LayerParts:
    prefix = f"{scope}/" if scope else ""
    parts_of: LayerParts = {}
    keys = set()
    for name in checkpoint.stored:
        layer, part = split_name(name)
        folders = name.removeprefix(prefix).split("/")[:-1]
        key = checkpoint.keys[name] if checkpoint.keys else name
        if not name.startswith(prefix) or part not in PARTS or key in keys or any(map(scopes.is_training, folders)):
            continue
        keys.add(key)
        values = float32_weights(name, checkpoint.value(name))
        parts_of.setdefault(layer, {})[PARTS[part]] = name, values.T if part == TRANSPOSED else values
    return parts_of


def _refuse_unread(unread: Sequence[StoredVariable], scope: str, parts_of: LayerParts, order: Sequence[str]) -> None:
    """Raise InputError if a variable outside the actor's layers may be part of the actor, by its name or its size."""
    shapes = _kernel_shapes(parts_of, order)
    # the inputs of the first layer, and inputs that are not any layer's units
    inputs = {size for size, _ in shapes} - {units for _, units in shapes} | {size for size, _ in shapes[:1]}
    outputs = output_sizes(parts_of, order)
    refuse_unknown_variables(unread, scope, outputs)
    hidden = {parts["kernel"][1].shape[-1] for parts in parts_of.values() if "kernel" in parts} - outputs
    layer_parts = [(*split_name(variable.name), variable) for variable in unread]
    kernels = {layer: variable for layer, part, variable in layer_parts if PARTS.get(part) == "kernel"}
    for variable in unread:
        if "float" not in variable.dtype or scopes.is_another_agents(variable.name, scope, kernels):
            continue
        is_inside = not scope or variable.name.startswith(f"{scope}/")
        use = _use_inside(variable, kernels, hidden) if is_inside else _use_outside(variable, kernels, inputs, outputs)
        if use:
            raise InputError(
                f"{variable.name} {list(variable.shape)} is not part of {scope or 'the actor'}, but may be "
                f"{use}; pass every layer in the order of calls (--scope . --layers A,B,...), --actor MODULE:FUNCTION, "
                "or --actor NAME to leave it out"
            )


def grouped(checkpoint: Checkpoint, layers: Layers, order: Sequence[str], prefix: str) -> Layers:
    """Split the layers into groups if their names do not define the order of calls.

    Names without numbers (fc_one, output; attributes of a model) do not define it. Other layers may be called between
    those of a numbered sequence.

    Args:
        checkpoint: the checkpoint.
        layers: its layers.
        order: their names, in the order in which they were read.
        prefix: their scope with a slash, or "".
    """
    tops = {layer: layer.removeprefix(prefix).split("/")[0] for layer in order}
    sequences = {top: re.sub(r"[_-]?\d+", "", top) for top in tops.values()}
    members: dict[str, list[str]] = {}
    for top, sequence in sequences.items():
        members.setdefault(sequence, []).append(top)
    if any(names != sorted(names, key=natural) for names in members.values()):
        sequences = {top: top for top in sequences}  # the numbers in the names contradict the stored order
    elif checkpoint.ordered and checkpoint.keys is None:
        return layers  # in the order in which the user wrote them
    if len(set(sequences.values())) == 1:
        return layers
    groups = tuple(
        Layers(
            tuple(layer for layer in layers.dense if tops[layer.name] == top),
            tuple(norm for norm in layers.norms if tops[norm.name] == top),
            (),
            name=top,
            sequence=sequence,
        )
        for top, sequence in sequences.items()
    )
    return replace(layers, groups=groups)


def _kernel_shapes(parts_of: LayerParts, order: Sequence[str]) -> list[tuple[int, ...]]:
    shapes = [parts_of[name]["kernel"][1].shape for name in order if "kernel" in parts_of[name]]
    return [shape for shape in shapes if len(shape) == 2]


def output_sizes(parts_of: LayerParts, order: Sequence[str]) -> set[int]:
    """Possible sizes of the actor's output: the units of the last dense layer, and units that are not any layer's
    inputs."""
    shapes = _kernel_shapes(parts_of, order)
    return {units for _, units in shapes} - {inputs for inputs, _ in shapes} | {units for _, units in shapes[-1:]}


def refuse_unknown_variables(unread: Iterable[StoredVariable], scope: str, output_sizes: set[int]) -> None:
    """Raise InputError if a variable of unknown use may be part of the actor, such as statistics that normalise
    observations.

    Without that variable the exported actor might give other actions than the trained one.

    Args:
        unread: the variables that are not part of a layer.
        scope: the actor's scope.
        output_sizes: sizes that a log_std may have.
    """
    for variable in unread:
        reason = scopes.unread_reason(variable.name, scope)
        is_log_std = variable.dtype == "float64" and variable.shape in {(size,) for size in output_sizes}
        if scopes.is_unnamed_log_std(variable.name) and not is_log_std:
            reason = scopes.UNKNOWN_USE
        may_act = reason == scopes.UNKNOWN_USE and (
            variable.shape or (scope and not scopes.is_hyperparameter(variable.name))
        )
        if "float" in variable.dtype and (may_act or scopes.is_normaliser(variable.name)):
            raise InputError(
                f"{variable.name} {list(variable.shape)} is not part of a layer, but may be part of the "
                "actor, and no known architecture uses it; pass --actor MODULE:FUNCTION, or --actor NAME to leave it "
                "out"
            )


def refuse_other_layers(variables: Iterable[StoredVariable], scope: str) -> None:
    """Raise InputError if an actor has a layer that is neither dense nor a norm, such as an LSTM, by names and sizes.

    `variables`: all of the checkpoint. A layer outside the scope counts, unless it serves training or another agent.
    """
    by_layer: dict[str, dict[str, StoredVariable]] = {}
    for variable in variables:
        layer, part = split_name(variable.name.removesuffix(":0").replace("/vars/", "/"))
        by_layer.setdefault(layer, {})[part] = variable
    for layer, parts in by_layer.items():
        name = next(iter(parts.values())).name
        if any(map(scopes.is_training, layer.split("/"))) or (
            not (not scope or name.startswith(f"{scope}/")) and scopes.is_another_agents(name, scope, by_layer)
        ):
            continue
        if kind := _other_kind(layer, parts):
            raise InputError(
                f"{layer} is {kind}; weights alone are exported if the actor has dense layers and batch norms: "
                "pass --actor MODULE:FUNCTION, or --actor NAME to leave it out"
            )


def _other_kind(layer: str, parts: Mapping[str, StoredVariable]) -> str:
    """The kind of a layer that is neither dense nor a norm, for a message; "" if its names and sizes show none."""
    words = frozenset[str]().union(*map(scopes.name_parts, layer.split("/")))
    if words & {"lstm", "gru", "rnn"} or any(re.match(r"(weight|bias)_[ih]h|recurrent_kernel", p) for p in parts):
        return "a recurrent layer, whose actions depend on earlier observations"
    if any(part.startswith("in_proj_") for part in parts) or words & {"attention", "attn"}:
        return "an attention layer"
    kernels = [variable for part, variable in parts.items() if PARTS.get(part) == "kernel" or part == "0"]
    if any(len(kernel.shape) in (3, 4, 5) for kernel in kernels):
        return "a convolution, for images or sequences"
    is_table = "embeddings" in parts or (len(parts) == 1 and len(kernels) == 1 and len(kernels[0].shape) == 2)
    if is_table and ("embeddings" in parts or words & {"emb", "embed", "embedding", "embeddings"}):
        return "an embedding, which takes an index and not an observation"
    return ""


def _use_inside(variable: StoredVariable, kernels: Mapping[str, StoredVariable], hidden: set[int]) -> str:
    """The possible use of a variable in the actor's scope: a layer between two of its layers. "" if there is none.

    `hidden`: units of the actor's hidden layers.
    """
    layer = split_name(variable.name)[0]
    if kernels.get(layer) is not variable or len(variable.shape) != 2:
        return ""
    inputs, units = _layer_sizes(variable)
    # a critic's hidden layer is followed by another layer of the critic
    has_successor = any(
        _layer_sizes(kernel)[0] == units for name, kernel in kernels.items() if name != layer and len(kernel.shape) == 2
    )
    return "a layer of it" if {inputs, units} <= hidden and not has_successor else ""


def _use_outside(
    variable: StoredVariable, kernels: Mapping[str, StoredVariable], inputs: set[int], outputs: set[int]
) -> str:
    """The possible use of a variable outside the actor's scope. "" if there is none.

    It may be a layer with as many units as the actor has inputs, or a vector of the size of the observation or of the
    action, unless it is the bias of a layer.
    """
    layer = split_name(variable.name)[0]
    if scopes.serves_training(variable.name):
        return ""
    if kernels.get(layer) is variable and len(variable.shape) == 2:
        return "a layer before it" if _layer_sizes(variable)[1] in inputs else ""
    if layer in kernels:
        return ""
    sizes = [size for size in variable.shape if size != 1]
    is_vector = len(sizes) == 1 and sizes[0] in inputs | outputs
    may_scale = is_vector or scopes.is_observations(variable.name)
    return "statistics or factors of its observation or output" if may_scale else ""


def _layer_sizes(kernel: StoredVariable) -> tuple[int, int]:
    first, second = kernel.shape
    return (second, first) if split_name(kernel.name)[1] == TRANSPOSED else (first, second)


def check_numbers(order: list[str], first: int | None = None) -> None:
    """Raise InputError if there is a gap in the numbers of layers: TF1 and Keras call them dense, dense_1, ...

    `first`: number of the first layer, dense being 0. `None` if a trainer may begin at any number.
    """
    numbers: dict[str, list[int]] = {}
    for name in order:
        match = re.fullmatch(r"(.*\bdense)(?:_(\d+))?", name)
        if not match:
            return
        numbers.setdefault(match[1], []).append(int(match[2] or 0))
    for stem, stem_numbers in numbers.items():
        for k, number in enumerate(stem_numbers, stem_numbers[0] if first is None else first):
            if number != k:
                raise InputError(f"variable {f'{stem}_{k}' if k else stem}/kernel is missing")


def build_layers(parts_of: LayerParts, order: list[str], unread: tuple[str, ...]) -> Layers:
    """Build the layers in this order, with `unread` as the names of the other variables.

    Raises InputError with the name of a variable that is missing or damaged.
    """
    dense, norms = [], []
    for name in order:
        parts = {part: values for part, (_, values) in parts_of[name].items()}
        stored_as = {part: stored for part, (stored, _) in parts_of[name].items()}
        if "mean" in parts or "variance" in parts:
            norms.append(_batch_norm(name, parts, stored_as))
        else:
            dense.append(build_dense(name, parts, stored_as))
    # the output layer may lack a bias; so may all hidden layers, or all but the first if batch norms shift them
    without_bias = [layer.name for layer in dense[:-1] if layer.bias is None]
    all_but_first = norms and len(without_bias) == len(dense) - 2 and dense[0].bias is not None
    if without_bias and len(without_bias) != len(dense) - 1 and not all_but_first:
        raise InputError(f"variable {without_bias[0]}/bias is missing")
    return Layers(tuple(dense), tuple(norms), unread)


def build_dense(name: str, parts: Mapping[str, Float32Array], stored_as: Mapping[str, str]) -> Dense:
    """Build a layer from its kernel [inputs, units] and its bias, if it has one. Raises InputError."""
    if "kernel" not in parts:
        raise InputError(f"variable {name}/kernel is missing")
    kernel, bias = parts["kernel"], parts.get("bias")
    if kernel.ndim != 2 or 0 in kernel.shape or (bias is not None and bias.shape != kernel.shape[1:]):
        raise InputError(
            f"{name} is not a dense layer: kernel {list(kernel.shape)}, "
            f"bias {'none' if bias is None else list(bias.shape)}"
        )
    return Dense(name, kernel, bias, stored_as)


def _batch_norm(name: str, parts: dict[str, Float32Array], stored_as: dict[str, str]) -> BatchNorm:
    for part in ("mean", "variance"):
        if part not in parts:
            raise InputError(f"variable {name}/moving_{part} is missing")
    shapes = {values.shape for values in parts.values()}
    if len(shapes) > 1 or len(parts["mean"].shape) != 1:
        raise InputError(f"{name} is not a batch norm: its variables have shapes {sorted(map(list, shapes))}")
    if (parts["variance"] < 0).any():
        raise InputError(f"{name}/moving_variance is negative")
    return BatchNorm(name, parts.get("gamma"), parts.get("beta"), parts["mean"], parts["variance"], stored_as)
