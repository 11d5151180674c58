"""Saved states of trainings, read and written without their checks."""

import json

import numpy as np


def read(path):
    """(values, arrays)."""
    with np.load(path) as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("values"))), arrays


def write(path, values, arrays):
    with path.open("wb") as file:
        np.savez(file, **{"values": np.array(json.dumps(values)), **arrays})
