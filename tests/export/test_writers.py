"""Every kind of training output, written by its real writer, exported and compared with the trainer's own model."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export import writers
from tests.export.exporting import exported, manifest, refuses, same, version
from tests.export.writers import WHOLE, X, actions, keras2, keras3

v1 = tf.compat.v1


WEIGHT_PARTS = {
    "keras 2, TF format": (keras2, lambda model, at: model.save_weights(str(at / "x-trial_3_SA_101_actor"))),
    "keras 2, HDF5": (keras2, lambda model, at: model.save_weights(str(at / "x-trial_3_SA_101_actor.h5"))),
    "keras 3": (keras3, lambda model, at: model.save_weights(at / "x-trial_3_SA_101_actor.weights.h5")),
    "checkpoint of keras 2": (keras2, lambda model, at: tf.train.Checkpoint(actor=model).write(str(at / "SA101-3"))),
    "checkpoint of keras 3": (keras3, lambda model, at: tf.train.Checkpoint(actor=model).write(str(at / "SA101-3"))),
    "npz": (keras3, lambda model, at: np.savez(at / "SA101_trial_3.npz", **{w.path: w.numpy() for w in model.weights})),
    "npz with dots": (
        keras3,
        lambda model, at: np.savez(
            at / "SA101_trial_3.npz", **{w.path.replace("/", ".") + ":0": w.numpy() for w in reversed(model.weights)}
        ),
    ),
}


MLPS = [(kind, how) for kind in ("sequential", "subclassed") for how in WEIGHT_PARTS]
MLPS.remove(("subclassed", "npz with dots"))  # names that are not counted must stand in their order


@pytest.mark.parametrize(("kind", "how"), MLPS)
def test_weights_of_an_mlp_are_read_from_every_writer(kind, how, checkpoints):
    keras, write = WEIGHT_PARTS[how]
    model = getattr(writers, kind)(keras)
    write(model, checkpoints)
    same(exported(checkpoints), actions(model))
    assert version(checkpoints).name == "3"


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.filterwarnings("ignore")
def test_whole_models_need_no_architecture(how, checkpoints):
    keras, write = WHOLE[how]
    model = writers.functional(keras)
    write(model, checkpoints)
    same(exported(checkpoints), actions(model))
    recorded = manifest(checkpoints)
    assert recorded["actor"]["architecture"] == "graph" and "trainer's own graph" in recorded["parity"]["reference"]
    assert len(recorded["variables"]) == 10, "three dense layers and a norm; no optimizer, no counters"
    names = {entry["from"].rsplit("/", 1)[-1] for entry in recorded["variables"]}
    assert names == {"kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"}


DAILY = ("keras 2 SavedModel", "keras 2 .h5", "keras 3 .keras")


@pytest.mark.parametrize(
    "how", [*DAILY, *(pytest.param(how, marks=pytest.mark.slow) for how in WHOLE if how not in DAILY)]
)
@pytest.mark.filterwarnings("ignore")
def test_whole_models_define_their_activations(how, checkpoints, capsys):
    keras, write = WHOLE[how]
    model = writers.sequential(keras, hidden="elu")
    write(model, checkpoints)
    same(exported(checkpoints), actions(model))
    assert "(mlp elu tanh" in capsys.readouterr().out


@pytest.mark.parametrize("keras", [keras2, keras3])
def test_subclassed_saved_models_without_defined_inputs_are_exported(keras, checkpoints):
    model = writers.subclassed(keras)
    tf.saved_model.save(model, str(checkpoints / "SA101_trial_3"))
    same(exported(checkpoints), actions(model))


def test_weights_of_a_model_of_unknown_classes_can_be_used(checkpoints, capsys):
    model = writers.subclassed(keras3)
    model.save(checkpoints / "SA101_trial_3.keras")
    refuses(capsys, checkpoints, "its wiring is unknown", "--actor NAME to take only its weights")
    same(exported(checkpoints, "--actor", "mlp"), actions(model))


def test_weights_of_an_unknown_architecture_are_refused(checkpoints, capsys):
    writers.functional(keras3).save_weights(checkpoints / "SA101_trial_3.weights.h5")
    refuses(
        capsys, checkpoints, "SA101_trial_3.weights.h5", "3 dense layers and 1 batch norms", "--actor MODULE:FUNCTION"
    )


@pytest.mark.parametrize(
    "write",
    [tf.saved_model.save, lambda agent, path: tf.train.Checkpoint(agent=agent, step=tf.Variable(1)).write(path)],
    ids=["SavedModel without signatures", "lists of plain variables"],
)
def test_modules_with_a_function_or_lists_of_variables_are_exported(write, checkpoints):
    agent = writers.Agent()
    write(agent, str(checkpoints / "SA101_trial_2"))
    same(exported(checkpoints), agent(X).numpy())


class Heads(tf.Module):
    """What trainers export: mean, value, a sampled action and its log-probability."""

    def __init__(self):
        super().__init__()
        self.actor = writers.sequential(keras3)
        self.critic = writers.sequential(keras3, head="linear", outputs=1)

    @tf.function(
        input_signature=[tf.TensorSpec([None, 9], tf.float32, "observation"), tf.TensorSpec([], tf.bool, "training")]
    )
    def act(self, observation, training):
        mean = self.actor(observation)
        noise = tf.random.normal(tf.shape(mean))
        return {
            "action": mean + noise,
            "mean": mean,
            "value": self.critic(observation),
            "log_prob": -tf.reduce_sum(noise**2, axis=1, keepdims=True),
        }


def test_of_several_outputs_only_the_mean_is_exported(checkpoints, capsys):
    agent = Heads()
    tf.saved_model.save(agent, str(checkpoints / "SA101_trial_2"), signatures={"act": agent.act})
    same(exported(checkpoints), actions(agent.actor))
    assert len(manifest(checkpoints)["variables"]) == 6
    capsys.readouterr()
    named = ("--overwrite", "--output-tensor")
    refuses(capsys, checkpoints, "is random", "--output-tensor", flags=(*named, "action"))
    there = "has no output nothing; there are action, log_prob, mean, value"
    refuses(capsys, checkpoints, there, flags=(*named, "nothing"))
    same(exported(checkpoints, "--overwrite", "--output-tensor", "act:mean"), actions(agent.actor))
