"""Corrupt files (truncated, bit-flipped, swapped, empty, huge shapes): one error line, nothing published."""

import os
import resource
import shutil
import time
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from city.errors import InputError
from export.__main__ import main
from export.checkpoints import helper_process
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


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(what=damages, file=st.integers(0, 99))
def test_a_damaged_file_gives_one_error_line_or_a_valid_model(source, tmp_path, capsys, monkeypatch, what, file):
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
        (npz_as_hdf5, ["SA101_trial_1.h5: cannot be read as HDF5 weights"]),
        (
            lambda folder: np.savez(folder / "SA101_trial_1.npz", np.zeros((9, 2)), np.zeros(2)),
            ["its arrays have no names (arr_0, arr_1"],
        ),
    ],
)
def test_files_of_impossible_contents_are_refused(checkpoints, capsys, write, parts):
    write(checkpoints)
    refuses(capsys, checkpoints, *parts)


def test_data_of_another_checkpoint_are_refused(checkpoints, capsys):
    for name, seed in (("SA101-1", 1), ("SA102-1", 2)):
        model = writers.randomise(writers.sequential(keras3), seed)
        tf.train.Checkpoint(actor=model).write(str(checkpoints / name))
    data, other = (checkpoints / f"{name}.data-00000-of-00001" for name in ("SA101-1", "SA102-1"))
    data.write_bytes(other.read_bytes())
    refuses(capsys, checkpoints, "SA101-1", "cannot be read")


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
