"""Every step of an actor: its NumPy value, its TensorFlow operations, its JSON and its sizes agree."""

import json

import numpy as np
import pytest
import tensorflow as tf

from export.actors import Actor
from export.actors.activations import ACTIVATIONS
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
