"""--start-from: what a training continues, what it refuses, and that it is never worse than its start."""

import json
import re
import shutil

import numpy as np
import pytest

from city import config, network
from city.errors import InputError
from export.__main__ import main as export
from export.actors.phase_competition import SHAPES
from export.saved_model.read import read
from signals import contract
from tests.conftest import GRID
from tests.error_lines import refused
from training import checkpoints, learning, start, trainer
from training.__main__ import main
from training.actor_critics import ActorCritics
from training.episode import EpisodeSimulator, TrainingTask
from training.phase_competition.networks import ACTOR, initial_arrays, save_policy
from training.settings import Settings, TrainingStart

CITY = GRID / "city.toml"
SHORT = ("--seconds", "60", "--episodes", "1", "--episodes-per-update", "1", "--held-out", "1")
CHECKPOINTS = GRID / "checkpoints"


def loaded(given, *tls):
    return start.load(str(given), config.load(CITY), tls)


def networks_of(given, *tls):
    """The networks with which a training of TLs of one layout begins."""
    begun, _ = loaded(given, *tls)
    task = TrainingTask(config.load(CITY), tls, hidden=begun.hidden, activation=begun.activation)
    (layout,) = EpisodeSimulator(task).layouts
    arrays = learning.learning_of(layout, Settings(out=GRID, start=begun), np.random.default_rng(1)).arrays
    return ActorCritics(layout, arrays)


def acted(given, tl):
    """(a training's first actions, the observations)."""
    networks = networks_of(given, tl)
    x = np.random.default_rng(0).uniform(size=(200, networks.layout.observation_sizes[0])).astype(np.float32)
    y = networks.actor(np.zeros(len(x), np.intp), x)
    if networks.layout.is_categorical:
        y = np.exp(y - y.max(1, keepdims=True))
        y /= y.sum(1, keepdims=True)
    return y, x


@pytest.mark.parametrize("tl", ["SA101", "SA102", "SA103", "SA106", "SA107", "SA108"])
@pytest.mark.parametrize("kind", ["checkpoints", "models", "version"])
def test_a_training_begins_with_the_actor_that_export_reads(tl, kind, grid_models):
    given = {"checkpoints": CHECKPOINTS, "models": grid_models, "version": grid_models / tl / "1"}[kind]
    found, x = acted(given, tl)
    _, actor = read(grid_models / tl / "1")
    np.testing.assert_allclose(found, actor.evaluate(x, tl not in ("SA103", "SA107", "SA108")), atol=1e-5)


def test_a_policy_of_stable_baselines3_is_continued_with_its_tanh_and_exported_so(shared, tmp_path, capsys):
    zip_file = shared / "checkpoints" / "torch" / "sb3_ppo_cologne1" / "model.zip"
    assert loaded(zip_file, "SA101")[0].activation == "tanh"
    flags = ("--city", str(CITY), "--target-tl", "SA101", "--out", str(tmp_path / "out"), *SHORT)
    assert main(["--start-from", str(zip_file), *flags]) == 0
    assert "holds no critic that can be continued; critics start anew" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "trial_1_training.json").read_text())["SA101"]["hidden_activation"] == "tanh"
    models = ("--tl", "SA101", "--models-dir", str(tmp_path / "models"), "--city", str(CITY))
    assert export(["--model-path", str(tmp_path / "out"), *models]) == 0
    assert "mlp tanh" in capsys.readouterr().out
    other = ("--hidden-activation", "relu", "--models-dir", str(tmp_path / "other"))
    assert export(["--model-path", str(tmp_path / "out"), "--tl", "SA101", "--city", str(CITY), *other]) == 0
    assert "mlp relu" in capsys.readouterr().out, "a flag is not ignored"
    (tmp_path / "zip").mkdir()
    shutil.copy(zip_file, tmp_path / "zip" / "SA101_trial_7.zip")
    assert export(["--model-path", str(tmp_path / "zip"), *models]) == 0
    x = np.random.default_rng(0).uniform(size=(200, 21)).astype(np.float32)
    trained, original = (read(tmp_path / "models" / "SA101" / n)[1].evaluate(x, True) for n in ("1", "7"))
    assert np.abs(trained - original).max() < 0.1, "after one update of small steps"


def test_starts_that_differ_in_their_activation_are_told_apart():
    layers = {"SA101": [(np.zeros((2, 3), np.float32), np.zeros(3, np.float32))]}
    assert (
        TrainingStart(layers, "relu").digest()
        != TrainingStart(layers, "tanh").digest()
        == TrainingStart(layers, "tanh").digest()
    )


@pytest.mark.parametrize("sizes", ["one policy", "of two TLs"])
def test_tls_of_dialect_street_start_from_published_models(sizes, tmp_path, capsys):
    names = sorted(network.of_sumocfg(GRID / "grid.sumocfg").signals)[:2]
    tables = "".join(f'[tl.T{k}]\nsignals = ["{name}"]\ndialect = "street"\n' for k, name in enumerate(names))
    city = tmp_path / "city.toml"
    city.write_text(f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n{tables}')
    policies = [initial_arrays(np.random.default_rng(seed)) for seed in (0, 0 if sizes == "one policy" else 1)]
    for tl, arrays in zip(("T0", "T1"), policies, strict=True):
        save_policy(tmp_path / f"{tl}.policy", arrays, 1.0, {})
        flags = ("--city", str(city), "--tl", tl, "--models-dir", str(tmp_path / "models"))
        assert export(["--model-path", str(tmp_path / f"{tl}.policy"), *flags]) == 0
    if sizes == "of two TLs":
        flags = ("--city", str(city), "--start-from", str(tmp_path / "models"), "--out", str(tmp_path / "out"))
        refused(
            capsys,
            main([*flags, *SHORT]),
            "T0 and T1 have different policies there, and TLs of dialect street share one",
        )
        return
    begun, note = start.load(str(tmp_path / "models"), config.load(city), ["T0", "T1"])
    assert len(begun.street) == len(SHAPES) == ACTOR and "critics start anew" in note
    assert all(np.array_equal(a, b) for a, b in zip(begun.street, policies[0], strict=False))
    begun, note = start.load(str(tmp_path / "T0.policy"), config.load(city), ["T0", "T1"])
    assert len(begun.street) == len(policies[0]) and not note, "the critic too"
    built = contract.build(config.load(city), config.load(city).tls["T0"], network.of_city(config.load(city)))
    kernel = np.zeros((built.observation.size, built.action.size), np.float32)
    checkpoints.write("tf2", tmp_path / "dense", built, [(kernel, kernel[0])], 1)
    with pytest.raises(InputError, match=r"is no network of dialect street, of which T0 is; pass a \.policy file"):
        start.load(str(tmp_path / "dense"), config.load(city), ["T0"])


def test_the_start_is_written_if_the_trained_policy_is_worse_on_fresh_demand(
    grid_models, tmp_path, capsys, monkeypatch
):
    """A look at validation demand that always prefers the newest state stands for an unlucky one."""
    delays, mean_delay_s = iter([20.0, 10.0, 5.0]), trainer.mean_delay_s
    monkeypatch.setattr(trainer, "mean_delay_s", lambda trips: next(delays, None) or mean_delay_s(trips))
    flags = ("--city", str(CITY), "--target-tl", "SA101", "--out", str(tmp_path / "out"), *SHORT)
    changes = ("--learning-rate", "0.9", "--target-kl", "10", "--seconds", "200")
    assert main(["--start-from", str(grid_models), *flags, *changes]) == 0
    text = capsys.readouterr().out
    found = re.search(r"mean delay ([\d.]+) s on 5 fresh demands; ([\d.]+) s with the policy of --start-from", text)
    assert float(found[1]) > float(found[2]) and text.endswith("; the start was kept\n")
    assert export(["--city", str(CITY), "--tl", "SA101", "--model-path", str(tmp_path / "out"), "--models-dir",
                   str(tmp_path / "models")]) == 0  # fmt: skip
    x = np.random.default_rng(0).uniform(size=(200, 21)).astype(np.float32)
    kept, original = (
        read(folder / "SA101" / "1")[1].evaluate(x, True) for folder in (tmp_path / "models", grid_models)
    )
    np.testing.assert_allclose(kept, original, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "flags", "message"),
    [
        ("nowhere", (), "--start-from nowhere: no such file or folder; pass a checkpoint, a model, or pretrained"),
        ("pretrained", (), "is a policy for the dialect street, and city.toml has dialect sumo-rl for SA101"),
        (CHECKPOINTS, ("--hidden-sizes", "32"), "--hidden-sizes 32 (or [training] hidden_sizes) is not that of"),
        (CHECKPOINTS, ("--target-tl", "SA101,SA102", "--shared"), "--shared: SA101 and SA102 share an actor"),
        (CHECKPOINTS / "SA102", (), "no checkpoint for SA101"),
        ("models/SA103/1", (), "is a model of sappo vd kc, and SA101 is sumo-rl categorical; pass one of the same"),
        ("models/SA108/1", ("--target-tl", "SA103"), "has 34 inputs and 2 outputs, and SA103 has an observation of"),
    ],
)
def test_what_cannot_be_continued_is_one_line(given, flags, message, grid_models, tmp_path, capsys):
    if str(given).startswith("models/"):
        given = grid_models.parent / str(given).replace("models", grid_models.name, 1)
    flags = flags if "--target-tl" in flags else ("--target-tl", "SA101", *flags)
    all_flags = ("--city", str(CITY), "--out", str(tmp_path / "out"), *SHORT, *flags)
    refused(capsys, main(["--start-from", str(given), *all_flags]), message)
    assert not list((tmp_path / "out").glob("SA*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sb3_dqn_cologne1", "gives Q-values, and PPO continues logits"),
        ("sb3_ppo_vecnormalize", "cannot be continued for SA101: its actor is"),
    ],
)
def test_policies_of_stable_baselines3_that_cannot_be_continued_are_one_line(name, message, shared, tmp_path, capsys):
    folder = shutil.copytree(shared / "checkpoints" / "torch" / name, tmp_path / name)
    (folder / "meta.json").unlink(missing_ok=True)
    (folder / "expected.npz").unlink(missing_ok=True)
    flags = ("--city", str(CITY), "--target-tl", "SA101", "--out", str(tmp_path / "out"), *SHORT)
    refused(capsys, main(["--start-from", str(folder / "model.zip"), *flags]), message)
