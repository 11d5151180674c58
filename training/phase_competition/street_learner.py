"""The learner of the shared networks of streets: the computation of `networks`, in TensorFlow."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from export.actors import phase_competition_graph as graph
from export.actors.phase_competition import GREEN_INPUTS, LANE_INPUTS, PADDING_SCORE, Service
from training.phase_competition.networks import ACTOR
from training.ppo import Adam, Learner, Tensors
from training.ppo_config import StreetPpo
from training.transitions import Float32s


class Inputs(NamedTuple):
    """The inputs of N decisions, as `export.actors.phase_competition_graph` takes them."""

    junctions: graph.Junction
    """Their masks."""
    service: Service
    lane_x: tf.Tensor
    green_x: tf.Tensor


class StreetLearner(Learner):
    """Updates the actor's and the critic's arrays. They learn together."""

    specs = {  # noqa: RUF012 - never changed
        "junction": tf.TensorSpec([1, None], tf.int32),
        "lane_x": tf.TensorSpec([1, None, None, LANE_INPUTS], tf.float32),
        "green_x": tf.TensorSpec([1, None, None, GREEN_INPUTS], tf.float32),
        "protected": tf.TensorSpec([1, None, None, None], tf.float32),
        "permissive": tf.TensorSpec([1, None, None, None], tf.float32),
        "allowed": tf.TensorSpec([1, None, None], tf.bool),
        "action": tf.TensorSpec([1, None], tf.int32),
    }
    shared_specs = {  # noqa: RUF012 - never changed
        name: tf.TensorSpec([None, None], tf.float32) for name in ("green_mask", "lane_mask")
    }

    def __init__(self, arrays: Sequence[Float32s], ppo: StreetPpo) -> None:
        variables = [tf.Variable(array) for array in arrays]
        self.actor, self._critic = variables[:ACTOR], variables[ACTOR:]
        super().__init__(ppo, variables, [Adam(part, ppo.max_grad_norm) for part in (self.actor, self._critic)])

    def outputs(self, decisions: Tensors, shared: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        inputs, allowed = inputs_of(decisions, shared), decisions["allowed"][0]
        # the actor decided among these greens (invalid action masking: Huang and Ontanon 2022)
        all_log_p = self.log_p(inputs, allowed)
        log_p = tf.gather(all_log_p, decisions["action"][0], batch_dims=1)
        entropy = -tf.reduce_sum(tf.exp(all_log_p) * tf.where(allowed, all_log_p, 0.0), -1)
        return log_p[None], entropy[None], graph.value(self._critic, *inputs)[None]

    def log_p(self, inputs: Inputs, allowed: tf.Tensor) -> tf.Tensor:
        """Log-probabilities [N, P] among the allowed greens [N, P]."""
        y = self.sharpness * graph.scores(self.actor, *inputs)
        return tf.nn.log_softmax(tf.where(allowed, y, PADDING_SCORE))


def inputs_of(decisions: Tensors, shared: Tensors) -> Inputs:
    """The inputs for decisions at the shared junctions."""
    junctions = {name: tf.gather(array, decisions["junction"][0]) for name, array in shared.items()}
    # the rest of it is in lane_x and in the allowed greens
    service = Service(decisions["protected"][0], decisions["permissive"][0], None, None)
    return Inputs(junctions, service, decisions["lane_x"][0], decisions["green_x"][0])
