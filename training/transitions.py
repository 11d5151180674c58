"""Transitions of TLs in an episode, and the scale of their rewards."""

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
    """[T], of the action, by the policy that chose it."""
    value: Float32s
    """[T], the critic's estimate."""
    reward: Float32s
    """[T], for the time until the next decision; the last one is not measured, and 0."""
    duration_s: Float32s
    """[T], the time until the next decision; 0 for the last one."""
    is_difference: bool = False
    """True if a reward is the change of a value since the last decision, which time does not multiply; else it is a
    mean or a reading."""


class RewardScale:
    """Divides a row's rewards by the standard deviation of their discounted sum, so that one learning rate suits every
    street.

    The variance is an exponential average over updates of the variance within an update's episodes. So it follows a
    policy that learns, with a memory of some ten updates. Its weights add up to 1 from the first update on, as those of
    Adam's moments: the first update, of a policy that has learned nothing, counts no more than another.
    stable-baselines3's VecNormalize differs: its variance is that of all steps since the start, and it clips scaled
    rewards at 10. Here nothing is clipped.
    """

    DECAY = 0.9
    """Weight of the old average in an update."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self.sums = 0.0, 0.0
        """(sum of the weighted variances, sum of their weights)."""

    @property
    def variance(self) -> float:
        """The average; 0 before the first update."""
        total, weight = self.sums
        return total / weight if weight else 0.0

    def update(self, episodes: Sequence[Transitions]) -> float:
        """Measure the rewards of these episodes; return the factor for them."""
        sums = []
        for episode in episodes:
            total = 0.0
            for reward in episode.reward[:-1].tolist():
                total = self._gamma * total + reward
                sums.append(total)
        if sums:
            total, weight = self.sums
            share = 1 - self.DECAY
            self.sums = self.DECAY * total + share * float(np.var(sums)), self.DECAY * weight + share
        return 1.0 / (np.sqrt(self.variance) + 1e-6) if self.variance else 1.0
