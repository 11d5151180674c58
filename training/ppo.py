"""Proximal policy optimisation (Schulman et al. 2017, clipped) of all TLs' actors and critics at once, in TensorFlow.

The arrays of `actor_critics` are the variables. Every row learns from its own batch, with its
own gradient norm and its own Adam, so that the rows are independent of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from city.errors import ProgramFailed
from training.actor_critics import MASKED_LOGIT, MAX_LOG_STD, MIN_LOG_STD, ActorCritics
from training.transitions import Batch, Float32s

MAX_GRADIENT_NORM = 0.5
SHARP_FROM = 0.8
"""Share of the training after which the sharpness stays the same."""
ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-7


@dataclass(frozen=True)
class PpoConfig:
    """Hyperparameters."""

    learning_rate: float = 1e-3
    gamma: float = 0.97
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    epochs: int = 8
    minibatch: int = 128
    final_sharpness: float = 10.0
    """Factor of categorical actors' logits at the end. A street gets the best action only, never a sample: a policy that
    has always explored may wait forever where no observation changes. As the factor rises from 1, such waits occur in
    training, and the policy learns to avoid them."""

    def sharpness(self, progress: float) -> float:
        """The factor at a share of the training in [0, 1]: geometric up to SHARP_FROM, then constant."""
        return float(self.final_sharpness ** min(1.0, progress / SHARP_FROM))


class NotFinite(ProgramFailed):
    """A loss or weight is NaN or infinite."""


class Learner:
    """The optimiser of one layout's networks."""

    def __init__(self, networks: ActorCritics, ppo: PpoConfig) -> None:
        self.networks, self._ppo = networks, ppo
        layout = networks.layout
        self._variables = [tf.Variable(array) for array in networks.arrays]
        self._moments = [[tf.Variable(tf.zeros_like(v), trainable=False) for v in self._variables] for _ in range(2)]
        self._updates = tf.Variable(tf.zeros(layout.row_count), trainable=False)
        """By row; a row without decisions in a minibatch is not updated, so that it does not depend on the others."""
        self._learning_rate = tf.Variable(ppo.learning_rate, trainable=False)
        self._layers = len(layout.hidden) + 1
        self._is_categorical = layout.is_categorical
        self._mask = tf.constant(layout.action_mask, tf.float32)
        self._entropy = tf.Variable(ppo.entropy, trainable=False)
        self._sharpness = tf.Variable(1.0, trainable=False)
        self._run = tf.function(self._steps, reduce_retracing=True)

    def learn(self, batches: Sequence[Batch | None], rng: np.random.Generator, progress: float) -> dict[str, float]:
        """Update every row that has a batch; return the losses, for logs. Raises NotFinite.

        Args:
            batches: by row.
            rng: order of the minibatches.
            progress: in [0, 1]; learning rate and entropy bonus fall linearly to 5 % at 1.
        """
        sizes = [0 if batch is None else len(batch.target) for batch in batches]
        size = max(sizes)
        if size == 0:
            return {}
        decay = 1.0 - 0.95 * progress
        self._learning_rate.assign(self._ppo.learning_rate * decay)
        self._entropy.assign(self._ppo.entropy * decay)
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
        losses = self._run(*columns, tf.constant(indices), tf.constant(weights)).numpy()
        arrays = [variable.numpy() for variable in self._variables]
        if not np.isfinite(losses).all() or not all(np.isfinite(array).all() for array in arrays):
            raise NotFinite("a loss or a weight is not finite any more")
        self.networks.arrays[:] = arrays
        return dict(zip(("policy_loss", "value_loss", "entropy"), losses.tolist(), strict=True))

    def _minibatches(self, sizes: Sequence[int], rng: np.random.Generator) -> tuple[NDArray[np.int32], Float32s]:
        """(index [steps, rows, B] into each row's batch, weight: 0 for padding)."""
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
    ) -> tf.Tensor:  # fmt: skip
        losses = tf.zeros(3)
        for step in tf.range(tf.shape(indices)[0]):
            at = indices[step]
            part = [tf.gather(column, at, axis=1, batch_dims=1) for column in (x, action, log_p, advantage, target)]
            losses += self._step(part, weights[step])
        return losses / tf.cast(tf.shape(indices)[0], tf.float32)

    def _step(self, part: Sequence[tf.Tensor], weight: tf.Tensor) -> tf.Tensor:
        x, action, log_p_old, advantage, target = part
        share = weight / tf.maximum(tf.reduce_sum(weight, 1, keepdims=True), 1.0)
        actor_count = 2 * self._layers
        with tf.GradientTape() as tape:
            y = self._forward(self._variables[:actor_count], x)
            if self._is_categorical:
                y = tf.where(self._mask[:, None] > 0, self._sharpness * y, MASKED_LOGIT)
                all_log_p = tf.nn.log_softmax(y)
                log_p = tf.gather(all_log_p, tf.cast(action[..., 0], tf.int32), batch_dims=2)
                entropy = tf.reduce_sum(share * -tf.reduce_sum(tf.exp(all_log_p) * all_log_p, -1))
            else:
                log_std = tf.clip_by_value(self._variables[-1], MIN_LOG_STD, MAX_LOG_STD)[:, None]
                z = (action - tf.tanh(y)) / tf.exp(log_std)
                log_p = tf.reduce_sum((-0.5 * z**2 - log_std) * self._mask[:, None], -1)
                # of a Gaussian, but for a constant
                entropy = tf.reduce_sum(share * tf.reduce_sum(log_std * self._mask[:, None], -1))
            ratio = tf.exp(log_p - log_p_old)
            clipped = tf.clip_by_value(ratio, 1 - self._ppo.clip, 1 + self._ppo.clip)
            policy_loss = -tf.reduce_sum(share * tf.minimum(ratio * advantage, clipped * advantage))
            value = self._forward(self._variables[actor_count:-1], x)[..., 0]
            value_loss = tf.reduce_sum(share * (value - target) ** 2)
            loss = policy_loss + value_loss - self._entropy * entropy
        gradients = tape.gradient(loss, self._variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # apart: the critic's large early errors must not shrink the actor's steps
        actor = [*gradients[:actor_count], gradients[-1]]
        actor, critic = clipped_by_row(actor), clipped_by_row(gradients[actor_count:-1])
        gradients = [*actor[:-1], *critic, actor[-1]]
        self._apply(gradients, tf.cast(tf.reduce_sum(weight, 1) > 0, tf.float32))
        return tf.stack([policy_loss, value_loss, entropy])

    def _apply(self, gradients: Sequence[tf.Tensor], is_active: tf.Tensor) -> None:
        """Adam (Kingma and Ba 2015) of every row by itself. `is_active`: [rows], 1 for rows that are updated."""
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
        """Everything that resuming needs: weights, then Adam's moments and counts."""
        return [variable.numpy() for variable in self._all()]

    def _all(self) -> list[tf.Variable]:
        return [*self._variables, *self._moments[0], *self._moments[1], self._updates]

    def restore(self, state: Sequence[NDArray[np.generic]]) -> None:
        for variable, array in zip(self._all(), state, strict=True):
            variable.assign(array)
        self.networks.arrays[:] = [variable.numpy() for variable in self._variables]


def clipped_by_row(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Gradients whose norm, row by row, is at most MAX_GRADIENT_NORM."""
    squares = [tf.reduce_sum(tf.reshape(g, (tf.shape(g)[0], -1)) ** 2, 1) for g in gradients]
    factor = MAX_GRADIENT_NORM / tf.maximum(tf.sqrt(tf.add_n(squares)), MAX_GRADIENT_NORM)
    return [g * _by_row(factor, g) for g in gradients]


def _by_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """A number per row, shaped to be multiplied with an array that has more dimensions."""
    return tf.reshape(values, (-1, *([1] * (len(like.shape) - 1))))
