"""Whole Keras models (.keras, .h5), which Keras loads if their classes are Keras's own."""

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from city.errors import first_line
from export.checkpoints.source import ActorRequest, KerasModel
from export.graphs import trained_function, user_builder
from export.graphs.graph_actor import TrainedActor

GPU_KERNEL = "_could_use_gpu_kernel"
"""Attribute of Keras 2's recurrent layers. If it is true, their graph holds a second implementation, for GPUs."""


def load_actor(path: Path, request: ActorRequest, stored: KerasModel) -> tuple[TrainedActor | None, str]:
    """(the actor, ""), or (None, the reason) if Keras cannot load the model. Its weights may still be readable.

    Raises InputError if the loaded model is not an actor.
    """
    model, reason = _load(path, stored)
    if model is None:
        return None, f"Keras cannot load it{reason}"
    for layer in model.submodules if isinstance(model, tf.Module) else ():
        if hasattr(layer, GPU_KERNEL):
            setattr(layer, GPU_KERNEL, False)
    names = {user_builder.id_of(weight): user_builder.path_of(weight) for weight in model.weights}
    return trained_function.from_model(model, request.inputs, names, request), ""


def _load(path: Path, stored: KerasModel) -> tuple[Any, str]:
    """(the model, ""), or (None, the reason).

    No code in the file is run: a Lambda is refused, because Keras 2 runs its pickled code by default.
    """
    try:
        has_lambda = _has_lambda(json.loads(stored.config)) if stored.config else False
    except (ValueError, RecursionError) as error:
        return None, f": its architecture cannot be read: {first_line(error)}"
    if has_lambda:
        return None, ": it has a Lambda layer, whose code would be run"
    reason = ""
    is_keras_2 = stored.version.startswith("2.")
    # tf_keras is Keras 2; it may not be installed
    for name in ["tf_keras", "keras"] if is_keras_2 else ["keras", "tf_keras"]:
        if name == "keras" and is_keras_2 and "hard_sigmoid" in stored.config:
            reason = reason or ": Keras 3 has another hard_sigmoid than Keras 2; install tf_keras"
            continue
        try:
            keras = importlib.import_module(name)
        except ImportError:
            continue
        # Keras 2 takes `safe_mode` for .keras files alone; within its scope it also holds for HDF5
        scopes = importlib.import_module("tf_keras.src.saving.serialization_lib") if name == "tf_keras" else None
        try:
            with scopes.SafeModeScope(safe_mode=True) if scopes else contextlib.nullcontext():
                return keras.models.load_model(str(path), compile=False, safe_mode=True), ""
        except Exception as error:  # noqa: BLE001 - Keras raises many kinds, mostly for unknown classes
            reason = reason or f", so its wiring is unknown: {first_line(error)}"
    return None, reason


def _has_lambda(config: Any) -> bool:
    if isinstance(config, dict):
        return str(config.get("class_name")).rpartition(">")[2] == "Lambda" or any(map(_has_lambda, config.values()))
    return isinstance(config, list) and any(map(_has_lambda, config))
