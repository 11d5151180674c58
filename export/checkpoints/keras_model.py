"""Whole Keras models (.keras, .h5): loaded as Keras loads them, where their classes are Keras's own."""

import importlib
from pathlib import Path
from typing import Any

from export.actors.graph_actor import first_line


def load(path: Path) -> tuple[Any, str]:
    """(the model, ""), or (None, why Keras cannot load it): a model of classes of the user's own still has its weights.

    Nothing of the file is run: Keras's safe mode refuses pickled code.
    """
    told = ""
    for name in ("keras", "tf_keras"):  # Keras 2 lives on as tf_keras; its files are loaded where it is installed
        try:
            keras = importlib.import_module(name)
        except ImportError:
            continue
        try:
            return keras.models.load_model(
                str(path), compile=False, **({"safe_mode": True} if path.suffix == ".keras" else {})
            ), ""
        except Exception as error:  # noqa: BLE001 - Keras raises many kinds, for unknown classes above all
            told = told or f"Keras cannot load it, so its own wiring is not known: {first_line(error)}"
    return None, told


def names(model: Any) -> dict[int, str]:
    """id of each variable's tensor -> its path."""
    return {id(getattr(weight, "_value", weight)): getattr(weight, "path", weight.name).split(":")[0] for weight in model.weights}
