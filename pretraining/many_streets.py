"""`greenserve pretrain evaluate --streets DIR|synthetic`: arms on many streets, each with the same random demand for
all arms.

A policy for any junction is judged by how often it is better than a baseline, by its worst street, and by gridlocks
that a
baseline does not have: a mean over streets hides all three.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city import network, sumo_files
from city.errors import InputError
from controller.assembly import DRIVERS
from evaluation import actuated
from evaluation.arms import ACTUATED, FIXED, SERVED, Arm
from pretraining.packed_streets import Street, unpacked
from pretraining.street_results import StreetResult, control_of, has_gridlock, simulate
from pretraining.streets import RandomTraffic, city_of
from simulation.controlled_simulation import Control
from simulation.street_simulation import SimulationFailed

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


class StreetSimulation:
    """Runs every arm on a street; an object for executors."""

    def __init__(self, arms: Sequence[Arm], seconds: float) -> None:
        """Raises InputError if an arm needs models of a city."""
        if served := next((arm.name for arm in arms if arm.kind == SERVED), None):
            raise InputError(f"--streets: arm {served} is for a city; leave it out")
        self._arms, self._seconds = tuple(arms), seconds

    def __call__(self, job: tuple[Street, int]) -> dict[str, StreetResult] | str:
        """Simulate every arm on a street with the demand of a seed; the reason if SUMO ends one early."""
        street, seed = job
        rng = np.random.default_rng([seed, 8])
        rate = float(rng.uniform(MIN_VEHICLES_PER_LANE_H, MAX_VEHICLES_PER_LANE_H))
        try:
            with unpacked(street) as folder:
                return {arm.name: self._run(arm, folder, seed, rate) for arm in self._arms}
        except SimulationFailed as error:
            return str(error)

    def _run(self, arm: Arm, folder: Path, seed: int, rate: float) -> StreetResult:
        city = city_of(folder)
        street = network.of_city(city)
        traffic = RandomTraffic(street.net_file, seed, rate, self._seconds)
        options = []
        with tempfile.TemporaryDirectory(prefix="greenserve-") as name:
            if arm.kind == ACTUATED:
                signals = [street.signals[signal] for tl in city.tls.values() for signal in tl.signals]
                programs = actuated.write(Path(name) / "actuated.add.xml", signals)
                assert city.network.sumocfg is not None
                files = [*sumo_files.listed_files(city.network.sumocfg, "additional-files"), programs]
                options = ["--additional-files", ",".join(map(str, files))]
            control = Control()
            if arm.kind not in (FIXED, ACTUATED):
                control = control_of(city, street, arm.policy, arm.kind if arm.kind in DRIVERS else None)
            return simulate(city, street, traffic, control, Path(name), options)


def compare(results: Mapping[str, Mapping[str, StreetResult]], candidate: str, arm: str) -> Comparison:
    """Compare a candidate with an arm. `results`: by street, by arm."""
    used = {street: by_arm for street, by_arm in results.items() if min(r.total for r in by_arm.values())}
    ratios = {street: max(r[candidate].delay_s, 0.1) / max(r[arm].delay_s, 0.1) for street, r in used.items()}
    return Comparison(
        float(np.mean([ratio < 1 for ratio in ratios.values()])),
        tuple(street for street, ratio in ratios.items() if ratio > MAX_WORSE),
        math.exp(float(np.mean(np.log(list(ratios.values()))))),
        max(ratios.values()),
        tuple(street for street, r in used.items() if has_gridlock(r, candidate) and not has_gridlock(r, arm)),
    )
