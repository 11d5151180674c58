"""Proximal policy optimisation (Schulman et al. 2017, clipped) of the shared networks, in TensorFlow."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from export.actors import phase_competition_graph as graph
from export.actors.phase_competition import GREEN_INPUTS, LANE_INPUTS, MIN_LOG_PROBABILITY, Padded
from training.phase_competition.batch import StreetBatch
from training.phase_competition.networks import ACTOR
from training.ppo import ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON, MAX_GRADIENT_NORM
from training.ppo_config import StreetPpo
from training.statistics import NotFinite, UpdateStatistics, explained_variance
from training.transitions import Float32s

STATISTICS = 7
"""Number of the statistics of a step: those of `UpdateStatistics`, without explained variance."""
KL = 3
"""Index of the KL divergence in them."""


class StreetLearner:
    """The optimiser of the actors' and the critics' arrays, [networks, *shape]; mostly of one network."""

    def __init__(self, arrays: Sequence[Float32s], ppo: StreetPpo) -> None:
        self._ppo = ppo
        self._variables = [tf.Variable(array) for array in arrays]
        self._moments = [[tf.Variable(tf.zeros_like(v), trainable=False) for v in self._variables] for _ in range(2)]
        self._steps = tf.Variable(0.0, trainable=False)
        self._learning_rate, self._entropy, self._sharpness = (tf.Variable(x, trainable=False) for x in (0.0, 0.0, 1.0))
        floats, ints = tf.float32, tf.int32
        junctions = {field.name: tf.TensorSpec([None] * _RANKS[field.name], floats) for field in fields(Padded)}
        decision = [
            tf.TensorSpec([None], ints), tf.TensorSpec([None, None, LANE_INPUTS], floats),
            tf.TensorSpec([None, None, GREEN_INPUTS], floats), tf.TensorSpec([None], ints),
        ]  # fmt: skip
        of_ppo = [tf.TensorSpec([None, None], tf.bool), *[tf.TensorSpec([None], floats)] * 3]
        self._step = tf.function(self._ppo_step, input_signature=[junctions, *decision, *of_ppo])
        self._clone_step = tf.function(self._cloning_step, input_signature=[junctions, *decision])

    def trace(self) -> None:
        """Trace the graph of a minibatch, which takes seconds; otherwise the first update does."""
        self._step.get_concrete_function()

    @property
    def arrays(self) -> list[Float32s]:
        return [variable.numpy() for variable in self._variables]

    def learn(self, batch: StreetBatch, rng: np.random.Generator, progress: float) -> UpdateStatistics:
        """Update the networks. Raises NotFinite.

        `progress`: share of the training in [0, 1], for the schedules of learning rate, entropy bonus and sharpness.
        """
        self._learning_rate.assign(self._ppo.learning_rate_at(progress))
        self._entropy.assign(self._ppo.entropy_at(progress))
        self._sharpness.assign(self._ppo.sharpness(progress))
        junctions = {name: tf.constant(array) for name, array in vars(batch.junctions).items()}
        decision = (batch.junction, batch.lane_x, batch.green_x, batch.action)
        columns = (*decision, batch.allowed, batch.log_p, batch.advantage, batch.target)
        statistics: list[Float32s] = []
        epoch: list[Float32s] = []
        for _ in range(self._ppo.epochs):
            order, epoch = rng.permutation(len(batch)), []
            for part in np.array_split(order, max(1, round(len(order) / self._ppo.minibatch))):
                epoch.append(self._step(junctions, *(tf.constant(column[part]) for column in columns)).numpy())
                if self._exceeds_max_kl(epoch[-1][KL]):
                    break
            statistics += epoch
            if self._exceeds_max_kl(epoch[-1][KL]):
                break
        mean = np.mean(statistics, 0)
        if not np.isfinite(mean).all() or not all(np.isfinite(array).all() for array in self.arrays):
            raise NotFinite("a loss or a weight is not finite; train with a lower --learning-rate")
        policy_loss, value_loss, entropy, _, fraction, *norms = mean.tolist()
        explained = explained_variance([(batch.value, batch.target)])
        kl = float(np.mean([step[KL] for step in epoch]))
        return UpdateStatistics(len(batch), kl, fraction, explained, -entropy, policy_loss, value_loss, *norms)

    def clone(self, batch: StreetBatch, rng: np.random.Generator, steps: int) -> float:
        """Fit the actor to the actions of a batch (behaviour cloning); return the last mean cross-entropy."""
        self._learning_rate.assign(self._ppo.learning_rate)
        self._sharpness.assign(1.0)
        junctions = {name: tf.constant(array) for name, array in vars(batch.junctions).items()}
        columns = (batch.junction, batch.lane_x, batch.green_x, batch.action)
        losses = []
        for _ in range(steps):
            part = rng.integers(0, len(batch), min(self._ppo.minibatch, len(batch)))
            losses.append(float(self._clone_step(junctions, *(tf.constant(column[part]) for column in columns))))
        return float(np.mean(losses[-10:]))

    def soften(self, factor: float) -> None:
        """Multiply the actor's last layer, so that it explores beyond what it was cloned from."""
        for variable in self._variables[ACTOR - 2 : ACTOR]:
            variable.assign(variable * factor)

    def _ppo_step(
        self, junctions: dict[str, tf.Tensor], junction: tf.Tensor, lane_x: tf.Tensor, green_x: tf.Tensor,
        action: tf.Tensor,
        allowed: tf.Tensor, log_p_old: tf.Tensor, advantage: tf.Tensor, target: tf.Tensor,
    ) -> tf.Tensor:  # fmt: skip
        own = {name: tf.gather(array, junction) for name, array in junctions.items()}
        with tf.GradientTape() as tape:
            # the actor decided among these greens (invalid action masking: Huang and Ontanon 2022)
            all_log_p = self._log_p(self._variables[:ACTOR], own, lane_x, green_x, allowed)
            log_p = tf.gather(all_log_p, action, batch_dims=1)
            entropy = tf.reduce_mean(-tf.reduce_sum(tf.exp(all_log_p) * tf.where(allowed, all_log_p, 0.0), -1))
            ratio = tf.exp(log_p - log_p_old)
            clipped = tf.clip_by_value(ratio, 1 - self._ppo.clip, 1 + self._ppo.clip)
            policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
            critics = zip(*(tf.unstack(v) for v in self._variables[ACTOR:]), strict=True)
            values = [graph.value(critic, own, lane_x[:, :, None], green_x[:, :, None])[..., 0] for critic in critics]
            value = tf.add_n(values) / len(values)
            value_loss = tf.reduce_mean((value - target) ** 2)
            loss = policy_loss + 0.5 * value_loss - self._entropy * entropy
        gradients = tape.gradient(loss, self._variables)
        kl = tf.reduce_mean(ratio - 1 - (log_p - log_p_old))
        fraction = tf.reduce_mean(tf.cast(tf.abs(ratio - 1) > self._ppo.clip, tf.float32))
        norms = [tf.linalg.global_norm(part) for part in (gradients[:ACTOR], gradients[ACTOR:])]
        if self._ppo.max_kl is None or kl <= self._ppo.max_kl:
            self._apply(gradients, self._variables)
        return tf.stack([policy_loss, value_loss, entropy, kl, fraction, *norms])

    def _exceeds_max_kl(self, kl: Any) -> bool:
        return self._ppo.max_kl is not None and not kl <= np.float32(self._ppo.max_kl)

    def _log_p(
        self,
        actors: Sequence[tf.Variable],
        junction: graph.Junction,
        lane_x: tf.Tensor,
        green_x: tf.Tensor,
        allowed: tf.Tensor,
    ) -> tf.Tensor:
        """Log-probabilities [N, P] of the product of the networks' policies, among the greens that are allowed."""
        total = 0.0
        for actor in zip(*(tf.unstack(v) for v in actors), strict=True):
            y = self._sharpness * graph.scores(actor, junction, lane_x[:, :, None], green_x[:, :, None])[..., 0]
            total += tf.maximum(tf.nn.log_softmax(y), MIN_LOG_PROBABILITY)
        return tf.nn.log_softmax(tf.where(allowed, total, graph.PADDING_SCORE))

    def _cloning_step(
        self,
        junctions: dict[str, tf.Tensor],
        junction: tf.Tensor,
        lane_x: tf.Tensor,
        green_x: tf.Tensor,
        action: tf.Tensor,
    ) -> tf.Tensor:
        own = {name: tf.gather(array, junction) for name, array in junctions.items()}
        actor = self._variables[:ACTOR]
        with tf.GradientTape() as tape:
            y = self._log_p(actor, own, lane_x, green_x, own["green_mask"] > 0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(action, y))
        self._apply(tape.gradient(loss, actor), actor)
        return loss

    def _apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        """Apply Adam (Kingma and Ba 2015). The critic's large early errors must not shrink the actor's steps."""
        actor, _ = tf.clip_by_global_norm(gradients[:ACTOR], MAX_GRADIENT_NORM)
        critic = tf.clip_by_global_norm(gradients[ACTOR:], MAX_GRADIENT_NORM)[0] if len(gradients) > ACTOR else []
        self._steps.assign_add(1.0)
        rate = self._learning_rate * tf.sqrt(1 - ADAM_BETA2**self._steps) / (1 - ADAM_BETA1**self._steps)
        for variable, gradient, m, v in zip(variables, [*actor, *critic], *self._moments, strict=False):
            m.assign_add((1 - ADAM_BETA1) * (gradient - m))
            v.assign_add((1 - ADAM_BETA2) * (gradient**2 - v))
            variable.assign_sub(rate * m / (tf.sqrt(v) + ADAM_EPSILON))

    def state(self) -> list[NDArray[np.generic]]:
        """The state to resume from: weights, then Adam's moments and step count."""
        return [variable.numpy() for variable in self._state_variables()]

    def restore(self, state: Sequence[NDArray[np.generic]]) -> None:
        """Set the state that `state` returned. Raises ValueError for another one."""
        for variable, array in zip(self._state_variables(), state, strict=True):
            variable.assign(array)

    def _state_variables(self) -> list[tf.Variable]:
        return [*self._variables, *self._moments[0], *self._moments[1], self._steps]


_RANKS = {
    "protected": 3, "permissive": 3, "change": 3, "kept": 3, "following": 3, "lanes": 3, "interval": 2, "green_mask": 2,
    "lane_mask": 2,
}  # fmt: skip
