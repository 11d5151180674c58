"""Linear layers with PyTorch's names, and files of `torch.save`, written without torch: the pickle of a dict, with a
zip member for every tensor."""

import io
import pickle
import sys
import types
import zipfile
from unittest import mock

import numpy as np

FIVE = np.random.default_rng(3).random((4, 5)).astype(np.float32)
"""Observations of 5 values."""


def linear_layers(*named):
    """Tensors of linear layers, in this order. `named`: (name, units, inputs)."""
    rng = np.random.default_rng(4)
    tensors = {}
    for name, units, inputs in named:
        tensors[f"{name}.weight"] = rng.standard_normal((units, inputs)).astype(np.float32)
        tensors[f"{name}.bias"] = rng.standard_normal(units).astype(np.float32)
    return tensors


def relu(x):
    return np.maximum(x, 0)


def outputs_of_layers(tensors, *names, hidden=np.tanh):
    """The outputs for FIVE of linear layers in the order of calls."""
    x = FIVE
    for name in names:
        x = x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
        x = x if name == names[-1] else hidden(x)
    return x


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class _Storage:
    """A tensor's storage, which the pickle only refers to."""

    def __init__(self, key, values):
        self.key, self.values = key, values


def _module(name, *names):
    module = types.ModuleType(name)
    for each in names:
        setattr(module, each, type(each, (), {"__module__": name}))
    return module


class _Pickler(pickle.Pickler):
    def __init__(self, file, storage_class, rebuild):
        super().__init__(file, 2)
        self.storages, self._class, self._rebuild = [], storage_class, rebuild

    def persistent_id(self, value):
        if not isinstance(value, _Storage):
            return None
        return "storage", self._class, value.key, "cpu", value.values.size

    def reducer_override(self, value):
        if not isinstance(value, Tensor):
            return NotImplemented
        storage = _Storage(str(len(self.storages)), np.ascontiguousarray(value.values, np.float32))
        self.storages.append(storage)
        strides = tuple(step // 4 for step in storage.values.strides)
        return self._rebuild, (storage, 0, storage.values.shape, strides, False, None)


class Tensor:
    def __init__(self, values):
        self.values = values


def save(path, content):
    """Write a value as torch.save does. Tensors in it are `Tensor`s."""
    torch, utils = _module("torch", "FloatStorage"), _module("torch._utils", "_rebuild_tensor_v2")
    data = io.BytesIO()
    with mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}):
        pickler = _Pickler(data, torch.FloatStorage, utils._rebuild_tensor_v2)
        pickler.dump(content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        for storage in pickler.storages:
            archive.writestr(f"archive/data/{storage.key}", storage.values.tobytes())
