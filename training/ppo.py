"""Proximal policy optimisation (Schulman et al. 2017, clipped) of all TLs' actors and critics at once, in TensorFlow.

The variables are the arrays of `actor_critics`. Batch, gradient norm and Adam are separate for
every row, so that the rows are independent of each other.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from training.actor_critics import MASKED_LOGIT, MAX_LOG_STD, MIN_LOG_STD, ActorCritics
from training.ppo_config import PpoConfig
from training.statistics import NotFinite, UpdateStatistics, explained_variance
from training.transitions import Batch, Float32s

MAX_GRADIENT_NORM = 0.5
ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-7
GAUSSIAN_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)
"""Entropy of a standard normal distribution."""
STATISTICS, LOSSES = 7, 3
"""Number of the statistics of a step: policy loss, value loss and entropy, which must be finite, KL divergence, clip
fraction and the norms of the actor's and the critic's gradients."""


class Learner:
    """The optimiser of one layout's networks."""

    def __init__(self, networks: ActorCritics, ppo: PpoConfig) -> None:
        self.networks, self._ppo = networks, ppo
        layout = networks.layout
        self._variables = [tf.Variable(array) for array in networks.arrays]
        self._moments = [[tf.Variable(tf.zeros_like(v), trainable=False) for v in self._variables] for _ in range(2)]
        self._updates = tf.Variable(tf.zeros(layout.row_count), trainable=False)
        """Adam's step count by row: a row without decisions in a minibatch is not updated."""
        self._learning_rate = tf.Variable(ppo.learning_rate, trainable=False)
        self._layers = len(layout.hidden) + 1
        self._is_categorical = layout.is_categorical
        self._mask = tf.constant(layout.action_mask, tf.float32)
        self._entropy = tf.Variable(ppo.entropy, trainable=False)
        self._sharpness = tf.Variable(1.0, trainable=False)
        rows, observation = layout.row_count, max(layout.observation_sizes)
        action = 1 if self._is_categorical else max(layout.action_sizes)
        columns = [tf.TensorSpec([rows, None, *rest], tf.float32) for rest in ([observation], [action], [], [], [])]
        minibatches = [tf.TensorSpec([None, rows, None], kind) for kind in (tf.int32, tf.float32)]
        self._run = tf.function(self._steps, input_signature=[*columns, *minibatches])

    def trace(self) -> None:
        """Trace the graph of an update, which takes seconds; otherwise the first update does."""
        self._run.get_concrete_function()

    def learn(
        self, batches: Sequence[Batch | None], rng: np.random.Generator, progress: float
    ) -> UpdateStatistics | None:
        """Update every row that has a batch; return statistics, None without a batch. Raises NotFinite.

        Args:
            batches: by row.
            rng: draws the order of the minibatches.
            progress: share of the training in [0, 1], for the schedules of learning rate, entropy bonus and sharpness.
        """
        sizes = [0 if batch is None else len(batch.target) for batch in batches]
        size = max(sizes)
        if size == 0:
            return None
        self._learning_rate.assign(self._ppo.learning_rate_at(progress))
        self._entropy.assign(self._ppo.entropy_at(progress))
        self._sharpness.assign(self._ppo.sharpness(progress))
        first = next(batch for batch in batches if batch is not None)
        columns = []
        for name in ("x", "action", "log_p", "advantage", "target"):
            sample = getattr(first, name)
            column = np.zeros((len(batches), size, *sample.shape[1:]), np.float32)
            for row, batch in enumerate(batches):
                if batch is not None:
                    column[row, : sizes[row]] = getattr(batch, name)
            columns.append(tf.constant(column))
        indices, weights = self._minibatches(sizes, rng)
        statistics, learned = (each.numpy() for each in self._run(*columns, tf.constant(indices), tf.constant(weights)))
        arrays = [variable.numpy() for variable in self._variables]
        if not np.isfinite(statistics[..., :LOSSES]).all() or not all(np.isfinite(array).all() for array in arrays):
            raise NotFinite("a loss or a weight is not finite; train with a lower --learning-rate")
        self.networks.arrays[:] = arrays
        explained = explained_variance([(batch.value, batch.target) for batch in batches if batch is not None])
        return _summarised(statistics, learned * weights.sum(2), self._ppo.epochs, sum(sizes), explained)

    def _minibatches(self, sizes: Sequence[int], rng: np.random.Generator) -> tuple[NDArray[np.int32], Float32s]:
        """(indices into each row's batch, weights, 0 for padding), both [steps, rows, B]."""
        width = min(self._ppo.minibatch, max(sizes))
        per_epoch = -(-max(sizes) // width)
        shape = (self._ppo.epochs * per_epoch, len(sizes), width)
        indices, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for epoch in range(self._ppo.epochs):
            for row, size in enumerate(sizes):
                order = np.zeros(per_epoch * width, np.int32)
                order[:size] = rng.permutation(size)
                steps = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
                indices[steps, row] = order.reshape(per_epoch, width)
                weights[steps, row] = (np.arange(per_epoch * width) < size).reshape(per_epoch, width)
        return indices, weights

    def _steps(
        self, x: tf.Tensor, action: tf.Tensor, log_p: tf.Tensor, advantage: tf.Tensor, target: tf.Tensor,
        indices: tf.Tensor, weights: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
        """Run all steps; return the statistics [steps, rows, STATISTICS], and which rows have learned, 1 or 0 [steps,
        rows]."""
        columns, rows = (x, action, log_p, advantage, target), self.networks.layout.row_count
        statistics = tf.TensorArray(tf.float32, tf.shape(indices)[0], element_shape=(rows, STATISTICS))
        learned = tf.TensorArray(tf.float32, tf.shape(indices)[0], element_shape=(rows,))
        learns = tf.ones(rows)
        for step in tf.range(tf.shape(indices)[0]):
            minibatch = [tf.gather(column, indices[step], axis=1, batch_dims=1) for column in columns]
            learned = learned.write(step, learns)
            values, learns = self._step(minibatch, weights[step], learns)
            statistics = statistics.write(step, values)
        return statistics.stack(), learned.stack()

    def _step(
        self, minibatch: Sequence[tf.Tensor], weight: tf.Tensor, learns: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Learn from a minibatch.

        Args:
            minibatch: columns [rows, B, ...].
            weight: [rows, B], 0 for padding.
            learns: [rows], 0 for a row whose update has ended.

        Returns:
            Statistics [rows, STATISTICS], and `learns` for the next minibatch.
        """
        x, action, log_p_old, advantage, target = minibatch
        share = weight / tf.maximum(tf.reduce_sum(weight, 1, keepdims=True), 1.0)
        actor_count = 2 * self._layers
        with tf.GradientTape() as tape:
            y = self._forward(self._variables[:actor_count], x)
            if self._is_categorical:
                y = tf.where(self._mask[:, None] > 0, self._sharpness * y, MASKED_LOGIT)
                all_log_p = tf.nn.log_softmax(y)
                log_p = tf.gather(all_log_p, tf.cast(action[..., 0], tf.int32), batch_dims=2)
                entropies = share * -tf.reduce_sum(tf.exp(all_log_p) * all_log_p, -1)
            else:
                log_std = tf.clip_by_value(self._variables[-1], MIN_LOG_STD, MAX_LOG_STD)[:, None]
                z = (action - tf.tanh(y)) / tf.exp(log_std)
                log_p = tf.reduce_sum((-0.5 * z**2 - log_std) * self._mask[:, None], -1)
                # a Gaussian's, without its constant
                entropies = share * tf.reduce_sum(log_std * self._mask[:, None], -1)
            entropy = tf.reduce_sum(entropies)
            ratio = tf.exp(log_p - log_p_old)
            clipped = tf.clip_by_value(ratio, 1 - self._ppo.clip, 1 + self._ppo.clip)
            gains = share * tf.minimum(ratio * advantage, clipped * advantage)
            policy_loss = -tf.reduce_sum(gains)
            value = self._forward(self._variables[actor_count:-1], x)[..., 0]
            errors = share * (value - target) ** 2
            value_loss = tf.reduce_sum(errors)
            loss = policy_loss + value_loss - self._entropy * entropy
        gradients = tape.gradient(loss, self._variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # clipped separately: the critic's large early errors must not shrink the actor's steps
        actor, actor_norm = clipped_by_row([*gradients[:actor_count], gradients[-1]])
        critic, critic_norm = clipped_by_row(gradients[actor_count:-1])
        gradients = [*actor[:-1], *critic, actor[-1]]
        kl = tf.reduce_sum(share * (ratio - 1 - (log_p - log_p_old)), 1)
        fraction = tf.reduce_sum(share * tf.cast(tf.abs(ratio - 1) > self._ppo.clip, tf.float32), 1)
        own_losses = [-tf.reduce_sum(gains, 1), tf.reduce_sum(errors, 1)]
        own_entropy = tf.reduce_sum(entropies, 1)
        if not self._is_categorical:
            own_entropy += GAUSSIAN_ENTROPY * tf.reduce_sum(self._mask, 1)
        is_active = tf.cast(tf.reduce_sum(weight, 1) > 0, tf.float32)
        if self._ppo.max_kl is not None:
            learns *= tf.cast(kl <= self._ppo.max_kl, tf.float32)
            is_active *= learns
        self._apply(gradients, is_active)
        return tf.stack([*own_losses, own_entropy, kl, fraction, actor_norm, critic_norm], 1), learns

    def _apply(self, gradients: Sequence[tf.Tensor], is_active: tf.Tensor) -> None:
        """Apply Adam (Kingma and Ba 2015) row by row. `is_active`: [rows], 1 for rows to update."""
        self._updates.assign_add(is_active)
        count = tf.maximum(self._updates, 1.0)
        rate = self._learning_rate * tf.sqrt(1 - ADAM_BETA2**count) / (1 - ADAM_BETA1**count) * is_active
        for variable, gradient, m, v in zip(self._variables, gradients, *self._moments, strict=True):
            active = _by_row(is_active, variable)
            m.assign_add(active * (1 - ADAM_BETA1) * (gradient - m))
            v.assign_add(active * (1 - ADAM_BETA2) * (gradient**2 - v))
            variable.assign_sub(_by_row(rate, variable) * m / (tf.sqrt(v) + ADAM_EPSILON))

    def _forward(self, variables: Sequence[tf.Variable], x: tf.Tensor) -> tf.Tensor:
        for k in range(self._layers):
            x = tf.matmul(x, variables[2 * k]) + variables[2 * k + 1][:, None]
            if k + 1 < self._layers:
                x = tf.nn.relu(x)
        return x

    def state(self) -> list[NDArray[np.generic]]:
        """The state to resume from: weights, then Adam's moments and step counts."""
        return [variable.numpy() for variable in self._state_variables()]

    def _state_variables(self) -> list[tf.Variable]:
        return [*self._variables, *self._moments[0], *self._moments[1], self._updates]

    def restore(self, state: Sequence[NDArray[np.generic]]) -> None:
        """Set the state that `state` returned. Raises ValueError for another layout's."""
        for variable, array in zip(self._state_variables(), state, strict=True):
            variable.assign(array)
        self.networks.arrays[:] = [variable.numpy() for variable in self._variables]


def clipped_by_row(gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
    """(gradients, scaled so that the norm of each row is at most MAX_GRADIENT_NORM; the norms [rows] before)."""
    squares = [tf.reduce_sum(tf.reshape(g, (tf.shape(g)[0], -1)) ** 2, 1) for g in gradients]
    norms = tf.sqrt(tf.add_n(squares))
    factor = MAX_GRADIENT_NORM / tf.maximum(norms, MAX_GRADIENT_NORM)
    return [g * _by_row(factor, g) for g in gradients], norms


def _summarised(
    statistics: Float32s, counts: Float32s, epochs: int, decisions: int, explained_variance: float
) -> UpdateStatistics:
    """Means over the decisions.

    Args:
        statistics: by step and row, [steps, rows, STATISTICS].
        counts: number of decisions that they are of, [steps, rows].
        epochs: number of epochs.
        decisions: number of the batch's decisions.
        explained_variance: of the critic, before the update.
    """
    by_epoch = counts.reshape(epochs, -1, counts.shape[1])
    was_run = by_epoch.sum(1) > 0
    last = epochs - 1 - was_run[::-1].argmax(0)
    is_last = (np.arange(epochs)[:, None] == last)[:, None] & (by_epoch > 0)
    policy_loss, value_loss, entropy, _, fraction, *norms = np.average(
        statistics.reshape(-1, STATISTICS), 0, counts.reshape(-1)
    ).tolist()
    kl = np.average(statistics[..., 3].reshape(by_epoch.shape)[is_last], weights=by_epoch[is_last])
    return UpdateStatistics(
        decisions, float(kl), fraction, explained_variance, -entropy, policy_loss, value_loss, *norms
    )


def _by_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Reshape one value per row [rows] so that it broadcasts over an array [rows, ...]."""
    return tf.reshape(values, (-1, *([1] * (len(like.shape) - 1))))
