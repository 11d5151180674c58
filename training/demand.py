"""Demand of an episode: the city's own routes, varied by seed with SUMO's own options.

A policy that is trained on one morning learns that morning. So each episode has more or
fewer vehicles (`--scale`: SUMO inserts copies of vehicles, or leaves some out), at other
moments (`--random-depart-offset`), with other drivers (`--seed`).
"""

import functools
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MIN_SCALE, MAX_SCALE = 0.8, 1.2
"""Factors of the number of vehicles."""
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

    def options(self, sumocfg: Path) -> list[str]:
        """SUMO's options; the configuration's own scale is multiplied."""
        # a configuration may ask for a random seed, but pairs and resumed trainings need this one
        options = ["--seed", str(self.seed), "--random", "false"]
        if self.scale != 1.0:
            options += ["--scale", f"{self.scale * _own_scale(sumocfg):.6g}"]
        if self.shift_s:
            options += ["--random-depart-offset", f"{self.shift_s:g}"]
        return options


@functools.cache
def _own_scale(sumocfg: Path) -> float:
    for _, element in ET.iterparse(sumocfg):
        if element.tag == "scale":
            return float(element.get("value", "1"))
    return 1.0


def varied(rng: np.random.Generator, varies: bool) -> Demand:
    """The demand of a training episode; without `varies` only the drivers differ."""
    seed = int(rng.integers(1, MAX_SUMO_SEED))
    return Demand(seed, float(rng.uniform(MIN_SCALE, MAX_SCALE)), MAX_SHIFT_S) if varies else Demand(seed)
