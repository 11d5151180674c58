"""Behaviour cloning: the actor is fitted to the heuristic before it explores."""

import numpy as np
import tensorflow as tf

from training.phase_competition.street_learner import StreetLearner, inputs_of
from training.ppo import Batch, Tensors, taken

MEAN_STEPS = 10
"""Last steps over whose losses the mean is taken."""


def clone(learner: StreetLearner, batch: Batch, junctions: Batch, rng: np.random.Generator, steps: int) -> float:
    """Fit the actor to the actions of a batch, whatever greens were allowed; return the last mean cross-entropy.

    Args:
        learner: has the actor.
        batch: the decisions, and the junctions that they share.
        junctions: as `phase_competition.batch.make_batch` returns them.
        rng: draws the decisions of each step.
        steps: of the optimiser.
    """
    learner.set_schedules(learner.ppo.learning_rate, sharpness=1.0)
    actor_optimiser, _ = learner.optimisers

    def step(columns: Tensors, shared: Tensors, indices: tf.Tensor) -> tf.Tensor:
        decisions = taken(columns, indices)
        inputs = inputs_of(decisions, shared)
        with tf.GradientTape() as tape:
            y = learner.log_p(inputs, inputs.junctions["green_mask"] > 0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(decisions["action"][0], y))
        actor_optimiser.step(tape.gradient(loss, learner.actor), tf.ones(1))
        return loss

    run = tf.function(step, input_signature=[*learner.data_specs, tf.TensorSpec([1, None], tf.int32)])
    data = learner.tensors([batch], junctions)
    shape = 1, min(learner.ppo.minibatch, len(batch["target"]))
    losses = [float(run(*data, rng.integers(0, len(batch["target"]), shape, np.int32))) for _ in range(steps)]
    return float(np.mean(losses[-MEAN_STEPS:]))
