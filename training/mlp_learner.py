"""The learner of one layout's separate networks, a row each: the computation of `actor_critics`, in TensorFlow."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from training.actor_critics import MASKED_LOGIT, ParameterLayout
from training.ppo import Batch, Learner, RowAdam, Tensors, gae
from training.settings import PpoConfig
from training.transitions import Float32s, Transitions

MIN_LOG_STD, MAX_LOG_STD = -3.0, 1.0
GAUSSIAN_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)
"""Entropy of a standard normal distribution."""


class MlpLearner(Learner):
    """Updates actors and critics of a row each."""

    def __init__(self, layout: ParameterLayout, arrays: Sequence[Float32s], ppo: PpoConfig) -> None:
        layers = [tf.Variable(array) for array in arrays[:-1]]
        # clipped after each step, and not in the loss: beyond the bounds a clipped value has no gradient
        log_std = tf.Variable(arrays[-1], constraint=lambda value: tf.clip_by_value(value, MIN_LOG_STD, MAX_LOG_STD))
        self._log_std, self._is_categorical = log_std, layout.is_categorical
        self._actor, self._critic = layers[: len(layers) // 2], layers[len(layers) // 2 :]
        self._activate = tf.nn.tanh if layout.activation == "tanh" else tf.nn.relu
        self._mask = tf.constant(layout.action_mask, tf.float32)[:, None]
        sizes = {"x": max(layout.observation_sizes), "action": 1 if layout.is_categorical else max(layout.action_sizes)}
        self.specs = {name: tf.TensorSpec([layout.row_count, None, size], tf.float32) for name, size in sizes.items()}
        parts = [*self._actor, log_std], self._critic
        super().__init__(ppo, [*layers, log_std], [RowAdam(part, ppo.max_grad_norm) for part in parts])

    def outputs(self, decisions: Tensors, shared: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        y, value = (_forward(layers, decisions["x"], self._activate) for layers in (self._actor, self._critic))
        value = value[..., 0]
        if self._is_categorical:
            all_log_p = tf.nn.log_softmax(tf.where(self._mask > 0, self.sharpness * y, MASKED_LOGIT))
            log_p = tf.gather(all_log_p, tf.cast(decisions["action"][..., 0], tf.int32), batch_dims=2)
            return log_p, -tf.reduce_sum(tf.exp(all_log_p) * all_log_p, -1), value
        log_std = self._log_std[:, None]
        z = (decisions["action"] - tf.tanh(y)) / tf.exp(log_std)
        log_p = tf.reduce_sum((-0.5 * z**2 - log_std) * self._mask, -1)
        entropy = tf.reduce_sum((log_std + GAUSSIAN_ENTROPY) * self._mask, -1)
        return log_p, entropy + tf.zeros_like(log_p), value


def make_batch(episodes: Sequence[Transitions], reward_factor: float, ppo: PpoConfig) -> Batch | None:
    """Make a row's batch, in which each decision is a tick; None without decisions.

    The last decision of an episode is left out: its value stands for the rewards after the end.
    """
    episodes = [episode for episode in episodes if len(episode.value) > 1]
    if not episodes:
        return None
    advantages = []
    for episode in episodes:
        reward, value = reward_factor * episode.reward[:-1].astype(float), episode.value.astype(float)
        advantages.append(gae(reward, value, np.ones(len(reward)), ppo.gamma, ppo.gae_lambda))
    advantage = np.concatenate(advantages)
    names = "x", "action", "log_p", "value"
    batch = {name: np.concatenate([getattr(episode, name)[:-1] for episode in episodes]) for name in names}
    target = (advantage + batch["value"]).astype(np.float32)
    if ppo.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    return {**batch, "advantage": advantage.astype(np.float32), "target": target}


def _forward(layers: Sequence[tf.Variable], x: tf.Tensor, activate: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """The outputs [rows, B, ...] of networks whose last layer is linear. `layers`: kernels and biases in turn."""
    for k in range(0, len(layers), 2):
        x = tf.matmul(x, layers[k]) + layers[k + 1][:, None]
        if k + 2 < len(layers):
            x = activate(x)
    return x
