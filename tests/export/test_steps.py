"""Every step of an actor: its NumPy value, its TensorFlow operations, its JSON and its sizes agree; a policy that TLs share, padded."""

import json

import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from export.actors import Actor
from export.actors.activations import ACTIVATIONS
from export.actors.architectures import ArchitectureHints
from export.actors.phase_competition import PhaseCompetition
from export.actors.steps import (
    STEPS,
    Activation,
    Affine,
    Branch,
    Clip,
    Dense,
    FirstChoice,
    Join,
    Pad,
    SizeMismatch,
    from_json,
)
from export.checkpoints import stable_baselines3
from export.checkpoints.source import ActorRequest
from protos import policy_pb2 as pb
from tests.conftest import GRID
from tests.export.exporting import refused, run
from tests.export.phase_competition_models import random_policy

RNG = np.random.default_rng(4)


def array(*shape):
    return RNG.uniform(0.5, 2.0, shape).astype(np.float32)


DENSE = Dense("a", array(4, 3), array(3))
EXAMPLES = {
    "dense": [DENSE],
    "dense without bias": [Dense("a", array(4, 3), None)],
    "affine": [Affine("n", array(4), array(4)), DENSE],
    **{f"activation {kind}": [Activation(kind), DENSE] for kind in ACTIVATIONS},
    "branch, join": [Branch(), Activation("tanh"), Join(), DENSE],
    "clip": [Clip((-0.5,), (0.5,)), DENSE],
    "clip of each number": [Clip((-0.5, -1.0, -1.5, 0.0), (0.5, 0.6, 0.7, 0.8)), DENSE],
    "pad": [Pad(4, 6), Dense("a", array(6, 3), array(3))],
    "first_choice": [DENSE, FirstChoice(2)],
    "phase_competition": [*random_policy(RNG, 3, 5).steps],
}


def test_every_step_has_an_example():
    assert {step.key for steps in EXAMPLES.values() for step in steps} == STEPS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_operations_and_json_give_the_numpy_value(name):
    actor = Actor("example", tuple(EXAMPLES[name]))
    x = RNG.standard_normal((5, actor.inputs)).astype(np.float32)
    expected = actor.evaluate(x, categorical=False)
    weights = {weight.name: tf.constant(weight.values) for weight in actor.weights}
    built = actor.build(tf.constant(x), lambda weight, shape: tf.ensure_shape(weights[weight], shape))
    np.testing.assert_allclose(built.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert expected.shape == (5, actor.outputs)
    descriptions = json.loads(json.dumps([step.to_json() for step in actor.steps]))
    copies = [from_json(text, step.weights) for text, step in zip(descriptions, actor.steps, strict=True)]
    np.testing.assert_array_equal(Actor("copy", tuple(copies)).evaluate(x, categorical=False), expected)
    assert [copy.outline for copy in copies] == [step.outline for step in actor.steps]
    assert len({tuple(step.outline for step in steps) for steps in (copies, actor.steps)}) == 1, "a key of a dictionary"


@pytest.mark.parametrize(
    ("description", "step"),
    [
        ({"dense": "a", "shape": [4, 3], "bias": True}, DENSE),
        ({"activation": "tanh"}, Activation("tanh")),
        ({"branch": ""}, Branch()),
        ({"clip": [[-0.5], [0.5]]}, Clip((-0.5,), (0.5,))),
        ({"first_choice": 2}, FirstChoice(2)),
    ],
)
def test_descriptions_of_earlier_exports_are_read(description, step):
    assert from_json(description, step.weights).outline == step.outline


@pytest.mark.parametrize("name", EXAMPLES)
def test_stacked_operations_of_two_actors_give_both_values(name):
    steps = EXAMPLES[name]
    if any(isinstance(step, Pad | FirstChoice | PhaseCompetition) for step in steps):
        pytest.skip("a fleet pads and masks all its members at once (test_fleet.py, test_phase_competition.py)")
    x = RNG.standard_normal((2, 5, 4)).astype(np.float32)
    built, branches = tf.constant(x), []
    for step in steps:
        stacked = {
            part: tf.stack([values, 2 * values] if part == "kernel" else [values[None], 2 * values[None]])
            for part, values in step.weights.items()
        }
        built = step.build_stacked(built, stacked.get, branches)
    doubled = [from_json(step.to_json(), {part: 2 * values for part, values in step.weights.items()}) for step in steps]
    for row, member in enumerate((steps, doubled)):
        expected = Actor("member", tuple(member)).evaluate(x[row], categorical=False)
        np.testing.assert_allclose(built.numpy()[row], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((DENSE, Dense("b", array(4, 1), None)), "a/kernel has 3 outputs, but b/kernel takes 4"),
        ((DENSE, Affine("n", array(4), array(4))), "a/kernel has 3 outputs, but n takes 4"),
        (
            (Branch(), DENSE, Branch(), Dense("b", array(3, 2), None), Join()),
            "b/kernel has 2 outputs, but a residual adds 3",
        ),
    ],
)
def test_steps_that_do_not_fit_each_other_are_named(steps, message):
    with pytest.raises(SizeMismatch, match=message):
        _ = Actor("example", steps).outputs


@pytest.mark.parametrize(
    ("description", "error", "message"),
    [
        ({"conv": "a"}, KeyError, "conv"),
        ({"batch_norm": "a", "units": 3, "epsilon": 1e-5}, KeyError, "batch_norm"),  # of models exported before 0.3
        ({"pad": [1]}, ValueError, "shorter"),
        ({"pad": 1}, TypeError, "not iterable"),
        ({"clip": "x"}, ValueError, "shorter"),
        ({"dense": "a"}, TypeError, "kernel"),
    ],
)
def test_unknown_or_damaged_description_is_an_error_of_its_values(description, error, message):
    with pytest.raises(error, match=message):
        from_json(description, {})


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
