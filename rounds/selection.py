"""Which of a round's new models are kept: only those that make their TLs, and the network, better."""

from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.simulation import Outcome
from evaluation.statistics import paired

BEFORE, NEW, MIXED = "before", "new", "mixed"
"""Arms of a round's evaluation: the models kept so far, all new models, and those new models that are better."""


def better_tls(before: Sequence[Outcome], new: Sequence[Outcome]) -> list[str]:
    """TLs on the way to which less time is lost with the new models: the whole 95 % interval is below 0."""
    return [
        tl
        for tl in before[0].delay_by_tl
        if paired([outcome.delay_by_tl[tl] for outcome in new], [outcome.delay_by_tl[tl] for outcome in before]).high < 0
    ]


def choose(results: Mapping[str, Sequence[Outcome]]) -> str:
    """The arm with the lowest mean delay among those that are better than `before` by their interval; else `before`."""
    delays = {arm: [outcome.delay_s for outcome in outcomes] for arm, outcomes in results.items()}
    better = [arm for arm in delays if arm != BEFORE and paired(delays[arm], delays[BEFORE]).high < 0]
    return min(better, key=lambda arm: float(np.mean(delays[arm])), default=BEFORE)
