"""Writing the inference-only SavedModel: variables, two signatures, assets.extra."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from export.checkpoints import Actor
from protos import policy_pb2 as pb
from serving.contract import ACTION, INPUT, POLICY_INPUT, POLICY_OUTPUT, POLICY_SIGNATURE, PROBABILITIES, SIGNATURE, to_json


class _Served(tf.Module):
    """Plain tf.Variables in a tf.Module: what TensorFlow Serving's session loader restores.

    Keras 3 layers inside a module load in Python but not there.
    """

    def __init__(self, actor: Actor, policy: pb.Policy) -> None:
        super().__init__(name="actor")
        self._kernels = [tf.Variable(layer.kernel, trainable=False, name=f"kernel_{k}") for k, layer in enumerate(actor.layers)]
        self._biases = [
            tf.Variable(layer.bias, trainable=False, name=f"bias_{k}") if layer.bias is not None else None
            for k, layer in enumerate(actor.layers)
        ]
        self._categorical = policy.action.kind == "categorical"
        self._contract = policy.SerializeToString(deterministic=True)
        self.act = tf.function(self._act, input_signature=[tf.TensorSpec([None, actor.inputs], tf.float32, name=INPUT)])
        self.tell = tf.function(self._tell, input_signature=[tf.TensorSpec([None], tf.int32, name=POLICY_INPUT)])

    def _act(self, observation: Any) -> dict[str, Any]:
        x = observation
        for k, (kernel, bias) in enumerate(zip(self._kernels, self._biases, strict=True)):
            x = tf.linalg.matmul(x, kernel)
            if bias is not None:
                x = tf.nn.bias_add(x, bias)
            if k < len(self._kernels) - 1:
                x = tf.nn.relu(x)
        if self._categorical:
            return {ACTION: tf.argmax(x, axis=1, output_type=tf.int64), PROBABILITIES: tf.nn.softmax(x)}
        return {ACTION: tf.tanh(x)}

    def _tell(self, rows: Any) -> dict[str, Any]:
        return {POLICY_OUTPUT: tf.fill(tf.shape(rows), tf.constant(self._contract))}


def write(folder: Path, actor: Actor, policy: pb.Policy) -> None:
    """Write the SavedModel of an actor into an empty folder."""
    served = _Served(actor, policy)
    tf.saved_model.save(served, str(folder), signatures={SIGNATURE: served.act, POLICY_SIGNATURE: served.tell})
    extra = folder / "assets.extra"
    extra.mkdir()
    (extra / "policy.json").write_text(to_json(policy), encoding="utf-8")
