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

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from city import user_code
from city.errors import InputError, first_line, library_errors
from export.checkpoints.checkpoint import PARTS, Checkpoint, natural, split_name
from export.checkpoints.source import ActorRequest
from export.graphs import trained_function
from export.graphs.graph_actor import TrainedActor
from export.graphs.trained_function import id_of, path_of


@dataclass(frozen=True)
class Sizes:
    """Sizes of an actor. An unknown size is `None`."""

    inputs: int | None
    """Size of the observation."""
    hidden: tuple[int, ...] | None
    """Units of the hidden layers, from the file name or city.toml."""
    outputs: int | None
    """Size of the action, or number of choices."""


@dataclass(frozen=True)
class UserActor:
    """An actor that a user's function builds, and the checkpoint of its weights."""

    path: Path
    checkpoint: Checkpoint
    scope: str
    sizes: Sizes
    """The actor's known sizes."""
    request: ActorRequest

    def build(self) -> TrainedActor:
        """Build the actor. Raises InputError if the function fails, or its model does not fit the checkpoint."""
        spec = str(self.request.hints.architecture)
        builder: Callable[[Sizes], Any] = user_code.imported(lambda: user_code.named(spec), "")
        if not callable(builder):
            raise InputError(f"{spec.partition(':')[2]} is not a function")
        for name in ("keras", "tf_keras"):
            if name in sys.modules:  # otherwise the numbers in layers' names continue from the model built before
                sys.modules[name].backend.clear_session()
        try:
            built = builder(self.sizes)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function may raise anything
            raise InputError(f"raised {type(error).__name__}: {first_line(error)}") from None
        if not callable(built):
            raise InputError(f"returned {type(built).__name__}, neither a Keras model nor a callable on variables")
        trained = self._keras(built) if hasattr(built, "weights") else self._on_variables(built)
        return replace(trained, checkpoint=self.checkpoint)

    def _keras(self, model: Any) -> TrainedActor:
        if not getattr(model, "built", True) or not model.weights:
            if self.sizes.inputs is None:
                raise InputError(
                    "the model has no defined inputs, and the size of an observation is unknown; pass --city"
                )
            with library_errors("the model cannot be called"):
                model(np.zeros((1, self.sizes.inputs), np.float32))
        try:
            names = self._restored(model)
        except Exception as error:  # noqa: BLE001 - Keras and TensorFlow raise several kinds if weights do not fit
            raise InputError(f"its model does not fit {self.path}: {first_line(error)}") from None
        return trained_function.from_model(model, self.sizes.inputs, names, self.request)

    def _restored(self, model: Any) -> dict[int, str]:
        """Restore a model's weights; id of each variable -> its name in the checkpoint, if it is known."""
        if self.path.suffix in (".h5", ".hdf5", ".keras"):
            model.load_weights(str(self.path))
            return {}
        if self.path.with_name(self.path.name + ".index").is_file() and self.checkpoint.ordered:
            status = tf.train.Checkpoint(**_nested(self.scope, model)).read(str(self.path))
            status.expect_partial().assert_existing_objects_matched()
            return {}
        return self._assign(model)

    def _on_variables(self, actor: Any) -> TrainedActor:
        checkpoint, variables, names = self.checkpoint, {}, {}
        for relative, name in self._names_in_scope().items():
            if checkpoint.stored[name].dtype not in ("string", "object"):
                variable = tf.Variable(checkpoint.value(name), trainable=False, name=name.replace(":", "_"))
                variables[relative], names[id(variable)] = variable, name

        def act(observation: Any, training: bool = False) -> Any:
            try:
                return actor(observation, variables)
            except KeyError as error:
                stored = ", ".join(list(variables)[:12])
                raise InputError(f"variable {error} is not in the checkpoint, which has {stored}") from None

        return trained_function.from_model(act, self.sizes.inputs, names, self.request)

    def _names_in_scope(self) -> dict[str, str]:
        prefix = f"{self.scope}/" if self.scope else ""
        stored = self.checkpoint.stored
        names = stored if self.checkpoint.ordered else sorted(stored, key=natural)
        return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}

    def _assign(self, model: Any) -> dict[int, str]:
        """Assign the variables of a name-based checkpoint, by name if all fit, else in order. Raises InputError."""
        parts = list(dict.fromkeys(PARTS.values()))
        stored = {
            relative: name for relative, name in self._names_in_scope().items() if split_name(relative)[1] in PARTS
        }
        chosen = [stored.get("/".join(path_of(weight).split("/")[-2:]), "") for weight in model.weights]
        if not all(chosen):
            # the numbers in Keras' names continue from the models built before
            layers: dict[str, list[str]] = {}
            for name in stored.values():
                layers.setdefault(split_name(name)[0], []).append(name)
            by_part = [
                sorted(names, key=lambda name: parts.index(PARTS[split_name(name)[1]])) for names in layers.values()
            ]
            chosen = [name for names in by_part for name in names]
        if len(chosen) != len(model.weights):
            raise InputError(
                f"{self.scope or 'it'} holds {len(chosen)} weights of layers, but the model has {len(model.weights)}"
            )
        for weight, name in zip(model.weights, chosen, strict=True):
            values = self.checkpoint.value(name)
            if tuple(weight.shape) != values.shape:
                raise InputError(
                    f"{name} has shape {list(values.shape)}, but the model's {path_of(weight)} has {list(weight.shape)}"
                )
            weight.assign(values)
        return {id_of(weight): name for weight, name in zip(model.weights, chosen, strict=True)}


def _nested(scope: str, model: Any) -> dict[str, Any]:
    """Keyword arguments of the tf.train.Checkpoint that has the model in its scope."""
    if not scope:
        return {"root": model}
    *outer, inner = scope.split("/")
    children = {inner: model}
    for part in reversed(outer):
        children = {part: tf.train.Checkpoint(**children)}
    return children
