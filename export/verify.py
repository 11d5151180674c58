"""Proof of a written SavedModel: loaded as TensorFlow Serving loads it, it acts as the checkpoint.

TensorFlow Serving restores a SavedModel into a TF1-style session. An object may
load in Python and still miss its variables there, so that is what is tried.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from export import warmup
from export.actors import Actor, numpy_actor
from protos import policy_pb2 as pb
from serving.contract import ACTION, INPUT, POLICY_OUTPUT, POLICY_SIGNATURE, PROBABILITIES, SIGNATURE

TOLERANCE = 1e-5
OBSERVATIONS = 256


class NotProved(Exception):
    """The written model does not act as its checkpoint; it must not be published."""


def prove(folder: Path, actor: Actor, policy: pb.Policy) -> float:
    """The largest absolute difference to the checkpoint's own actor. Raises NotProved.

    Compared on random observations, standard normal and in [0, 1], and on the
    warm-up records, which are replayed on the way.
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((OBSERVATIONS // 2, actor.inputs)), rng.random((OBSERVATIONS // 2, actor.inputs))])
    observations = x.astype(np.float32)
    categorical = policy.action.kind == "categorical"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        try:
            loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
            run = _runner(session, loaded)
            for signature, inputs in warmup.read(folder):
                run(signature, inputs)
            outputs = run(SIGNATURE, {INPUT: observations})
            told = run(POLICY_SIGNATURE, {"rows": np.zeros(3, np.int32)})[POLICY_OUTPUT]
        except (tf.errors.OpError, KeyError, ValueError, RuntimeError) as error:
            raise NotProved(f"the session loader cannot run it: {str(error).splitlines()[0][:300]}") from error
    if list(told) != [policy.SerializeToString(deterministic=True)] * 3:
        raise NotProved("signature 'policy' does not give the contract in every row")
    expected = numpy_actor.evaluate(actor, observations, categorical)
    got = outputs[PROBABILITIES] if categorical else outputs[ACTION]
    difference = float(np.abs(got - expected).max())
    if not difference <= TOLERANCE:
        raise NotProved(f"its actions differ from the checkpoint's by up to {difference:.3g}, more than {TOLERANCE:g}")
    if categorical:
        top = np.sort(expected, axis=1)
        clear = top[:, -1] - top[:, -2] > 2 * TOLERANCE if expected.shape[1] > 1 else np.ones(len(top), bool)
        if (outputs[ACTION] != expected.argmax(axis=1))[clear].any():
            raise NotProved("its chosen actions are not the checkpoint's most probable ones")
    return difference


def _runner(session, loaded):  # type: ignore[no-untyped-def]
    def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        definition = loaded.signature_def[signature]
        feed = {definition.inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: info.name for key, info in definition.outputs.items()}, feed)

    return run
