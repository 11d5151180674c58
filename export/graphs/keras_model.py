"""Whole Keras models (.keras, .h5), which Keras loads if their classes are Keras's own."""

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

from city.errors import first_line
from export.checkpoints.source import ActorRequest
from export.graphs import trained_function
from export.graphs.trained_function import TrainedActor


def load_actor(path: Path, request: ActorRequest, config: str, version: str) -> tuple[TrainedActor | None, str]:
    """(the actor, ""), or (None, the reason) if Keras cannot load the model. Its weights may still be readable.

    Args:
        path: the model's file.
        request: the requested actor.
        config: the model's architecture as JSON.
        version: version of the Keras that wrote it.

    Raises:
        InputError: the loaded model is not an actor.
    """
    model, reason = load(path, config, version)
    if model is None:
        return None, reason
    variables = variable_names(model)
    return trained_function.from_model(
        path, model, request.inputs, variables, request.output_tensor, request.categorical
    ), ""


def load(path: Path, config: str = "", version: str = "") -> tuple[Any, str]:
    """(the model, ""), or (None, the reason) if Keras cannot load it. `config`, `version`: as in `load_actor`.

    No code in the file is run: a Lambda is refused, because Keras 2 runs its pickled code by default.
    """
    try:
        has_lambda = _has_lambda(json.loads(config)) if config else False
    except (ValueError, RecursionError) as error:
        return None, f"Keras cannot load it: its architecture cannot be read: {first_line(error)}"
    if has_lambda:
        return None, "Keras cannot load it: it has a Lambda layer, whose code would be run"
    reason = ""
    # tf_keras is Keras 2; it may not be installed
    libraries = ["tf_keras", "keras"] if version.startswith("2.") else ["keras", "tf_keras"]
    for name in libraries:
        if name == "keras" and version.startswith("2.") and "hard_sigmoid" in config:
            reason = reason or "Keras cannot load it: Keras 3 has another hard_sigmoid than Keras 2; install tf_keras"
            continue
        try:
            keras = importlib.import_module(name)
        except ImportError:
            continue
        try:
            with _safe_mode(name):
                return keras.models.load_model(str(path), compile=False, safe_mode=True), ""
        except Exception as error:  # noqa: BLE001 - Keras raises many kinds, mostly for unknown classes
            reason = reason or f"Keras cannot load it, so its wiring is unknown: {first_line(error)}"
    return None, reason


def _has_lambda(config: Any) -> bool:
    """Whether an architecture has a Lambda layer anywhere."""
    if isinstance(config, dict):
        return str(config.get("class_name")).rpartition(">")[2] == "Lambda" or any(map(_has_lambda, config.values()))
    return isinstance(config, list) and any(map(_has_lambda, config))


def _safe_mode(library: str) -> contextlib.AbstractContextManager[Any]:
    """Keras 2 takes `safe_mode` for .keras files alone; within this context it also holds for HDF5."""
    if library != "tf_keras":
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = importlib.import_module(
        "tf_keras.src.saving.serialization_lib"
    ).SafeModeScope(safe_mode=True)
    return scope


def variable_names(model: Any) -> dict[int, str]:
    """id of each variable -> its path in the model."""
    return {
        id(getattr(weight, "_value", weight)): getattr(weight, "path", weight.name).split(":")[0]
        for weight in model.weights
    }
