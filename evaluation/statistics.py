"""Means with 95 % intervals, paired differences (the same demand in both arms), and the comparison of many streets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES, BOOTSTRAP_SEED = 9999, 1
V = TypeVar("V")
BySignal = Mapping[str, Mapping[str, V]]
"""Signal -> name of a movement or lane group -> value."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval (Student's t) of values; a single value has an unbounded interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def paired(candidate: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Mean and 95 % interval of the paired differences candidate - baseline."""
    return interval([a - b for a, b in zip(candidate, baseline, strict=True)])


def mean_by_signal(simulations: Sequence[BySignal[V]], labels: Mapping[str, str] = {}) -> dict[str, dict[str, V]]:
    """Means of simulations with the same signals and names.

    `V`: a dataclass of numbers; None is left out. `labels`: names of signals in the result (default: their own).
    """
    return {
        labels.get(signal, signal): {
            name: _mean([by_signal[signal][name] for by_signal in simulations]) for name in names
        }
        for signal, names in simulations[0].items()
    }


def _mean(values: Sequence[Any]) -> Any:
    """The first of several values of a dataclass, with the means of its fields; flags stay."""
    means = {}
    for name in (each.name for each in fields(values[0])):
        known = [number for value in values if (number := getattr(value, name)) is not None]
        if known and not isinstance(known[0], bool):
            means[name] = float(np.mean(known))
    return replace(values[0], **means)


def population(count: int, varies: bool) -> str:
    """The simulations that the intervals of an evaluation are over, as a sentence. `varies`: their demand varies."""
    if varies:
        return (
            f"The intervals are over {count} varied demands: samples of the demand's vehicles, more or fewer of them, "
            "at other times, with other drivers."
        )
    return (
        f"The intervals are over {count} simulations of one demand with other drivers. They say nothing of other days, "
        "and a policy that was trained on this demand has seen it: --vary-demand varies it."
    )


def geometric(ratios: Sequence[float]) -> Interval:
    """Geometric mean and 95 % interval of ratios of streets: a bootstrap of the logarithms (percentiles), because a few
    streets far from the others are no normal errors."""
    logs = np.log(ratios)
    if len(ratios) < 2:
        return Interval(float(ratios[0]), 0.0, math.inf)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    found = stats.bootstrap(
        (logs,), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile", random_state=rng
    ).confidence_interval
    return Interval(*(float(np.exp(value)) for value in (np.mean(logs), found.low, found.high)))


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value that better and worse are equally likely; ties are left out."""
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def p_value(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    """The p-value of a paired t-test that the candidate's values are not lower."""
    differences = np.subtract(candidate, baseline)
    if np.ptp(differences) == 0:
        return 0.0 if differences[0] < 0 else 1.0
    return float(stats.ttest_rel(candidate, baseline, alternative="less").pvalue)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of n hypotheses are rejected at a family-wise level: the smallest p at level / n, the next at level / (n -
    1)."""
    rejected = [False] * len(p_values)
    for k, i in enumerate(np.argsort(p_values, kind="stable").tolist()):
        if p_values[i] >= level / (len(p_values) - k):
            break
        rejected[i] = True
    return rejected
