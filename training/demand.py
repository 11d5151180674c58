"""Demand of an episode: the city's own routes, varied by seed with SUMO's own options.

A policy that is trained on one morning learns that morning. So each episode has more or
fewer vehicles (`--scale`: SUMO inserts copies of vehicles, or leaves some out), at other
moments (`--random-depart-offset`), with other drivers (`--seed`).
"""

from dataclasses import dataclass

import numpy as np

SCALES = (0.8, 1.2)
"""Bounds of the factor of the number of vehicles."""
MAX_SHIFT_S = 60.0
"""A vehicle departs up to this much later than in the routes."""
MAX_SUMO_SEED = 1 << 30


@dataclass(frozen=True)
class Demand:
    """The demand of one simulation."""

    seed: int
    """SUMO's."""
    scale: float = 1.0
    shift_s: float = 0.0

    @property
    def options(self) -> list[str]:
        options = ["--seed", str(self.seed)]
        if self.scale != 1.0:
            options += ["--scale", f"{self.scale:.4f}"]
        if self.shift_s:
            options += ["--random-depart-offset", f"{self.shift_s:g}"]
        return options


def varied(rng: np.random.Generator, varies: bool) -> Demand:
    """The demand of a training episode; without `varies` only the drivers differ."""
    seed = int(rng.integers(1, MAX_SUMO_SEED))
    return Demand(seed, float(rng.uniform(*SCALES)), MAX_SHIFT_S) if varies else Demand(seed)
