"""What TLs experienced in an episode: observations, actions, rewards; and what PPO learns from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Transitions:
    """The decisions of one TL in one episode, in order; arrays with one row per decision."""

    x: Float32s
    """[T, O]."""
    action: Float32s
    """[T, 1] or [T, A]."""
    log_p: Float32s
    """[T], of the action when it was chosen."""
    value: Float32s
    """[T], the critic's."""
    reward: Float32s
    """[T], of the time until the next decision; the last one is unknown."""


@dataclass(frozen=True)
class Batch:
    """What one row of the networks learns from; arrays with one row per decision."""

    x: Float32s
    action: Float32s
    log_p: Float32s
    advantage: Float32s
    target: Float32s
    """What the critic should answer."""


class RewardScale:
    """Divides a row's rewards by the standard deviation of their discounted sum, so that one learning rate suits every street.

    As stable-baselines3's VecNormalize does it; averaged over updates.
    """

    DECAY = 0.9
    """Share of the running average that an update leaves."""

    def __init__(self, gamma: float, variance: float = 0.0) -> None:
        self._gamma = gamma
        self.variance = variance
        """0: none was measured yet."""

    def update(self, episodes: Sequence[Transitions]) -> float:
        """Measure the rewards of these episodes; return the factor for them."""
        sums = []
        for episode in episodes:
            total = 0.0
            for reward in episode.reward[:-1].tolist():
                total = self._gamma * total + reward
                sums.append(total)
        if sums:
            measured = float(np.var(sums))
            self.variance = self.DECAY * self.variance + (1 - self.DECAY) * measured if self.variance else measured
        return 1.0 / (np.sqrt(self.variance) + 1e-6) if self.variance else 1.0


def make_batch(episodes: Sequence[Transitions], reward_factor: float, gamma: float, gae_lambda: float) -> Batch | None:
    """Generalised advantage estimates (Schulman et al. 2016) of a row's episodes; None: there are no decisions.

    The last decision of an episode is left out: its value stands for all that would have followed.
    """
    parts = [(each, _advantages(each, reward_factor, gamma, gae_lambda)) for each in episodes if len(each.value) > 1]
    if not parts:
        return None
    advantage = np.concatenate([advantage for _, advantage in parts])
    value = np.concatenate([each.value[:-1] for each, _ in parts])
    return Batch(
        np.concatenate([each.x[:-1] for each, _ in parts]),
        np.concatenate([each.action[:-1] for each, _ in parts]),
        np.concatenate([each.log_p[:-1] for each, _ in parts]),
        ((advantage - advantage.mean()) / (advantage.std() + 1e-6)).astype(np.float32),
        (advantage + value).astype(np.float32),
    )


def _advantages(episode: Transitions, reward_factor: float, gamma: float, gae_lambda: float) -> NDArray[np.float64]:
    value, reward = episode.value.tolist(), (reward_factor * episode.reward).tolist()
    result = np.empty(len(value) - 1)
    advantage = 0.0
    for k in range(len(result) - 1, -1, -1):
        advantage = reward[k] + gamma * value[k + 1] - value[k] + gamma * gae_lambda * advantage
        result[k] = advantage
    return result
