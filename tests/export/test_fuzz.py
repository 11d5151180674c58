"""Corrupt files of Keras, TensorFlow, NumPy and PyTorch (truncated, bit-flipped, swapped, empty, huge shapes): one error line, nothing published."""

import contextlib
import io
import os
import pickle
import resource
import shutil
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from city.errors import InputError
from export.__main__ import main
from export.checkpoints import (
    helper_process,
    pickles,
    rllib,
    stable_baselines3,
    torch_state,
    torch_tensors,
)
from tests.export import writers
from tests.export.exporting import refuses, run
from tests.export.writers import X, keras2, keras3


def npz(at, save):
    save(at / "SA101_trial_1.npz", **{w.path: w.numpy() for w in writers.sequential(keras3).weights})


KINDS = {
    "keras 2 HDF5": lambda at: writers.sequential(keras2).save_weights(str(at / "SA101_trial_1.h5")),
    "keras 3 HDF5": lambda at: writers.sequential(keras3).save_weights(at / "SA101_trial_1.weights.h5"),
    "whole HDF5": lambda at: writers.sequential(keras3).save(at / "SA101_trial_1.h5"),
    ".keras": lambda at: writers.sequential(keras3).save(at / "SA101_trial_1.keras"),
    "npz": lambda at: npz(at, np.savez),
    "compressed npz": lambda at: npz(at, np.savez_compressed),
    "checkpoint": lambda at: tf.train.Checkpoint(actor=writers.sequential(keras3)).write(str(at / "SA101-1")),
    "tf1": lambda at: writers.tf1_agents(at, "SA101_trial_1", ["actor"]),
    "SavedModel": lambda at: tf.saved_model.save(writers.functional(keras3), str(at / "SA101_trial_1")),
}


@pytest.fixture(scope="module", params=KINDS)
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    KINDS[request.param](folder)
    return folder


damages = st.tuples(
    st.sampled_from(["truncate", "flip", "zero", "ones", "swap", "repeat"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 64),
)


def damage(data, how, where, other, length):
    data = bytearray(data)
    a, b = where % len(data), other % len(data)
    match how:
        case "truncate":
            del data[a:]
        case "flip":
            data[a] ^= 1 << length % 8
        case "zero":
            data[a : a + length] = bytes(len(data[a : a + length]))
        case "ones":
            data[a : a + 8] = b"\xff" * len(data[a : a + 8])
        case "swap":
            data[a : a + length], data[b : b + length] = data[b : b + length], data[a : a + length]
        case "repeat":
            data[a:a] = data[b : b + length]
    return bytes(data)


def fuzz(examples, test):
    fixtures = [HealthCheck.function_scoped_fixture]
    limits = settings(max_examples=examples, suppress_health_check=fixtures, database=None)
    return limits(given(what=damages, file=st.integers(0, 99))(test))


def assert_one_error_line_or_a_valid_model(source, tmp_path, capsys, monkeypatch, what, file):
    monkeypatch.setattr(helper_process, "READ_TIMEOUT_S", 2)  # some damages make the HDF5 library loop
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work / "c")
    files = sorted(path for path in (work / "c").rglob("*") if path.is_file())
    chosen = files[file % len(files)]
    if not chosen.stat().st_size:
        return
    chosen.write_bytes(damage(chosen.read_bytes(), *what))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    capsys.readouterr()
    code = main(["--model-path", str(work / "c"), "--tl", "SA101", "--models-dir", str(work / "m")])
    err = capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "kB"
    if code == 0:
        # the damage is outside the actor (a critic, a name), or in a format without checksums
        assert np.isfinite(
            run(next((work / "m" / "SA101").iterdir()), "serving_default", observation=X)["action"]
        ).all()
        return
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code in (1, 2) and len(lines) == 1 and "Traceback" not in err, err
    assert "SA101" in lines[0]
    assert not (work / "m" / "SA101").exists()


test_a_damaged_file_gives_one_error_line_or_a_valid_model = fuzz(6, assert_one_error_line_or_a_valid_model)
test_many_damaged_files_give_one_error_line_or_a_valid_model = pytest.mark.slow(
    fuzz(50, assert_one_error_line_or_a_valid_model)
)


HUGE = (10**6, 10**6)


def huge_hdf5(folder):
    with h5py.File(folder / "SA101_trial_1.weights.h5", "w") as file:
        file.create_dataset("layers/dense/vars/0", HUGE, np.float32, chunks=(64, 64))
        file.create_dataset("layers/dense/vars/1", (10**6,), np.float32)


def huge_npz(folder):
    with (
        zipfile.ZipFile(folder / "SA101_trial_1.npz", "w") as archive,
        archive.open("actor/dense/kernel.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": HUGE})
        file.write(bytes(64))


def huge_checkpoint(folder):
    """A slice of it is all that is stored, as partitioned variables are."""
    tf.raw_ops.SaveV2(
        prefix=str(folder / "SA101_trial_1"),
        tensor_names=["actor/dense/kernel", "actor/dense/bias"],
        shape_and_slices=["1000000 1000000 0,2:0,2", ""],
        tensors=[tf.zeros([2, 2]), tf.zeros([2])],
    )


def npz_as_hdf5(folder):
    np.savez(folder / "x.npz", a=np.zeros(3))
    (folder / "x.npz").rename(folder / "SA101_trial_1.h5")


def hdf5_as_npz(folder):
    writers.sequential(keras3).save_weights(folder / "SA101_trial_1.weights.h5")
    (folder / "SA101_trial_1.weights.h5").rename(folder / "SA101_trial_1.npz")


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (huge_hdf5, ["layers/dense/vars/0 has shape [1000000, 1000000], more than any actor's"]),
        (huge_npz, ["actor/dense/kernel has shape [1000000, 1000000], more than its"]),
        (huge_checkpoint, ["actor/dense/kernel", "shape [1000000, 1000000], more than"]),
        (hdf5_as_npz, ["SA101_trial_1.npz: cannot be read as an .npz archive"]),
        (
            npz_as_hdf5,
            ["SA101_trial_1.h5: cannot be read as HDF5 weights", "; copy the file again, or pass another one"],
        ),
        (
            lambda folder: np.savez(folder / "SA101_trial_1.npz", np.zeros((9, 2)), np.zeros(2)),
            ["its arrays have no names (arr_0, arr_1"],
        ),
    ],
)
def test_files_of_impossible_contents_are_refused(checkpoints, capsys, write, parts):
    write(checkpoints)
    refuses(capsys, checkpoints, *parts)


def test_pickled_objects_are_never_loaded(checkpoints, capsys):
    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(checkpoints / "harm"),))

    np.savez(
        checkpoints / "SA101_trial_1.npz",
        **{"actor/dense/kernel": np.array([Harm()], object), "actor/dense/bias": np.zeros(1)},
    )
    refuses(capsys, checkpoints, "SA101_trial_1.npz")
    assert not (checkpoints / "harm").exists()


def test_a_read_that_is_endless_or_crashes_ends_the_helper_which_is_restarted(monkeypatch):
    monkeypatch.setattr(helper_process, "READ_TIMEOUT_S", 1)
    helper = helper_process.Helper(helper_process.result_or_error, "weights")
    try:
        for harm in ((time.sleep, (60,)), (os.abort, ())):
            with pytest.raises(InputError, match=r"cannot be read as weights: .* crashed or did not finish within 1 s"):
                helper.call(*harm)
            assert helper.call(abs, (-3,)) == (3, None)
    finally:
        helper.close()


FILES = {
    "cleanrl_state_dict/agent.pt": torch_state,
    "cleanrl_state_dict/agent_legacy.pt": torch_state,
    "cleanrl_state_dict/agent.safetensors": torch_state,
    "sb3_ppo_small/model.zip": stable_baselines3,
    "sb3_ppo_vecnormalize/vecnormalize.pkl": stable_baselines3,
    "rllib_ppo/checkpoint/learner_group/learner/rl_module/default_policy/module_state.pkl": rllib,
}
torch_damage = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", FILES)
@torch_damage
@given(place=st.floats(0, 1, exclude_max=True), flips=st.integers(1, 255), cut=st.booleans())
def test_flipped_bytes_and_cut_files_raise_only_errors_of_the_input(shared, tmp_path, name, place, flips, cut):
    """Without the helper process, whose limits would hide an endless loop or a crash as a refusal."""
    data = bytearray((shared / "checkpoints" / "torch" / name).read_bytes())
    at = int(place * len(data))
    data[at] ^= flips
    damaged = tmp_path / Path(name).name
    damaged.write_bytes(data[:at] if cut else data)
    if name.startswith("rllib"):
        settings_file = (shared / "checkpoints" / "torch" / name).with_name(rllib.CONFIG_FILE)
        (tmp_path / rllib.CONFIG_FILE).write_bytes(settings_file.read_bytes())
    # the helper turns these into one line
    with contextlib.suppress(ValueError, TypeError, LookupError, MemoryError):
        FILES[name].contents(damaged)


@pytest.mark.parametrize("name", ["cleanrl_state_dict/agent.pt", "sb3_ppo_small/model.zip"])
@pytest.mark.parametrize("flips", [255, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_directory_of_a_zip_raises_only_errors_of_the_input(shared, tmp_path, name, flips):
    """Every byte at the archive's end, where the members are listed."""
    whole = (shared / "checkpoints" / "torch" / name).read_bytes()
    for at in range(len(whole) - 600, len(whole)):
        data = bytearray(whole)
        data[at] ^= flips
        damaged = tmp_path / Path(name).name
        damaged.write_bytes(data)
        with contextlib.suppress(ValueError, TypeError, LookupError, MemoryError):
            FILES[name].contents(damaged)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_tensors(data):
    for read in (torch_tensors.read, torch_state._safetensors):
        with pytest.raises(ValueError):
            read(data)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.sampled_from([3, 4]))
def test_plain_values_are_read_as_pickle_reads_them(value, protocol):
    assert pickles.load(pickle.dumps(value, protocol), {}) == value


@given(st.binary(min_size=1, max_size=60))
def test_random_pickles_raise_only_pickle_refused(data):
    with contextlib.suppress(pickles.PickleRefused):
        pickles.load(b"\x80\x04" + data + b".", pickles.REBUILDERS, ("gymnasium",))


def test_functions_of_the_reader_cannot_be_changed_by_a_pickle():
    """BUILD on a function: it has no attributes that a state could set."""
    dtype = b"\x8c\x05numpy\x8c\x05dtype\x93"
    for state in (b"}\x8c\x05_callK\x01s", b"N}\x8c\x05_callK\x01s\x86"):
        with pytest.raises(pickles.PickleRefused):
            pickles.load(b"\x80\x04" + dtype + state + b"b.", pickles.REBUILDERS)


def test_zip_of_a_zip_is_read_within_its_limits(tmp_path, monkeypatch):
    """A member that unpacks to more than the limit is refused before it is unpacked."""
    monkeypatch.setattr(stable_baselines3, "MAX_DATA_BYTES", 1 << 20)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b" " * (stable_baselines3.MAX_DATA_BYTES + 1))
        archive.writestr("policy.pth", b"")
    (tmp_path / "SA101.zip").write_bytes(packed.getvalue())
    with pytest.raises(ValueError, match=r"member data has .* bytes, more than any actor's"):
        stable_baselines3.contents(tmp_path / "SA101.zip")


def test_a_pickle_that_takes_more_memory_or_time_than_its_size_is_refused(monkeypatch):
    monkeypatch.setattr(pickles, "MAX_OPCODES", 20)
    for data, message in (
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "memo index 2147483647"),
        (pickle.dumps([1.5] * 30), "opcodes"),
    ):
        with pytest.raises(pickles.PickleRefused, match=message):
            pickles.load(data, {})
