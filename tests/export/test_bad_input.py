"""Invalid input to the exporter: one line that names the first cause, exit code 2, nothing lost or half-published."""

import os
import shutil
import socket
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

from city.errors import InputError
from export.checkpoints import numpy_archive, tensorflow_files
from export.checkpoints.stable_baselines3 import SOURCE as ZIP
from export.saved_model import verify
from export.show import inspect_checkpoint
from tests.conftest import GRID
from tests.export import writers
from tests.export.exporting import export, export_city, refused, refuses
from tests.export.writers import keras3

TF2 = "SA102"


@pytest.fixture
def city(empty_city, checkpoints):
    shutil.copytree(GRID / "checkpoints", checkpoints, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
    return empty_city


def published(city):
    models = city / "models"
    return sorted(str(p.relative_to(models)) for p in models.glob("*/*")) if models.exists() else []


def data_of(city):
    return city / "checkpoints" / TF2 / f"{TF2}-1.data-00000-of-00001"


def h5(city):
    return next((city / "checkpoints").glob("*SA103*.h5"))


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def truncate(path, keep):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


def flip_a_byte_of_the_actor(city):
    data = city / "checkpoints" / "PPO-_SA101_trial_1.data-00000-of-00001"
    raw = bytearray(data.read_bytes())
    raw[40] ^= 0xFF  # variables lie in order of their names, the actor's first
    data.write_bytes(raw)


def without(*names):
    def delete(city):
        with h5py.File(h5(city), "a") as file:
            for name in names:
                del file[name]

    return delete


def not_finite(city):
    with h5py.File(h5(city), "a") as file:
        file["layers/dense_1/vars/0"][3, 3] = np.nan


def without_a_lane(city):
    net = (city / "grid.net.xml").read_text()
    kept = [line for line in net.splitlines() if not (' tl="A0"' in line and 'linkIndex="2"' in line)]
    (city / "grid.net.xml").write_text("\n".join(kept))


INDEX = "PPO-_SA101_trial_1.index"
NEW_TL = '\n[tl.SA200]\nsignals = ["B1x"]\ndialect = "sumo-rl"\n[tl.SA101]'


@pytest.mark.parametrize(
    ("change", "flags", "parts"),
    [
        (None, ("--tl", "SA999"), ["SA999 is not one of the TLs", "SA101, SA102"]),
        (
            lambda city: replace(city / "city.toml", "[tl.SA101]", NEW_TL),
            ("--tl", "SA200"),
            ["no checkpoint for SA200", "checkpoints", "SA101"],
        ),
        (None, ("--tl", "SA101", "--model-path", "nowhere"), ["nowhere: no such file or folder"]),
        (
            None,
            ("--tl", "SA101", "--model-number", "77"),
            ["no checkpoint of SA101 with model number 77", "available: 1"],
        ),
        (None, ("--tl", "SA101", "--keep", "0"), ["--keep 0 must be at least 1: the newest version is never removed"]),
        (lambda city: truncate(data_of(city), 0.0), ("--tl", TF2), [f"{TF2}-1: ", "cannot be read"]),
        (lambda city: truncate(data_of(city), 0.5), ("--tl", TF2), [f"{TF2}-1: ", "cannot be read"]),
        (flip_a_byte_of_the_actor, ("--tl", "SA101"), ["PPO-_SA101_trial_1: ", "cannot be read"]),
        (lambda city: truncate(city / "checkpoints" / INDEX, 0.0), ("--tl", "SA101"), ["cannot be read"]),
        (lambda city: (city / "checkpoints" / INDEX).write_bytes(b"x" * 700), ("--tl", "SA101"), ["cannot be read"]),
        (lambda city: truncate(h5(city), 0.0), ("--tl", "SA103"), ["cannot be read"]),
        (lambda city: h5(city).write_bytes(b"garbage" * 100), ("--tl", "SA103"), ["cannot be read"]),
        (without("layers/dense_1/vars/1"), ("--tl", "SA103"), ["layers/dense_1/bias is missing"]),
        (
            without("layers/dense/vars/0", "layers/dense/vars/1"),
            ("--tl", "SA103"),
            ["variable layers/dense/kernel is missing"],
        ),
        (
            without("layers/dense_1/vars/0", "layers/dense_1/vars/1"),
            ("--tl", "SA103"),
            ["variable layers/dense_1/kernel is missing"],
        ),
        (not_finite, ("--tl", "SA103"), ["layers/dense_1/vars/0", "non-finite"]),
        (
            lambda city: replace(city / "city.toml", 'signals = ["A2"]', 'signals = ["A2", "Z9"]'),
            ("--tl", "SA103"),
            ["signal Z9 is not in"],
        ),
        (
            lambda city: replace(city / "city.toml", 'state = "vd"\naction = "kc"', 'state = "d"\naction = "kc"'),
            ("--tl", "SA103"),
            ["has state vd", "has d"],
        ),
        (without_a_lane, ("--tl", "SA101"), ["has 21 inputs, but the network's lanes give 19", "A0"]),
        (None, ("--tl", "SA101", "--scope", "Actor_9"), ["has no scope Actor_9", "actor"]),
        (None, ("--tl", "SA103", "--scope", "Actor_0"), ["scope Actor_0 is for checkpoints of several agents"]),
        (
            lambda city: (city / "models").write_text("a file where the folder should be"),
            ("--tl", "SA103"),
            ["cannot be written"],
        ),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_published(city, capsys, monkeypatch, change, flags, parts):
    monkeypatch.chdir(city)
    if change:
        change(city)
    assert export_city(city, *flags) == 2
    refused(capsys, *parts)
    assert published(city) == []


def test_an_existing_version_is_replaced_only_with_overwrite(city, capsys):
    assert export_city(city, "--tl", "SA103") == 0
    pb = city / "models" / "SA103" / "1" / "saved_model.pb"
    before = pb.stat().st_mtime_ns
    assert export_city(city, "--tl", "SA103,SA101", "--skip-existing") == 0
    assert "exists already; left as it is" in capsys.readouterr().out and published(city) == ["SA101/1", "SA103/1"]
    for flags, parts in (
        ((), ["exists already", "--overwrite"]),
        (("--skip-existing", "--overwrite"), ["not allowed with argument --skip-existing"]),
    ):
        assert export_city(city, "--tl", "SA103", *flags) == 2
        refused(capsys, *parts)
    assert pb.stat().st_mtime_ns == before
    assert export_city(city, "--tl", "SA103", "--overwrite") == 0
    assert pb.stat().st_mtime_ns > before


def test_a_model_that_fails_the_parity_check_is_not_published(city, capsys, monkeypatch):
    monkeypatch.setattr(verify, "TOLERANCE", 0.0)
    assert export_city(city, "--tl", "SA103") == 1
    assert "not published" in capsys.readouterr().err
    assert published(city) == []


def test_one_bad_checkpoint_does_not_stop_the_others(city, capsys):
    h5(city).write_bytes(b"")
    assert export_city(city, "--tl", "all") == 2
    err = capsys.readouterr().err
    assert "7 of 8 TLs exported" in err and "failed: SA103" in err
    assert len(published(city)) == 7


def saver(folder, name="SA101-1"):
    tf.train.Checkpoint(actor=writers.sequential(keras3)).write(str(folder / name))


def old_rllib(folder):
    path = folder / "SA101" / "checkpoint_000010" / "policies" / "default_policy" / "policy_state.pkl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x80\x04}.")


def zip_of(*members):
    def write(folder):
        with zipfile.ZipFile(folder / "SA101.zip", "w") as archive:
            for name in members:
                archive.writestr(name, "{}")

    return write


def whole_model(*layers, shape):
    return lambda folder: keras3.Sequential([keras3.Input(shape), *layers]).save(folder / "SA101.keras")


def arrays(**shapes):
    def write(folder):
        np.savez(folder / "SA101.npz", **{name: np.ones(shape, np.float32) for name, shape in shapes.items()})

    return write


def weights_only(*layers, shape):
    return lambda folder: keras3.Sequential([keras3.Input(shape), *layers]).save_weights(folder / "SA101.weights.h5")


DENSE = {"actor/dense/kernel": (9, 4), "actor/dense/bias": (4,)}


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (lambda folder: (saver(folder), (folder / "SA101-1.index").unlink()), ["SA101-1.index is missing"]),
        (
            lambda folder: (saver(folder), (folder / "SA101-1.data-00000-of-00001").unlink()),
            ["SA101-1.data-00000-of-00001 is missing"],
        ),
        (
            lambda folder: (
                saver(folder),
                (folder / "SA101-1.data-00000-of-00001").rename(folder / "SA101-1.data-00000-of-00002"),
            ),
            ["SA101-1.data-00001-of-00002 is missing"],
        ),
        (lambda folder: (folder / "SA101.ckpt").write_bytes(b"PK"), ["SA101.ckpt", "name it .pt"]),
        (lambda folder: (folder / "agent.pkl").write_bytes(b"\x80\x04N."), ["agent.pkl", "save its weights"]),
        (lambda folder: (folder / "a.txt").write_text(""), ["kinds that are not read (a.txt)", "checkpoints.md"]),
        (old_rllib, ["default_policy/policy_state.pkl: was written by RLlib's old API stack"]),
        (
            zip_of("data", "parameters", "parameter_list"),
            ["has no member policy.pth", "torch.save .pt", "Keras model .keras", "get_parameters"],
        ),
        (
            whole_model(keras3.layers.LSTM(4), keras3.layers.Dense(2, "tanh"), shape=(5, 9)),
            ["the model takes (5, 9), not one row"],
        ),
        (
            whole_model(keras3.layers.Flatten(), keras3.layers.Dense(2, "tanh"), shape=(6, 6, 3)),
            ["the model takes (6, 6, 3), not one row"],
        ),
        (
            lambda folder: keras3.Sequential(
                [keras3.Input((6, 6, 3)), keras3.layers.Flatten(), keras3.layers.Dense(2)]
            ).export(folder / "SA101", verbose=False),
            ["takes", "(6, 6, 3), not one row"],
        ),
        (
            whole_model(keras3.layers.Dense(2, "tanh"), keras3.layers.Lambda(lambda x: x * 0.5), shape=(9,)),
            ["it has a Lambda layer, whose code would be run"],
        ),
        (
            weights_only(keras3.layers.LSTM(4), keras3.layers.Dense(2), shape=(5, 9)),
            ["lstm", "depend on earlier observations"],
        ),
        (
            weights_only(keras3.layers.Conv2D(4, 3), keras3.layers.Flatten(), keras3.layers.Dense(2), shape=(6, 6, 3)),
            ["conv2d is a convolution"],
        ),
        (
            weights_only(keras3.layers.Embedding(4, 3), keras3.layers.Flatten(), keras3.layers.Dense(2), shape=(1,)),
            ["embedding is an embedding"],
        ),
        (arrays(**DENSE, **{"phase_emb/weight": (4, 6)}), ["phase_emb is an embedding"]),
        (arrays(**{"actor.0.weight": (4, 9), "actor.0.bias": (4,), "phase_emb.weight": (4, 6)}), ["is an embedding"]),
        (arrays(**DENSE, **{"actor/gru/weight_ih_l0": (12, 4)}), ["actor/gru is a recurrent layer"]),
        (arrays(**DENSE, **{"encoder/conv/weight": (8, 3, 3, 3)}), ["encoder/conv is a convolution"]),
        (arrays(**DENSE, **{"actor/attn/in_proj_weight": (12, 4)}), ["actor/attn is an attention layer"]),
    ],
)
def test_messages_name_the_first_cause(write, parts, checkpoints, capsys):
    write(checkpoints)
    refuses(capsys, checkpoints, *parts)


@pytest.mark.parametrize(
    "others",
    [
        {"critic/conv/weight": (8, 3, 3, 3), "critic/phase_emb/weight": (4, 6)},
        {"SA102/actor/gru/weight_ih_l0": (12, 4), "SA102/actor/dense/kernel": (9, 4)},
    ],
)
def test_other_kinds_of_layers_of_critics_and_other_agents_do_not_stop_an_export(others, checkpoints):
    arrays(**{f"SA101/{name}": shape for name, shape in DENSE.items()}, **others)(checkpoints)
    assert export(checkpoints) == 0


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
