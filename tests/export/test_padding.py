"""One policy for TLs of several sizes, as SuperSuit pads observations and actions in training."""

import json

import numpy as np
import pytest

from export.__main__ import main
from export.actors import Actor
from export.actors.architectures import ArchitectureHints
from export.checkpoints import stable_baselines3
from export.checkpoints.source import ActorRequest
from protos import policy_pb2 as pb
from tests.conftest import GRID
from tests.export.exporting import refused, run

TLS = ("SA101", "SA105")
INPUTS, CHOICES = 40, 7
CITY = f"""
[network]
net = "{GRID / "grid.net.xml"}"

[training]
model_path = "checkpoints"
padding = "supersuit"

[tl.SA101]
signals = ["A0"]
dialect = "sumo-rl"

[tl.SA105]
signals = ["B1"]
dialect = "sumo-rl"
"""


@pytest.fixture
def weights(tmp_path, in_tmp_path):
    """A shared policy of more inputs and choices than any TL has, in this folder."""
    rng = np.random.default_rng(4)
    shapes = {"0.weight": (16, INPUTS), "0.bias": (16,), "2.weight": (CHOICES, 16), "2.bias": (CHOICES,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["2.bias"][-2:] += 14  # choices that no TL has win often
    (tmp_path / "checkpoints").mkdir()
    np.savez(tmp_path / "checkpoints" / "policy_trial_2.npz", **arrays)
    (tmp_path / "city.toml").write_text(CITY)
    return arrays


def logits_of(weights, x):
    padded = np.pad(x, ((0, 0), (0, INPUTS - x.shape[1])))
    return np.maximum(padded @ weights["0.weight"].T + weights["0.bias"], 0) @ weights["2.weight"].T + weights["2.bias"]


def supersuit_choice(logits, own):
    """argmax over all padded choices; one that the TL does not have is applied as its first."""
    chosen = logits.argmax(axis=1)
    return np.where(chosen >= own, 0, chosen)


def test_each_tl_gets_its_own_sizes_and_supersuits_choices(weights, tmp_path):
    assert main(["--tl", "all"]) == 0
    x = np.random.default_rng(5).random((200, INPUTS)).astype(np.float32)
    beyond = 0
    for tl in TLS:
        contract = json.loads((tmp_path / "models" / tl / "2" / "assets.extra" / "policy.json").read_text())
        own, choices = contract["observation"]["size"], contract["action"]["size"]
        assert (contract["observation"]["padded_size"], contract["action"]["padded_size"]) == (INPUTS, CHOICES)
        outputs = run(tmp_path / "models" / tl / "2", "serving_default", observation=x[:, :own])
        logits = logits_of(weights, x[:, :own])
        np.testing.assert_array_equal(outputs["action"], supersuit_choice(logits, choices))
        assert outputs["probabilities"].shape == (200, choices)
        beyond += int((logits.argmax(axis=1) >= choices).sum())
    assert beyond > 20, "some choices must lie beyond a TL's own"


def test_fleet_stores_a_shared_policy_once_and_acts_like_its_tls(weights, tmp_path):
    assert main(["--tl", "all"]) == 0 and main(["fleet", "city", "--tl", "all"]) == 0
    (version,) = (tmp_path / "models" / "city").iterdir()
    fleet = pb.PolicyContract.FromString(run(version, "policy", rows=np.zeros(1, np.int32))["policy"][0])
    x = np.random.default_rng(5).random((50, fleet.observation.size)).astype(np.float32)
    actions = run(version, "serving_default", observation=x)["action"]
    for member in fleet.members:
        own = x[:, member.observation_begin : member.observation_begin + member.observation_size]
        expected = supersuit_choice(logits_of(weights, own), member.contract.action.size)
        np.testing.assert_array_equal(actions[:, member.action_begin], expected)
    stored = (version / "variables" / "variables.data-00000-of-00001").stat().st_size
    single = (tmp_path / "models" / "SA101" / "2" / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert stored < 1.2 * single


@pytest.mark.parametrize(("tl", "error"), [("SA101", f"has {INPUTS} inputs"), ("all", "padded by SuperSuit")])
def test_shared_policy_without_padding_is_refused_with_the_setting(weights, tmp_path, capsys, tl, error):
    (tmp_path / "city.toml").write_text(CITY.replace('padding = "supersuit"\n', ""))
    assert main(["--tl", tl]) == 2
    err = capsys.readouterr().err
    assert error in err and 'set padding = "supersuit" under [training]' in err


def test_tl_that_needs_more_than_the_shared_policy_is_refused(weights, tmp_path, capsys):
    np.savez(tmp_path / "checkpoints" / "policy_trial_2.npz", **{**weights, "0.weight": weights["0.weight"][:, :3]})
    assert main(["--tl", "SA101"]) == 2
    refused(capsys, "SA101: policy_trial_2.npz: has 3 inputs, and this TL needs")


def test_unknown_padding_is_refused(weights, tmp_path, capsys):
    (tmp_path / "city.toml").write_text(CITY.replace('"supersuit"', '"zeros"'))
    assert main(["--tl", "SA101"]) == 2
    refused(capsys, "[training] padding = 'zeros' must be one of supersuit")


def test_choices_are_those_that_supersuit_applied_in_training(shared):
    folder = shared / "checkpoints" / "torch" / "supersuit_shared"
    expected, meta = np.load(folder / "expected.npz"), json.loads((folder / "meta.json").read_text())
    request = ActorRequest("SA101", None, [], None, ArchitectureHints(), True, None, None)
    actor = stable_baselines3.SOURCE.actor(folder / "model.zip", request).actor
    assert isinstance(actor, Actor)
    for agent in meta["agents"]:
        own = actor.for_tl(agent["obs_size"], agent["n_actions"])
        probabilities = own.evaluate(expected[f"x_{agent['index']}"], True)
        assert probabilities.shape[1] == agent["n_actions"]
        np.testing.assert_array_equal(probabilities.argmax(axis=1), expected[f"y_action_applied_{agent['index']}"])
