"""Statistics of the learning, under the names that stable-baselines3's logger gives them."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from city.errors import ProgramFailed
from training.transitions import Float32s, Transitions

PREFIX = "train/"


class NotFinite(ProgramFailed):
    """A loss or weight is NaN or infinite."""


@dataclass(frozen=True)
class UpdateStatistics:
    """Means over the decisions that an update has learned from.

    The gradients' norms, before they are clipped, are no statistics of stable-baselines3; it clips actor and critic
    together.
    """

    decisions: int
    approx_kl: float
    """Mean of (r - 1) - log r over the last epoch, r the ratio of the new and the old probability of an action."""
    clip_fraction: float
    """Share of the decisions whose ratio is outside of 1 +- clip."""
    explained_variance: float
    """1 - variance of (target - value) / variance of the critic's targets, before the update; NaN without variance."""
    entropy_loss: float
    """-entropy of the policy."""
    policy_gradient_loss: float
    value_loss: float
    actor_gradient_norm: float
    critic_gradient_norm: float

    def named(self) -> dict[str, float]:
        """By stable-baselines3's names."""
        return {f"{PREFIX}{name}": value for name, value in asdict(self).items() if name != "decisions"}


TRAIN = tuple(f"{PREFIX}{name}" for name in UpdateStatistics.__dataclass_fields__ if name != "decisions")
EPISODE_REWARD, EPISODE_LENGTH, FPS = "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps"
NAMES = (EPISODE_REWARD, EPISODE_LENGTH, FPS, *TRAIN)
IN_CURVES = tuple(name for name in NAMES if name != FPS)
"""Of a curve: without wall times, the same training has the same curve and state, byte for byte."""


class Rollouts:
    """Statistics of a run's episodes."""

    def __init__(self) -> None:
        """Begin to measure the time; an earlier run that this one resumes does not count."""
        self._decisions, self._started_s = 0, time.monotonic()

    def statistics(self, transitions: Sequence[Transitions]) -> dict[str, float]:
        """Statistics of an update's transitions, of which there is one by TL and episode.

        Returns:
            Mean sum of rewards, mean number of decisions, and the decisions a second since the run's beginning, in
            which simulations, updates and evaluations take their time.
        """
        self._decisions += sum(len(tl.reward) for tl in transitions)
        values = {FPS: self._decisions / (time.monotonic() - self._started_s)}
        if transitions:
            values[EPISODE_REWARD] = float(np.mean([tl.reward.sum(dtype=np.float64) for tl in transitions]))
            values[EPISODE_LENGTH] = float(np.mean([len(tl.reward) for tl in transitions]))
        return values


def combined(parts: Sequence[UpdateStatistics]) -> dict[str, float]:
    """Means of several networks' statistics by their decisions, by name; empty without parts."""
    result = {}
    for name in TRAIN if parts else ():
        values = np.array([part.named()[name] for part in parts])
        weights = np.array([part.decisions for part in parts])
        measured = ~np.isnan(values)
        result[name] = float(np.average(values[measured], weights=weights[measured])) if measured.any() else math.nan
    return result


def explained_variance(pairs: Sequence[tuple[Float32s, Float32s]]) -> float:
    """The explained variance of pairs (values, targets) of networks that learn apart; NaN without variance."""
    unexplained = sum(float(len(target) * np.var(target.astype(np.float64) - value)) for value, target in pairs)
    variance = sum(float(len(target) * np.var(target.astype(np.float64))) for _, target in pairs)
    return 1.0 - unexplained / variance if variance else math.nan


def cell(value: float | None) -> str:
    """A value in the curve; empty if it was not measured."""
    return "" if value is None or math.isnan(value) else f"{value:.6g}"


def summary(values: Mapping[str, float]) -> str:
    """Statistics for a progress line."""
    names = [name for name in (EPISODE_REWARD, *TRAIN) if name in values]
    texts = [f"{name.partition('/')[2]} {values[name]:.3g}" for name in names]
    return ", ".join([*texts, f"{values[FPS]:.0f} fps"])
