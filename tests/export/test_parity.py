"""The parity check permits the rounding of large logits, refuses a wrong weight, and compares recorded observations."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from export.__main__ import main
from export.actors import PARITY_OBSERVATIONS
from export.saved_model import read, verify
from export.saved_model.verify import ParityError
from tests.conftest import GRID
from tests.export.exporting import export, version

ACTIONS = {"categorical": ("--action", "categorical"), "continuous": ()}


def save(checkpoints, seed, gain):
    """An actor 9 -> 64 -> 64 -> 3 with logits of about `gain`."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for k, (inputs, units) in enumerate([(9, 64), (64, 64), (64, 3)]):
        layer = f"actor/dense_{k}" if k else "actor/dense"
        scale = gain if k == 2 else 1.0
        arrays[f"{layer}/kernel"] = (scale * rng.normal(size=(inputs, units)) / np.sqrt(inputs / 2)).astype(np.float32)
        arrays[f"{layer}/bias"] = (0.1 * scale * rng.normal(size=units)).astype(np.float32)
    np.savez(checkpoints / "SA101_trial_1.npz", **arrays)


def with_last_layer(actor, change):
    last = actor.dense[-1]
    return replace(actor, steps=tuple(change(step) if step is last else step for step in actor.steps))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function of the gain and the kind of action: the version of such an actor, which is exported once."""

    @functools.cache
    def exported(gain, action):
        checkpoints = tmp_path_factory.mktemp("parity") / "checkpoints"
        checkpoints.mkdir()
        save(checkpoints, 0, gain)
        assert export(checkpoints, *ACTIONS[action]) == 0
        return version(checkpoints)

    return exported


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_actor_with_large_logits_is_exported(checkpoints, seed, action):
    save(checkpoints, seed, 100.0)
    assert export(checkpoints, *ACTIONS[action]) == 0


def permuted(kernel):
    return kernel[:, [1, 0, 2]]


def one_percent_off(kernel):
    changed = kernel.copy()
    changed[5, 1] *= 1.01
    return changed


def largest_weight_missing(kernel):
    changed = kernel.copy()
    changed[np.unravel_index(np.abs(kernel).argmax(), kernel.shape)] = 0
    return changed


WRONG = [
    *((permuted, gain) for gain in (1.0, 100.0, 1e4)),
    *((largest_weight_missing, gain) for gain in (1.0, 100.0, 1e4)),
    *((one_percent_off, gain) for gain in (1.0, 100.0)),
]


@pytest.mark.parametrize(("wrong", "gain"), WRONG, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("action", ACTIONS)
def test_wrong_weight_behind_large_logits_is_refused(exported, wrong, gain, action):
    folder = exported(gain, action)
    contract, actor = read.read(folder)
    verify.compare_with_checkpoint(folder, actor, contract, None)
    with pytest.raises(ParityError):
        other = with_last_layer(actor, lambda layer: replace(layer, kernel=wrong(layer.kernel)))
        verify.compare_with_checkpoint(folder, other, contract, None)


def test_difference_behind_saturated_probabilities_is_reported_in_logarithms(checkpoints):
    save(checkpoints, 0, 1.0)
    path = checkpoints / "SA101_trial_1.npz"
    np.savez(path, **{**np.load(path), "actor/dense_2/bias": np.float32([0, 60, 0])})
    assert export(checkpoints, "--action", "categorical") == 0
    folder = version(checkpoints)
    contract, actor = read.read(folder)
    other = with_last_layer(actor, lambda layer: replace(layer, bias=np.float32([0, 40, 0])))
    with pytest.raises(
        ParityError, match=r"logarithms of its probabilities differ .* by up to 20, more than rounding \(0\.0008"
    ):
        verify.compare_with_checkpoint(folder, other, contract, None)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "observations"
    folder.mkdir()
    np.save(folder / "SA101.npy", np.random.default_rng(1).random((7, 21), np.float32))
    return folder


def export_with(tmp_path, folder, tl="SA101"):
    return main(
        [
            "--city",
            str(GRID / "city.toml"),
            "--tl",
            tl,
            "--models-dir",
            str(tmp_path / "models"),
            "--observations",
            str(folder),
        ]
    )


def test_recorded_observations_are_compared_too(tmp_path, folder):
    assert export_with(tmp_path, folder) == 0
    (manifest,) = (tmp_path / "models" / "SA101").glob("*/assets.extra/export.json")
    assert json.loads(manifest.read_text())["parity"]["observations"] == PARITY_OBSERVATIONS + 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 4), np.float32), "they have 4 values each, and the actor takes"),
        (np.zeros((3, 21)), "is not an array float32 [n, O]"),
        (np.full((3, 21), np.nan, np.float32), "holds values that are not finite"),
        (np.zeros((0, 21), np.float32), "holds 0 observations"),
        (np.array([object()]), "is not an array of NumPy"),
    ],
    ids=["other size", "float64", "nan", "none", "objects"],
)
def test_observations_that_do_not_fit_are_refused_in_one_line(tmp_path, folder, values, message, capsys):
    np.save(folder / "SA101.npy", values, allow_pickle=True)
    assert export_with(tmp_path, folder) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("models/SA101/*"))


def test_folder_without_observations_of_the_tls_is_refused(tmp_path, folder, capsys):
    assert export_with(tmp_path, folder, "SA102") == 2
    assert "holds no observations of SA102" in capsys.readouterr().err
