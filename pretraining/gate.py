"""The gate of trained networks: greedy on validation streets, beside max-pressure as the reference.

Some trainings gridlock a street that max-pressure copes with, or are slow on a kind of junction, and their mean delay
does not show it. The gate's streets are no training's. Each of the oddities that real networks have is on a part of
them, and demand goes from a few vehicles to saturation. Each street is simulated with SEEDS demands. A network is
dropped for one bad simulation:

- a gridlock where the reference has none,
- more than MAX_RATIO times the reference's delay,
- one that SUMO ends early where it does not end the reference's.

So a verdict does not depend on other networks. Of those that pass, the best are kept, and none whose geometric mean
delay over all simulations is more than MAX_MEAN_RATIO times the least.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from evaluation.arms import MAX_PRESSURE
from pretraining import street_results
from pretraining.street_results import StreetResult, moves_too_few
from pretraining.streets import synthetic
from pretraining.synthetic import oddities
from pretraining.synthetic.oddities import Oddity
from pretraining.synthetic.streets import generate
from simulation.street_simulation import SimulationFailed

REFERENCE = MAX_PRESSURE
FIRST_SEED = 2_000_000
"""Seed of the first street. Trainings use the streets from 0, evaluations those from 1,000,000."""
STREETS = 60
SEEDS = 2
"""Simulations of a street, with other vehicles at the same demand: a gridlock comes with one and not with another."""
SEED_STEP = 100_000_000
"""Difference of the seeds of two simulations of a street."""
ODDITY_PART = 8
"""Each oddity is on 1/ODDITY_PART of the streets, at least."""
LIGHT, USUAL, SATURATED = (10.0, 60.0), (60.0, 200.0), (200.0, 350.0)
"""Bounds of the demand, vehicles per hour and lane of the sources."""
DEMANDS = (USUAL, SATURATED, USUAL, LIGHT, USUAL, SATURATED)
"""Demand of one street after another, over and over."""
MAX_RATIO = 1.5
MAX_MEAN_RATIO = 1.15
EXTRA_S = 5.0
"""Added to both delays of a ratio of one simulation: with little traffic, twice a delay of 3 s is no failure."""

Results = Mapping[str, Mapping[str, StreetResult | None]]
"""By simulation (`GateStreet.name`), by name of a network or REFERENCE; None if SUMO has ended it early."""


@dataclass(frozen=True)
class GateStreet:
    """A street of the gate and its demand: one simulation."""

    folder: Path
    seed: int
    """Seed of the demand and SUMO: that of the street, and SEED_STEP for each simulation before."""
    vehicles_per_lane_h: float
    oddities: tuple[Oddity, ...]

    @property
    def name(self) -> str:
        """Name of the simulation: the street's, with a number from the second simulation on."""
        repetition = self.seed // SEED_STEP
        return f"{self.folder.name} ({repetition + 1})" if repetition else self.folder.name


@dataclass(frozen=True)
class Verdict:
    """A network at the gate."""

    name: str
    mean_delay_s: float
    """Geometric mean over the simulations."""
    mean_ratio: float
    """Relative to the reference's, over the same simulations."""
    worst_ratio: float
    """Delay relative to the reference's, EXTRA_S added to both, in the worst simulation; infinite if SUMO has ended
    it early."""
    worst_street: str
    gridlocks: tuple[str, ...]
    """Simulations in which it has a gridlock and the reference has none."""
    ended: tuple[str, ...] = ()
    """Simulations that SUMO has ended early, and the reference's not."""

    @property
    def failure(self) -> str:
        """Why the network is dropped; "" if it passes."""
        reasons = []
        if self.gridlocks:
            reasons.append(f"gridlock where {REFERENCE} has none, on {', '.join(self.gridlocks)}")
        if self.ended:
            reasons.append(f"SUMO has ended its simulation early, and not {REFERENCE}'s, on {', '.join(self.ended)}")
        elif self.worst_ratio > MAX_RATIO:
            reasons.append(
                f"{self.worst_ratio:.2f} times as slow as {REFERENCE} on {self.worst_street}, more than {MAX_RATIO:g} "
                "times"
            )
        return "; ".join(reasons)


def streets(folder: Path, count: int) -> list[GateStreet]:
    """SEEDS simulations of each street; generate the streets, or find an earlier run's. Raises InputError,
    ProgramFailed."""
    synthetic(folder, range(FIRST_SEED, FIRST_SEED + count))  # at least these are looked at below
    part = count // ODDITY_PART
    found: list[tuple[int, Path, set[Oddity]]] = []
    missing = Counter(dict.fromkeys(Oddity, part))
    seed = FIRST_SEED
    with tqdm(total=count, desc="gate's streets", unit="street", disable=None, leave=False) as bar:
        while len(found) < count:
            street = generate(folder, seed)
            own = oddities.of_street(street)
            # a street without any oddity that is still missing takes a place that no such street needs
            if len(found) + missing.total() < count or any(missing[oddity] > 0 for oddity in own):
                found.append((seed, street, own))
                missing = Counter({oddity: max(0, missing[oddity] - (oddity in own)) for oddity in Oddity})
                bar.update()
            seed += 1
    return [
        GateStreet(
            street,
            seed + repetition * SEED_STEP,
            float(np.random.default_rng([seed, 9]).uniform(*DEMANDS[k % len(DEMANDS)])),
            tuple(oddity for oddity in Oddity if oddity in own),
        )
        for k, (seed, street, own) in enumerate(found)
        for repetition in range(SEEDS)
    ]


def judge(results: Results, names: Sequence[str]) -> list[Verdict]:
    """The verdicts on networks, each against the reference alone. Raises SimulationFailed if the reference has no
    result with a vehicle."""
    references = {street: by_name[REFERENCE] for street, by_name in results.items()}
    used = {street: reference for street, reference in references.items() if reference is not None and reference.total}
    if not used:
        raise SimulationFailed("the gate has no street with a vehicle; pass more --gate-streets or longer --seconds")
    return [_judge(name, {street: (results[street][name], used[street]) for street in used}) for name in names]


def _judge(name: str, pairs: Mapping[str, tuple[StreetResult | None, StreetResult]]) -> Verdict:
    """The verdict on a network. `pairs`: by simulation, its result and the reference's."""
    ratios = {street: ratio(*pair) for street, pair in pairs.items()}
    worst = max(ratios, key=lambda street: ratios[street])
    compared = {street: (own, other) for street, (own, other) in pairs.items() if own is not None}
    mean_s, reference_s = (street_results.mean_delay_s(pair[k] for pair in compared.values()) for k in (0, 1))
    gridlocks = tuple(street for street, pair in compared.items() if moves_too_few(*pair))
    ended = tuple(street for street in pairs if street not in compared)
    mean_ratio = mean_s / reference_s if compared else math.inf
    return Verdict(name, mean_s, mean_ratio, ratios[worst], worst, gridlocks, ended)


def reference_delay_s(results: Results) -> float:
    """Geometric mean of the reference's delays."""
    return street_results.mean_delay_s(by_name[REFERENCE] for by_name in results.values())


def ratio(result: StreetResult | None, reference: StreetResult) -> float:
    """A delay relative to the reference's, EXTRA_S added to both; infinite without a result."""
    return math.inf if result is None else (result.delay_s + EXTRA_S) / (reference.delay_s + EXTRA_S)


def best(verdicts: Sequence[Verdict], keep: int) -> list[Verdict]:
    """The networks that pass with the least mean delay, at most `keep` and MAX_MEAN_RATIO times the least, in the given
    order."""
    passing = sorted((verdict for verdict in verdicts if not verdict.failure), key=lambda verdict: verdict.mean_delay_s)
    kept = [verdict for verdict in passing[:keep] if verdict.mean_delay_s <= MAX_MEAN_RATIO * passing[0].mean_delay_s]
    return [verdict for verdict in verdicts if verdict in kept]


def table(gate_streets: Sequence[GateStreet], results: Results) -> str:
    """The results as CSV: a row for each simulation and each network; empty cells where SUMO has ended it early."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["street", "vehicles_per_lane_h", "oddities", "network", "delay_s", "duration_s", "finished", "total"]
    writer.writerow([*head, "gridlock", "ratio"])
    for gate_street in gate_streets:
        by_name = results.get(gate_street.name, {})
        reference = by_name.get(REFERENCE)
        for name, result in by_name.items():
            cells: list[object] = []
            if result is not None:
                cells += [f"{result.delay_s:.3f}", f"{result.duration_s:.3f}", result.finished, result.total]
                if reference is not None:
                    cells += [int(moves_too_few(result, reference)), f"{ratio(result, reference):.3f}"]
            cells += [""] * (6 - len(cells))
            oddity = "; ".join(gate_street.oddities)
            writer.writerow([gate_street.name, f"{gate_street.vehicles_per_lane_h:.1f}", oddity, name, *cells])
    return text.getvalue()
