"""A checkpoint source is one file: a toy source in a folder of its own is found and exported from end to end."""

import json
import sys

import pytest

import export.checkpoints
from tests.export import writers
from tests.export.exporting import exported, manifest, same, version
from tests.export.writers import actions, keras3

SOURCE = """
import json

import numpy as np

from city.errors import InputError
from export.checkpoints.checkpoint import Checkpoint, StoredVariable
from export.checkpoints.source import Source


class JsonWeights(Source):
    format = "json-weights"
    suffixes = (".weights-json",)

    def open(self, path):
        try:
            arrays = {name: np.array(values, np.float32) for name, values in json.loads(path.read_text()).items()}
        except ValueError as error:
            raise InputError(f"cannot be read as JSON weights: {error}") from None
        stored = {name: StoredVariable(name, array.shape, array.dtype.name) for name, array in arrays.items()}
        return Checkpoint(stored, arrays.__getitem__, ordered=True)


SOURCE = JsonWeights()
"""


@pytest.fixture
def json_source(tmp_path, monkeypatch):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "json_weights.py").write_text(SOURCE)
    monkeypatch.setattr(export.checkpoints, "__path__", [*export.checkpoints.__path__, str(folder)])
    yield
    sys.modules.pop("export.checkpoints.json_weights", None)


def test_a_new_source_is_one_file(json_source, checkpoints, capsys):
    model = writers.sequential(keras3)
    names = [f"actor/{layer}/{part}" for layer in ("dense", "dense_1", "dense_2") for part in ("kernel", "bias")]
    values = {name: weight.numpy().tolist() for name, weight in zip(names, model.weights, strict=True)}
    (checkpoints / "SA101_trial_6.weights-json").write_text(json.dumps(values))
    same(exported(checkpoints), actions(model))
    assert version(checkpoints).name == "6"
    source = manifest(checkpoints)["source"]
    assert (source["format"], source["name"]) == ("json-weights", "SA101_trial_6.weights-json")
    assert "largest difference" in capsys.readouterr().out
