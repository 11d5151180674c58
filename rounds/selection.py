"""Select a round's models: new ones are kept only if they reduce delay at their TLs and in the network.

Every comparison is a one-sided paired t-test on the same demand. Over all rounds, the probability of at
least one wrong rejection is at most FAMILY_LEVEL, once for the comparisons of TLs and once for those of arms:

- round k spends 1 / (k (k + 1)) of the level: the shares of any number of rounds, which may grow on resuming, add up to
  less than 1;
- within a round the TLs share it by Holm's step-down procedure (Holm 1979), and the two arms equally;
- the mixture of the better TLs' models is compared on fresh demand, because its TLs were chosen on the first one.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.simulation import Outcome, delays_s
from evaluation.statistics import holm, p_value

BEFORE, NEW, MIXED = "before", "new", "mixed"
"""Arms of a round's evaluation: the models kept so far, all new models, and only the better new models."""
FAMILY_LEVEL = 0.025
"""One-sided level; a single comparison at this level corresponds to a 95 % interval below 0."""
CANDIDATE_ARMS = 2
"""`new` and `mixed`."""

Results = Mapping[str, Sequence[Outcome]]
"""Arm -> outcomes, in the order of their demand."""


def level_of(number: int) -> float:
    """The share of FAMILY_LEVEL that a round spends. `number`: of the round, from 1."""
    return FAMILY_LEVEL / (number * (number + 1))


def better_tls(before: Sequence[Outcome], new: Sequence[Outcome], number: int) -> list[str]:
    """TLs with significantly less delay on their approaches with the new models. `number`: of the round, from 1."""
    p_values = {
        tl: p_value([outcome.delay_by_tl[tl] for outcome in new], [outcome.delay_by_tl[tl] for outcome in before])
        for tl in before[0].delay_by_tl
    }
    is_better = holm(list(p_values.values()), level_of(number))
    return [tl for tl, better in zip(p_values, is_better, strict=True) if better]


def choose(results: Results, fresh: Results, number: int) -> str:
    """The arm with the largest mean reduction of delay among those that are significantly better than `before`, else
    `before`.

    Args:
        results: `before` and `new`, on the same demand.
        fresh: `before` and `mixed`, on demand that did not choose the TLs of `mixed`; empty if there is no mixture.
        number: of the round, from 1.
    """
    reductions_s = {}
    for arm, outcomes in ((NEW, results), (MIXED, fresh)):
        if outcomes:
            candidate, before = (delays_s(outcomes[name]) for name in (arm, BEFORE))
            if p_value(candidate, before) < level_of(number) / CANDIDATE_ARMS:
                reductions_s[arm] = float(np.mean(before) - np.mean(candidate))
    return max(reductions_s, key=lambda arm: reductions_s[arm], default=BEFORE)
