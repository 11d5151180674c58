"""Checkpoints that are not regular files, refer to other files or unpack to any size end in one error line at once."""

import os
import socket
import zipfile

import h5py
import numpy as np
import pytest

from city.errors import InputError
from export.checkpoints import numpy_archive, regular_files, tensorflow_files
from export.checkpoints.stable_baselines3 import SOURCE as ZIP
from export.show import inspect_checkpoint
from tests.export import writers
from tests.export.exporting import export, refused, refuses
from tests.export.writers import keras3

SUFFIXES = ("_trial_1.h5", "_trial_1.keras", "_trial_1.npz", "_trial_1.pt", "_trial_1.zip", "_trial_1.onnx", "-1.index")


def fifo(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def listening_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # its address may have 107 characters
        listener.bind(path.name)


def link_to_a_fifo(path):
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to("fifo")


def beside_a_checkpoint(name):
    def make(path):
        writers.tf1_agents(path.parent, path.name, ["actor"])
        (path.parent / name).unlink()
        fifo(path.parent / name)

    return make


def in_a_saved_model(path):
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"")
    device(path / "variables" / "variables.index")


GIT_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
WEB_PAGE = b"\n<!DOCTYPE html><html><head><title>Sign in</title></head></html>"
META, DATA = "SA101_trial_1.meta", "SA101_trial_1.data-00000-of-00001"


@pytest.mark.parametrize(
    ("make", "suffix", "parts"),
    [
        *((make, suffix, ["SA101", "not a regular file"]) for make in (fifo, device) for suffix in SUFFIXES),
        *((lambda path: path.write_bytes(GIT_LFS), suffix, ["SA101", "git lfs pull"]) for suffix in SUFFIXES),
        *((lambda path: path.write_bytes(WEB_PAGE), suffix, ["SA101", "raw version"]) for suffix in SUFFIXES),
        (listening_socket, "_trial_1.npz", ["SA101_trial_1.npz", "not a regular file"]),
        (link_to_a_fifo, "_trial_1.npz", ["SA101_trial_1.npz", "not a regular file"]),
        (beside_a_checkpoint(META), "_trial_1", [META, "a FIFO, not a regular file"]),
        (beside_a_checkpoint(DATA), "_trial_1", [DATA, "a FIFO, not a regular file"]),
        (in_a_saved_model, "_trial_1", ["variables.index", "a device, not a regular file"]),
    ],
)
def test_checkpoint_that_is_no_regular_file_is_refused(checkpoints, capsys, monkeypatch, make, suffix, parts):
    monkeypatch.chdir(checkpoints)
    make(checkpoints / f"SA101{suffix}")
    refuses(capsys, checkpoints, *parts)


def test_state_file_that_is_a_fifo_does_not_block(checkpoints, capsys):
    fifo(checkpoints / "checkpoint")
    refuses(capsys, checkpoints, "no checkpoint for SA101")
    assert inspect_checkpoint.main([str(checkpoints)]) == 2
    refused(capsys, "a FIFO, not a regular file")


@pytest.mark.parametrize(("name", "open_checkpoint"), [("a.npz", numpy_archive.open_checkpoint), ("a.zip", ZIP.open)])
def test_file_above_the_limit_is_refused_before_it_is_read(tmp_path, name, open_checkpoint):
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(3 << 30)  # sparse: takes no room
    with pytest.raises(InputError, match=rf"{name}: .* it has {3 << 30} bytes, and the limit is {2 << 30}"):
        open_checkpoint(path)


def test_shard_of_a_tensorflow_checkpoint_may_be_larger(tmp_path):
    writers.tf1_agents(tmp_path, "a", ["actor"])
    with (tmp_path / "a.data-00000-of-00001").open("ab") as file:
        file.truncate(3 << 30)
    assert tensorflow_files.open_checkpoint(tmp_path / "a").stored


def test_archive_that_unpacks_to_more_than_the_limit_is_refused(checkpoints, capsys, monkeypatch):
    monkeypatch.setattr(regular_files, "MAX_BYTES", 1 << 20)
    arrays = {f"actor/dense_{k}/kernel": np.zeros((300, 300), np.float32) for k in range(4)}
    np.savez_compressed(checkpoints / "SA101_trial_1.npz", **arrays)
    assert (checkpoints / "SA101_trial_1.npz").stat().st_size < 10_000
    refuses(capsys, checkpoints, "SA101_trial_1.npz", "more than 1048576 bytes")


def external_storage(file, secret):
    file.create_dataset("w", (16,), "u1", external=[(str(secret), 0, 16)])


def virtual_dataset(file, secret):
    layout = h5py.VirtualLayout((16,), "u1")
    layout[:] = h5py.VirtualSource(str(secret), "w", (16,))
    file.create_virtual_dataset("w", layout)


def external_link(file, secret):
    file["layers"] = h5py.ExternalLink(str(secret), "/")


def link_in_a_group(file, secret):
    file.create_group("model_weights")["dense"] = h5py.ExternalLink(str(secret), "/")


@pytest.mark.parametrize(
    "refer", [external_storage, virtual_dataset, external_link, link_in_a_group], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_hdf5_that_refers_to_another_file_is_refused(checkpoints, tmp_path, capsys, refer, suffix):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["w"] = np.arange(16, dtype="u1")
    weights = tmp_path / "model.weights.h5"
    with h5py.File(weights, "w") as file:
        refer(file, secret)
    if suffix == ".h5":
        weights.rename(checkpoints / "SA101_trial_1.h5")
    else:
        with zipfile.ZipFile(checkpoints / "SA101_trial_1.keras", "w") as archive:
            archive.writestr("config.json", "{}")
            archive.writestr("metadata.json", "{}")
            archive.write(weights, "model.weights.h5")
    refuses(capsys, checkpoints, "SA101_trial_1", "another file; save the weights inside")


def test_hdf5_with_a_cycle_of_groups_is_read(checkpoints):
    path = checkpoints / "SA101_trial_1.weights.h5"
    writers.sequential(keras3).save_weights(path)
    with h5py.File(path, "a") as file:
        file["layers/again"] = file["layers"]
    assert export(checkpoints) == 0
