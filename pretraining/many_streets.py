"""`greenserve pretrain evaluate`: arms on many streets, each with the same random demand for all arms.

A policy for any junction is judged by how often it is better than a baseline, by its worst street, and by gridlocks
that a baseline does not have: a mean over streets hides all three.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pretraining.street_results import MIN_DELAY_S, StreetResult, moves_too_few

HELD_OUT_SEED = 1_000_000
"""Seed of the first held-out synthetic street; a training uses those from 0."""
MIN_VEHICLES_PER_LANE_H, MAX_VEHICLES_PER_LANE_H = 60.0, 240.0
"""Bounds of the demand of a street."""
MAX_WORSE = 1.05
"""Ratio of delays beyond which a street counts as worse."""


@dataclass(frozen=True)
class Comparison:
    """A candidate against one arm, over all streets."""

    better: float
    """Share of the streets on which the candidate has less delay."""
    worse: tuple[str, ...]
    """Streets on which its delay is more than MAX_WORSE times the arm's."""
    ratio: float
    """Geometric mean of candidate's delay / arm's delay."""
    worst_ratio: float
    gridlocks: tuple[str, ...]
    """Streets on which the candidate has a gridlock and the arm has none."""


def vehicles_per_lane_h(seed: int) -> float:
    """The demand of a seed."""
    return float(np.random.default_rng([seed, 8]).uniform(MIN_VEHICLES_PER_LANE_H, MAX_VEHICLES_PER_LANE_H))


def compare(results: Mapping[str, Mapping[str, StreetResult]], candidate: str, arm: str) -> Comparison:
    """Compare a candidate with an arm. `results`: by street, by arm."""
    used = {street: by_arm for street, by_arm in results.items() if min(r.total for r in by_arm.values())}
    delays_s = {street: [max(r[name].delay_s, MIN_DELAY_S) for name in (candidate, arm)] for street, r in used.items()}
    ratios = {street: own_s / other_s for street, (own_s, other_s) in delays_s.items()}
    return Comparison(
        float(np.mean([ratio < 1 for ratio in ratios.values()])),
        tuple(street for street, ratio in ratios.items() if ratio > MAX_WORSE),
        float(np.exp(np.mean(np.log(list(ratios.values()))))),
        max(ratios.values()),
        tuple(street for street, r in used.items() if moves_too_few(r, candidate) and not moves_too_few(r, arm)),
    )
