"""A user's own architecture: `--actor module:function`.

    def build(sizes):              # sizes.inputs, sizes.hidden, sizes.outputs; None if unknown
        return keras.Sequential([...])

    def build(sizes):              # or a callable on the checkpoint's variables
        def actor(observation, variables):
            return tf.tanh(observation @ variables["dense/kernel"] + variables["dense/bias"])
        return actor

Keras or tf.train.Checkpoint restore a Keras model's weights from the checkpoint. The
checkpoint must contain all of the model's variables (`assert_existing_objects_matched`);
its other variables are ignored.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from city.errors import InputError, first_line
from export.checkpoints.checkpoint import PARTS, Checkpoint, natural
from export.graphs import trained_function
from export.graphs.trained_function import TrainedActor


@dataclass(frozen=True)
class Sizes:
    """Sizes of an actor. An unknown size is `None`."""

    inputs: int | None
    """Size of the observation."""
    hidden: tuple[int, ...] | None
    """Units of the hidden layers, from the file name or city.toml."""
    outputs: int | None
    """Size of the action, or number of choices."""


def load(spec: str) -> Callable[[Sizes], Any]:
    """Import the function that `module:function` names. Raises InputError."""
    module, _, name = spec.partition(":")
    try:
        function: Callable[[Sizes], Any] = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        raise InputError(
            f"--actor {spec}: cannot be imported: {type(error).__name__}: {first_line(error)}; set PYTHONPATH to its "
            "folder"
        ) from None
    if not callable(function):
        raise InputError(f"--actor {spec}: {name} is not a function")
    return function


def build(spec: str, sizes: Sizes, checkpoint: Checkpoint, scope: str, categorical: bool) -> TrainedActor:
    """Build the actor with the user's function.

    Args:
        spec: `module:function`.
        sizes: the actor's known sizes.
        checkpoint: the variables.
        scope: the actor's scope.
        categorical: whether its output is logits or probabilities.

    Raises:
        InputError: the function fails, or its model does not fit the checkpoint.
    """
    builder = load(spec)
    for name in ("keras", "tf_keras"):
        if name in sys.modules:  # otherwise the numbers in layers' names continue from the model built before
            sys.modules[name].backend.clear_session()
    try:
        built = builder(sizes)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function may raise anything
        raise InputError(f"--actor {spec}: raised {type(error).__name__}: {first_line(error)}") from None
    if hasattr(built, "weights") and callable(built):
        return _keras(spec, built, sizes, checkpoint, scope, categorical)
    if callable(built):
        return _on_variables(spec, built, sizes, checkpoint, scope, categorical)
    raise InputError(
        f"--actor {spec}: returned {type(built).__name__}, neither a Keras model nor a callable on variables"
    )


def _keras(spec: str, model: Any, sizes: Sizes, checkpoint: Checkpoint, scope: str, categorical: bool) -> TrainedActor:
    where = checkpoint.where
    if not getattr(model, "built", True) or not model.weights:
        if sizes.inputs is None:
            raise InputError(
                f"--actor {spec}: the model has no defined inputs, and the size of an observation is unknown; pass "
                "--city"
            )
        try:
            model(np.zeros((1, sizes.inputs), np.float32))
        except Exception as error:  # noqa: BLE001 - a user's model may raise anything
            raise InputError(f"--actor {spec}: the model cannot be called: {first_line(error)}") from None
    try:
        if where.suffix in (".h5", ".hdf5", ".keras"):
            model.load_weights(str(where))
            names = {}
        elif where.with_name(where.name + ".index").is_file() and checkpoint.ordered:
            tf.train.Checkpoint(**_nested(scope, model)).read(
                str(where)
            ).expect_partial().assert_existing_objects_matched()
            names = _names_by_value(model, checkpoint, scope)
        else:
            names = _assign(model, checkpoint, scope)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - Keras and TensorFlow raise several exceptions if the weights do not fit
        raise InputError(f"{where}: does not fit the model of --actor {spec}: {first_line(error)}") from None
    return trained_function.from_model(where, model, sizes.inputs, names, None, categorical)


def _on_variables(
    spec: str, actor: Any, sizes: Sizes, checkpoint: Checkpoint, scope: str, categorical: bool
) -> TrainedActor:
    numeric = {
        relative: name
        for relative, name in _names_in_scope(checkpoint, scope).items()
        if checkpoint.stored[name].dtype not in ("string", "object")
    }
    variables = {
        relative: tf.Variable(checkpoint.value(name), trainable=False, name=name.replace(":", "_"))
        for relative, name in numeric.items()
    }
    names = {id(variables[relative]): name for relative, name in numeric.items()}

    def act(observation: Any, training: bool = False) -> Any:
        try:
            return actor(observation, variables)
        except KeyError as error:
            raise InputError(
                f"--actor {spec}: variable {error} is not in {checkpoint.where}, which has "
                f"{', '.join(list(variables)[:12])}"
            ) from None

    return trained_function.from_model(checkpoint.where, act, sizes.inputs, names, None, categorical)


def _nested(scope: str, model: Any) -> dict[str, Any]:
    """Keyword arguments of the tf.train.Checkpoint that has the model in its scope."""
    if not scope:
        return {"root": model}
    *outer, inner = scope.split("/")
    children = {inner: model}
    for part in reversed(outer):
        children = {part: tf.train.Checkpoint(**children)}
    return children


def _names_in_scope(checkpoint: Checkpoint, scope: str) -> dict[str, str]:
    """Name without the scope -> full name of each variable in the scope."""
    prefix = f"{scope}/" if scope else ""
    names = checkpoint.stored if checkpoint.ordered else sorted(checkpoint.stored, key=natural)
    return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}


def _assign(model: Any, checkpoint: Checkpoint, scope: str) -> dict[int, str]:
    """Assign the variables of a name-based checkpoint to a model, by name if all fit, else in order. Raises
    InputError."""
    stored = _names_in_scope(checkpoint, scope)
    stored = {relative: name for relative, name in stored.items() if relative.rsplit("/", 1)[-1] in PARTS}
    ends = ["/".join(getattr(weight, "path", weight.name).split(":")[0].split("/")[-2:]) for weight in model.weights]
    if all(end in stored for end in ends):
        chosen = [stored[end] for end in ends]
    else:
        part_order = list(dict.fromkeys(PARTS.values()))
        layers = list(dict.fromkeys(name.rpartition("/")[0] for name in stored.values()))
        chosen = sorted(
            stored.values(),
            key=lambda name: (layers.index(name.rpartition("/")[0]), part_order.index(PARTS[name.rsplit("/", 1)[-1]])),
        )
    if len(chosen) != len(model.weights):
        raise InputError(
            f"{checkpoint.where}: {scope or 'it'} holds {len(chosen)} weights of layers, but the model has "
            f"{len(model.weights)}"
        )
    for weight, name in zip(model.weights, chosen, strict=True):
        values = checkpoint.value(name)
        if tuple(weight.shape) != values.shape:
            raise InputError(
                f"{checkpoint.where}: {name} has shape {list(values.shape)}, but the model's "
                f"{getattr(weight, 'path', weight.name)} has {list(weight.shape)}"
            )
        weight.assign(values)
    return {id(getattr(weight, "_value", weight)): name for weight, name in zip(model.weights, chosen, strict=True)}


def _names_by_value(model: Any, checkpoint: Checkpoint, scope: str) -> dict[int, str]:
    """id of each variable of a restored model -> its name in the checkpoint, by equal values."""
    unmatched = {name: checkpoint.value(name) for name in _names_in_scope(checkpoint, scope).values()}
    names_by_id = {}
    for weight in model.weights:
        values = np.asarray(weight)
        name = next((name for name, stored in unmatched.items() if np.array_equal(stored, values)), None)
        if name is not None:
            unmatched.pop(name)
            names_by_id[id(getattr(weight, "_value", weight))] = name
    return names_by_id
