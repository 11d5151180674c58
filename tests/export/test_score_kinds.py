"""The second output of categorical actors: probabilities or Q-values, by what a file proves or a user says."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.export import writers
from tests.export.exporting import export, outputs_of, refuses, same
from tests.export.torch_files import FIVE, linear_layers, outputs_of_layers, relu, softmax
from tests.export.writers import actions, keras3

RELU = ("--action", "categorical", "--hidden-activation", "relu")
NETWORK = linear_layers(("network.0", 8, 5), ("network.2", 3, 8))
LOGITS = outputs_of_layers(NETWORK, "network.0", "network.2", hidden=relu)
Q, PROBABILITIES = "q_values", "probabilities"


@pytest.mark.parametrize(
    ("name", "flags", "scores"),
    [
        ("traffic_dqn.safetensors", (), Q),
        ("ddqn_SA101.safetensors", (), Q),
        ("q_net.safetensors", (), Q),
        ("actor_0.safetensors", (), PROBABILITIES),
        ("mappo_policy.safetensors", (), PROBABILITIES),
        ("SA101.safetensors", ("--scores", Q), Q),
        ("SA101.safetensors", ("--scores", PROBABILITIES), PROBABILITIES),
        ("traffic_dqn.safetensors", ("--scores", PROBABILITIES), PROBABILITIES),
    ],
)
def test_the_meaning_of_outputs_is_a_flags_or_the_files_names(checkpoints, name, flags, scores):
    save_file(NETWORK, checkpoints / name)
    outputs = outputs_of(checkpoints, *RELU, *flags, x=FIVE)
    assert sorted(outputs) == sorted(["action", scores])
    same(outputs[scores], LOGITS if scores == Q else softmax(LOGITS))


@pytest.mark.parametrize("name", ["SA101", "policy_net", "dqn_and_ppo"])
def test_outputs_of_unknown_meaning_get_no_invented_probabilities(checkpoints, name, capsys):
    save_file(NETWORK, checkpoints / f"{name}.safetensors")
    outputs = outputs_of(checkpoints, *RELU, x=FIVE)
    assert "pass --scores probabilities if they are logits" in capsys.readouterr().out
    same(outputs[Q], LOGITS)


def test_names_of_modules_take_precedence_over_the_files(checkpoints):
    save_file(linear_layers(("actor.0", 8, 5), ("actor.2", 3, 8)), checkpoints / "dqn.safetensors")
    assert PROBABILITIES in outputs_of(checkpoints, *RELU, x=FIVE)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("name", "scores"), [("dqn", Q), ("SA101_actor", PROBABILITIES)])
def test_a_keras_models_outputs_mean_what_its_file_is_called(whole, name, scores, checkpoints):
    model = writers.sequential(keras3, head="linear", outputs=3)
    if whole:
        model.save(checkpoints / f"{name}.keras")
    else:
        model.save_weights(checkpoints / f"{name}.weights.h5")
    outputs = outputs_of(checkpoints, "--action", "categorical")
    expected = actions(model) if scores == Q else softmax(actions(model))
    same(outputs[scores], expected)
    np.testing.assert_array_equal(outputs["action"], expected.argmax(axis=1))


def test_a_softmax_proves_probabilities(checkpoints, capsys):
    model = writers.sequential(keras3, head="softmax", outputs=3)
    model.save(checkpoints / "SA101.keras")
    refuses(capsys, checkpoints, "gives probabilities, but", flags=("--action", "categorical", "--scores", Q))
    same(outputs_of(checkpoints, "--action", "categorical")["probabilities"], actions(model))


def test_a_dueling_networks_graph_gives_its_q_values_and_not_its_advantages(checkpoints):
    """A softmax of both is the same, so probabilities cannot tell them apart."""
    x = keras3.Input((9,))
    hidden = keras3.layers.Dense(8, "relu")(x)
    value, advantage = keras3.layers.Dense(1)(hidden), keras3.layers.Dense(3)(hidden)
    model = writers.randomise(keras3.Model(x, keras3.layers.Add()([value, advantage])))
    model.save(checkpoints / "dueling_dqn.keras")
    same(outputs_of(checkpoints, "--action", "categorical")["q_values"], actions(model))


def test_scores_of_city_toml_are_those_of_the_model(checkpoints, tmp_path, capsys):
    (tmp_path / "city.toml").write_text(
        '[tl.SA101]\nsignals = ["SA101"]\ndialect = "sumo-rl"\nscores = "q_values"\nhidden_activation = "relu"\n'
    )
    writers.sequential(keras3, head="linear", outputs=3).save_weights(checkpoints / "SA101.weights.h5")
    flags = ("--city", tmp_path / "city.toml")
    assert "q_values" in outputs_of(checkpoints, *flags)
    (tmp_path / "city.toml").write_text('[tl.SA101]\nsignals = ["SA101"]\ndialect = "sumo-rl"\nscores = "q"\n')
    refuses(capsys, checkpoints, "scores 'q' is neither", flags=(*flags, "--overwrite"))
    assert export(checkpoints, *flags, "--scores", "probabilities", "--overwrite") == 0
