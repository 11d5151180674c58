"""Means with 95 % intervals, and paired differences: the same demand in both arms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of values; a single value has an unbounded interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def paired(candidate: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Mean and 95 % interval of the paired differences candidate - baseline."""
    return interval([a - b for a, b in zip(candidate, baseline, strict=True)])
