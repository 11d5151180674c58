"""Proof of a written SavedModel: loaded as TensorFlow Serving loads it, it acts as the checkpoint.

TensorFlow Serving restores a SavedModel into a TF1-style session. An object may
load in Python and still miss its variables there, so that is what is tried.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from city.errors import first_line
from export.actors import Actor, numpy_actor
from export.graphs.graph_actor import GraphActor, ReferenceModel
from export.saved_model import warmup
from protos import policy_pb2 as pb
from serving.contract import ACTION, INPUT, POLICY_INPUT, POLICY_OUTPUT, POLICY_SIGNATURE, PROBABILITIES, SIGNATURE

TOLERANCE = 1e-5
OBSERVATIONS = 256

Run = Callable[[str, dict[str, Any]], dict[str, NDArray[Any]]]
"""(signature, inputs by key) -> outputs by key."""


class ParityError(Exception):
    """The written model does not act as its checkpoint; it must not be published."""


def observations(size: int) -> NDArray[np.float32]:
    """[OBSERVATIONS, size] to compare answers on: standard normal, and in [0, 1]."""
    rng, half = np.random.default_rng(0), OBSERVATIONS // 2
    return np.concatenate([rng.standard_normal((half, size)), rng.random((half, size))]).astype(np.float32)


def prove(folder: Path, actor: Actor | GraphActor, policy: pb.PolicyContract, reference_model: ReferenceModel | None) -> float:
    """The largest absolute difference to the checkpoint's own actor. Raises ParityError.

    Compared with the trainer's own graph where there is one, else with a NumPy
    evaluation, on random observations and on the warm-up records, which are
    replayed on the way.
    """
    x = observations(actor.inputs)
    categorical = policy.action.kind == "categorical"
    with session(folder) as run:
        replay(folder, run)
        outputs = run(SIGNATURE, {INPUT: x})
        check_contract(run, policy)
    if reference_model is not None:
        expected = reference_model.evaluate(x, categorical)
    else:
        assert isinstance(actor, Actor)
        expected = numpy_actor.evaluate(actor, x, categorical)
    got = outputs[PROBABILITIES] if categorical else outputs[ACTION]
    difference = float(np.abs(got - expected).max())
    if not difference <= TOLERANCE:
        raise ParityError(f"its actions differ from the checkpoint's by up to {difference:.3g}, more than {TOLERANCE:g}")
    if categorical:
        check_choices(outputs[ACTION], expected)
    return difference


def check_contract(run: Run, policy: pb.PolicyContract) -> None:
    """Raise ParityError unless signature `policy` tells the contract in every row."""
    told = run(POLICY_SIGNATURE, {POLICY_INPUT: np.zeros(3, np.int32)})[POLICY_OUTPUT]
    if list(told) != [policy.SerializeToString(deterministic=True)] * 3:
        raise ParityError("signature 'policy' does not give the contract in every row")


def check_choices(chosen: NDArray[Any], expected: NDArray[Any]) -> None:
    """Raise ParityError unless the chosen actions are the most probable ones, near ties aside."""
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 2 * TOLERANCE if expected.shape[1] > 1 else np.ones(len(top), bool)
    if (chosen != expected.argmax(axis=1))[clear].any():
        raise ParityError("its chosen actions are not the checkpoint's most probable ones")


def replay(folder: Path, run: Run) -> None:
    """Run every warm-up record of a model once."""
    for signature, inputs in warmup.read(folder):
        run(signature, inputs)


@contextmanager
def session(folder: Path, options: Any = None) -> Iterator[Run]:
    """A model loaded as TensorFlow Serving loads it, ready to run. Raises ParityError where it cannot be."""
    with tf.Graph().as_default(), tf.compat.v1.Session(config=options) as opened:
        try:
            loaded = tf.compat.v1.saved_model.load(opened, ["serve"], str(folder))
        except (tf.errors.OpError, KeyError, ValueError, RuntimeError) as error:
            raise ParityError(f"the session loader cannot load it: {first_line(error)}") from error

        def run(signature: str, inputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
            try:
                definition = loaded.signature_def[signature]
                feed = {definition.inputs[key].name: value for key, value in inputs.items()}
                found: dict[str, NDArray[Any]] = opened.run({key: info.name for key, info in definition.outputs.items()}, feed)
                return found
            except (tf.errors.OpError, KeyError, ValueError, TypeError, RuntimeError) as error:
                raise ParityError(f"the session loader cannot run signature {signature!r}: {first_line(error)}") from error

        yield run
