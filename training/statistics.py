"""Statistics of the learning, under the names that stable-baselines3's logger gives them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from city.errors import ProgramFailed
from training.transitions import Float32s, Transitions


class NotFinite(ProgramFailed):
    """A loss or weight is NaN or infinite."""


UpdateStatistics = dict[str, float]
"""Means over the decisions that an update has learned from, by name of UPDATE, and `decisions`, their number."""
STEP = (
    "decisions",
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",  # -entropy of the policy
    "approx_kl",  # mean of (r - 1) - log r over the last epoch, r the ratio of an action's new and old probability
    "clip_fraction",  # share of the decisions whose ratio is outside of 1 +- clip
    "actor_gradient_norm",  # before it is clipped; stable-baselines3 has none, and clips actor and critic together
    "critic_gradient_norm",
)
"""Statistics of a step of the optimiser."""
UPDATE = (
    "approx_kl", "clip_fraction", "explained_variance", "entropy_loss", "policy_gradient_loss", "value_loss",
    "actor_gradient_norm", "critic_gradient_norm",
)  # fmt: skip
TRAIN = tuple(f"train/{name}" for name in UPDATE)
EPISODE_REWARD, EPISODE_LENGTH, FPS = "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps"
IN_CURVES = (EPISODE_REWARD, EPISODE_LENGTH, *TRAIN)
"""Columns of a curve: without wall times, the same training has the same curve and state, byte for byte."""


def of_rollouts(transitions: Sequence[Transitions]) -> dict[str, float]:
    """Mean sum of rewards and mean number of decisions, of an update's transitions: one by TL and episode."""
    if not transitions:
        return {}
    rewards = [tl.reward for tl in transitions]
    return {
        EPISODE_REWARD: float(np.mean([reward.sum(dtype=np.float64) for reward in rewards])),
        EPISODE_LENGTH: float(np.mean([len(reward) for reward in rewards])),
    }


def combined(parts: Sequence[UpdateStatistics]) -> dict[str, float]:
    """Means of several networks' statistics by their decisions, by stable-baselines3's names; empty without parts."""
    result = {}
    for name in UPDATE if parts else ():
        values, weights = np.array([(part[name], part["decisions"]) for part in parts]).T
        measured = ~np.isnan(values)
        mean = float(np.average(values[measured], weights=weights[measured])) if measured.any() else math.nan
        result[f"train/{name}"] = mean
    return result


def explained_variance(pairs: Sequence[tuple[Float32s, Float32s]]) -> float:
    """1 - variance of (target - value) / variance of the targets, NaN without variance.

    `pairs`: (values before the update, targets) of networks that learn apart.
    """
    unexplained = sum(float(len(target) * np.var(target.astype(np.float64) - value)) for value, target in pairs)
    variance = sum(float(len(target) * np.var(target.astype(np.float64))) for _, target in pairs)
    return 1.0 - unexplained / variance if variance else math.nan


def cell(value: float | None) -> str:
    """A value in the curve, with 6 digits if it is not a count; empty if it was not measured."""
    if value is None or math.isnan(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def summary(values: Mapping[str, float]) -> str:
    """Statistics for a progress line."""
    shown = (EPISODE_REWARD, *TRAIN)
    texts = [f"{name.partition('/')[2]} {values[name]:.3g}" for name in shown if name in values]
    return ", ".join([*texts, f"{values[FPS]:.0f} fps"])
