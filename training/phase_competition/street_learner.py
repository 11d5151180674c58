"""The learner of the shared networks of streets: the computation of `networks`, in TensorFlow."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from export.actors import phase_competition_graph as graph
from export.actors.phase_competition import GREEN_INPUTS, JUNCTION_RANKS, LANE_INPUTS, MIN_LOG_PROBABILITY
from training.optimisers import Adam
from training.phase_competition.networks import ACTOR
from training.ppo import Learner, Tensors
from training.ppo_config import StreetPpo
from training.transitions import Float32s


class Inputs(NamedTuple):
    """The inputs of N decisions, as `export.actors.phase_competition_graph` takes them."""

    junctions: graph.Junction
    lane_x: tf.Tensor
    green_x: tf.Tensor


class StreetLearner(Learner):
    """Updates the actors' and the critics' arrays, [networks, *shape]; mostly of one network. They learn together."""

    value_weight = 0.5
    specs = {  # noqa: RUF012 - never changed
        "junction": tf.TensorSpec([1, None], tf.int32),
        "lane_x": tf.TensorSpec([1, None, None, LANE_INPUTS], tf.float32),
        "green_x": tf.TensorSpec([1, None, None, GREEN_INPUTS], tf.float32),
        "allowed": tf.TensorSpec([1, None, None], tf.bool),
        "action": tf.TensorSpec([1, None], tf.int32),
    }
    shared_specs = {  # noqa: RUF012 - never changed
        name: tf.TensorSpec([None] * (1 + rank), tf.float32) for name, rank in JUNCTION_RANKS.items()
    }

    def __init__(self, arrays: Sequence[Float32s], ppo: StreetPpo) -> None:
        variables = [tf.Variable(array) for array in arrays]
        self.actor, self._critic = variables[:ACTOR], variables[ACTOR:]
        super().__init__(ppo, variables, [Adam(self.actor), Adam(self._critic)])

    def outputs(self, decisions: Tensors, shared: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        inputs, allowed = inputs_of(decisions, shared), decisions["allowed"][0]
        # the actor decided among these greens (invalid action masking: Huang and Ontanon 2022)
        all_log_p = self.log_p(inputs, allowed)
        log_p = tf.gather(all_log_p, decisions["action"][0], batch_dims=1)
        entropy = -tf.reduce_sum(tf.exp(all_log_p) * tf.where(allowed, all_log_p, 0.0), -1)
        values = [graph.value(critic, *inputs)[..., 0] for critic in _each(self._critic)]
        return log_p[None], entropy[None], (tf.add_n(values) / len(values))[None]

    def log_p(self, inputs: Inputs, allowed: tf.Tensor) -> tf.Tensor:
        """Log-probabilities [N, P] of the product of the networks' policies, among the allowed greens [N, P]."""
        total = 0.0
        for actor in _each(self.actor):
            y = self.sharpness * graph.scores(actor, *inputs)[..., 0]
            total += tf.maximum(tf.nn.log_softmax(y), MIN_LOG_PROBABILITY)
        return tf.nn.log_softmax(tf.where(allowed, total, graph.PADDING_SCORE))


def inputs_of(decisions: Tensors, shared: Tensors) -> Inputs:
    """The inputs for decisions at the shared junctions."""
    junctions = {name: tf.gather(array, decisions["junction"][0]) for name, array in shared.items()}
    return Inputs(junctions, decisions["lane_x"][0][:, :, None], decisions["green_x"][0][:, :, None])


def _each(variables: Sequence[tf.Variable]) -> list[tuple[tf.Tensor, ...]]:
    return list(zip(*(tf.unstack(variable) for variable in variables), strict=True))
