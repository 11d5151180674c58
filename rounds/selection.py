"""Select a round's models: new ones are kept only if they reduce delay at their TLs and in the network."""

from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.simulation import Outcome
from evaluation.statistics import paired

BEFORE, NEW, MIXED = "before", "new", "mixed"
"""Arms of a round's evaluation: the models kept so far, all new models, and only the better new models."""


def better_tls(before: Sequence[Outcome], new: Sequence[Outcome]) -> list[str]:
    """TLs with less delay on their approaches with the new models: the 95 % interval of the difference is below 0."""
    return [
        tl
        for tl in before[0].delay_by_tl
        if paired([outcome.delay_by_tl[tl] for outcome in new], [outcome.delay_by_tl[tl] for outcome in before]).high < 0
    ]


def choose(results: Mapping[str, Sequence[Outcome]]) -> str:
    """The arm with the lowest mean delay of those whose 95 % interval of the difference to `before` is below 0, else `before`."""
    delays = {arm: [outcome.delay_s for outcome in outcomes] for arm, outcomes in results.items()}
    better = [arm for arm in delays if arm != BEFORE and paired(delays[arm], delays[BEFORE]).high < 0]
    return min(better, key=lambda arm: float(np.mean(delays[arm])), default=BEFORE)
