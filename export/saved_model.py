"""Writing the inference-only SavedModel: variables, two signatures, assets.extra."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from export.actors import Activation, Actor, BatchNorm, Branch, Dense
from protos import policy_pb2 as pb
from serving.contract import ACTION, INPUT, POLICY_INPUT, POLICY_OUTPUT, POLICY_SIGNATURE, PROBABILITIES, SIGNATURE, to_json

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": tf.nn.relu,
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "tanh": tf.tanh,
    "leaky_relu": tf.nn.leaky_relu,
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "sigmoid": tf.sigmoid,
    "softplus": tf.nn.softplus,
    "linear": tf.identity,
}


class _Served(tf.Module):
    """Plain tf.Variables in a tf.Module: what TensorFlow Serving's session loader restores.

    Keras 3 layers inside a module load in Python but not there.
    """

    def __init__(self, actor: Actor, policy: pb.Policy) -> None:
        super().__init__(name="actor")
        self._steps = actor.steps
        self.weights = {
            f"{k}_{part}": tf.Variable(values, trainable=False, name=f"{k}_{part}")
            for k, step in enumerate(actor.steps)
            for part in ("kernel", "bias", "gamma", "beta", "mean", "variance")
            if (values := getattr(step, part, None)) is not None
        }
        self._categorical = policy.action.kind == "categorical"
        self._contract = policy.SerializeToString(deterministic=True)
        self.act = tf.function(self._act, input_signature=[tf.TensorSpec([None, actor.inputs], tf.float32, name=INPUT)])
        self.tell = tf.function(self._tell, input_signature=[tf.TensorSpec([None], tf.int32, name=POLICY_INPUT)])

    def _act(self, observation: Any) -> dict[str, Any]:
        x, branches = observation, []
        for k, step in enumerate(self._steps):
            weight = {part: self.weights.get(f"{k}_{part}") for part in ("kernel", "bias", "gamma", "beta", "mean", "variance")}
            if isinstance(step, Dense):
                x = tf.linalg.matmul(x, weight["kernel"])
                x = x if weight["bias"] is None else tf.nn.bias_add(x, weight["bias"])
            elif isinstance(step, BatchNorm):
                x = tf.nn.batch_normalization(
                    x, weight["mean"], weight["variance"], weight["beta"], weight["gamma"], step.epsilon
                )
            elif isinstance(step, Activation):
                x = _ACTIVATIONS[step.kind](x)
            elif isinstance(step, Branch):
                branches.append(x)
            else:
                x = x + branches.pop()
        if self._categorical:
            return {ACTION: tf.argmax(x, axis=1, output_type=tf.int64), PROBABILITIES: tf.nn.softmax(x)}
        return {ACTION: tf.identity(x)}

    def _tell(self, rows: Any) -> dict[str, Any]:
        return {POLICY_OUTPUT: tf.fill(tf.shape(rows), tf.constant(self._contract))}


def write(folder: Path, actor: Actor, policy: pb.Policy) -> None:
    """Write the SavedModel of an actor into an empty folder."""
    served = _Served(actor, policy)
    tf.saved_model.save(served, str(folder), signatures={SIGNATURE: served.act, POLICY_SIGNATURE: served.tell})
    extra = folder / "assets.extra"
    extra.mkdir()
    (extra / "policy.json").write_text(to_json(policy), encoding="utf-8")
