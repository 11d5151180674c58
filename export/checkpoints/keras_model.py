"""Whole Keras models (.keras, .h5): loaded as Keras loads them, where their classes are Keras's own."""

from pathlib import Path
from typing import Any

from export.actors.graph_actor import first_line


def load(path: Path) -> tuple[Any, str]:
    """(the model, ""), or (None, why Keras cannot load it): a model of classes of the user's own still has its weights.

    Nothing of the file is run: Keras's safe mode refuses pickled code.
    """
    import keras

    try:
        return keras.models.load_model(path, compile=False, safe_mode=True), ""
    except Exception as error:  # noqa: BLE001 - Keras raises many kinds, for unknown classes above all
        return None, f"its own wiring was not used, Keras cannot load it: {first_line(error)}"


def names(model: Any) -> dict[int, str]:
    """id of each variable's tensor -> its path."""
    return {id(weight.value): weight.path for weight in model.weights}
