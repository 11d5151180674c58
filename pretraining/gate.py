"""The gate of trained networks: greedy on validation streets, beside baselines as the reference.

Some trainings gridlock a street that max-pressure copes with, or are slow on a kind of junction, and their mean delay
does not show it. The gate's streets are no training's. Delays are means over vehicles and persons who walk, each as
one, as in the reward of the training.

On synthetic streets, max-pressure is the reference. Each of the oddities that real networks have is on a part of them,
and demand goes from a few vehicles to saturation. Each street is simulated with SEEDS demands. A network is dropped for
one bad simulation:

- a gridlock where the reference has none,
- more than MAX_RATIO times the reference's delay,
- one that SUMO ends early where it does not end the reference's.

On plain streets (`plain_kinds`), the best of all baselines on a street is the reference. A network is dropped for more
than MAX_PLAIN_RATIO times its delay on one street, in the mean over SEEDS demands, and unless it has less delay than
the reference on most streets.

So a verdict does not depend on other networks. Of those that pass, the one with the least geometric mean delay over the
simulations of synthetic streets is chosen.
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

from evaluation.arms import BASELINES, MAX_PRESSURE
from pretraining import plain_kinds, street_results
from pretraining.street_results import StreetResult, combined, moves_too_few
from pretraining.streets import synthetic
from pretraining.synthetic import oddities
from pretraining.synthetic.oddities import Oddity
from pretraining.synthetic.streets import generate
from simulation.street_simulation import SimulationFailed

REFERENCE = MAX_PRESSURE
FIRST_SEED = 2_000_000
"""Seed of the first street. Trainings use the streets from 0, evaluations those from 1,000,000."""
STREETS = 60
"""Default of the number of synthetic streets."""
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
"""Bound of a network's delay relative to REFERENCE's, in a simulation of a synthetic street."""
MAX_PLAIN_RATIO = 1.1
"""Bound of a network's delay relative to that of the best baseline, on a plain street."""
EXTRA_S = 5.0
"""Added to both delays of a ratio: with little traffic, twice a delay of 3 s is no failure."""

Results = Mapping[str, Mapping[str, StreetResult | None]]
"""By simulation (`GateStreet.name`), by name of a network or baseline; None if SUMO has ended it early."""
PlainResults = Mapping[str, Sequence[Mapping[str, StreetResult | None]]]
"""By plain street, a mapping for each of its demands: by name of a network or baseline."""


@dataclass(frozen=True)
class GateStreet:
    """A street of the gate and its demand: one simulation."""

    folder: Path
    seed: int
    """Seed of the demand and SUMO: that of the street, and SEED_STEP for each simulation before."""
    vehicles_per_lane_h: float | None
    """None for a plain street, which has its own demand."""
    oddities: tuple[Oddity, ...] = ()

    @property
    def name(self) -> str:
        """Name of the simulation."""
        return street_results.name_of(self.folder, self.seed // SEED_STEP)

    @property
    def baselines(self) -> tuple[str, ...]:
        """Baselines that are simulated on it."""
        return BASELINES if self.vehicles_per_lane_h is None else (REFERENCE,)


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
    plain_count: int = 0
    """Number of plain streets with a result of a baseline."""
    plain_better: int = 0
    """Number of plain streets on which the network has less delay than every baseline."""
    plain_slow: tuple[str, ...] = ()
    """Plain streets on which the network has more than MAX_PLAIN_RATIO times the best baseline's delay, with the ratio
    and that baseline."""

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
        if self.plain_slow:
            reasons.append(
                f"more than {MAX_PLAIN_RATIO:g} times the best baseline's delay on {len(self.plain_slow)} of "
                f"{self.plain_count} plain streets: {', '.join(self.plain_slow)}"
            )
        if self.plain_count and 2 * self.plain_better <= self.plain_count:
            reasons.append(
                f"less delay than every baseline on only {self.plain_better} of {self.plain_count} plain streets"
            )
        return "; ".join(reasons)

    @property
    def text(self) -> str:
        """The verdict in a line."""
        return (
            f"{self.name} {'fails' if self.failure else 'passes'} the gate: {self.mean_delay_s:.1f} s in the geometric "
            f"mean, {self.mean_ratio:.2f} times {REFERENCE}'s; {self.worst_ratio:.2f} times as slow at worst "
            f"({self.worst_street}); {len(self.gridlocks)} gridlocks; less delay than every baseline on "
            f"{self.plain_better} of {self.plain_count} plain streets"
        )


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


def plain_streets(folder: Path) -> list[GateStreet]:
    """SEEDS simulations of each plain street, which is written into a folder. Raises ProgramFailed."""
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS * SEED_STEP, SEED_STEP)
    return [GateStreet(street, seed, None) for street in plain_kinds.write(folder) for seed in seeds]


def by_street(streets: Sequence[GateStreet], results: Results) -> PlainResults:
    """The results of plain streets."""
    found: dict[str, list[Mapping[str, StreetResult | None]]] = {}
    for street in streets:
        found.setdefault(street.folder.name, []).append(results[street.name])
    return found


def judge(results: Results, plain: PlainResults, names: Sequence[str]) -> list[Verdict]:
    """The verdicts on networks, each against the baselines alone.

    Args:
        results: of synthetic streets.
        plain: of plain streets.
        names: of the networks.

    Raises SimulationFailed if the reference has no result with a vehicle.
    """
    references = {street: by_name[REFERENCE] for street, by_name in results.items()}
    used = {street: reference for street, reference in references.items() if reference is not None and reference.total}
    if not used:
        raise SimulationFailed("the gate has no street with a vehicle; pass more --gate-streets or longer --seconds")
    return [_judge(name, {street: (results[street][name], used[street]) for street in used}, plain) for name in names]


def _plain(name: str, plain: PlainResults) -> tuple[int, int, tuple[str, ...]]:
    """A network's verdict on plain streets: `plain_count`, `plain_better` and `plain_slow`."""
    count, better, slow = 0, 0, []
    for street, demands in plain.items():
        baselines = {arm: combined([by_name[arm] for by_name in demands]) for arm in BASELINES}
        references = {arm: result for arm, result in baselines.items() if result is not None and result.total}
        if not references:
            continue
        best = min(references, key=lambda arm: references[arm].delay_s)
        own = combined([by_name[name] for by_name in demands])
        count += 1
        better += own is not None and own.delay_s < references[best].delay_s
        if (value := ratio(own, references[best])) > MAX_PLAIN_RATIO:
            slow.append(f"{street} ({value:.2f} times {best})")
    return count, better, tuple(slow)


def _judge(name: str, pairs: Mapping[str, tuple[StreetResult | None, StreetResult]], plain: PlainResults) -> Verdict:
    """A network's verdict. `pairs`: by simulation of a synthetic street, its result and the reference's."""
    ratios = {street: ratio(*pair) for street, pair in pairs.items()}
    worst = max(ratios, key=lambda street: ratios[street])
    compared = {street: (own, other) for street, (own, other) in pairs.items() if own is not None}
    mean_s, reference_s = (street_results.mean_delay_s(pair[k] for pair in compared.values()) for k in (0, 1))
    gridlocks = tuple(street for street, pair in compared.items() if moves_too_few(*pair))
    ended = tuple(street for street in pairs if street not in compared)
    mean_ratio = mean_s / reference_s if compared else math.inf
    return Verdict(name, mean_s, mean_ratio, ratios[worst], worst, gridlocks, ended, *_plain(name, plain))


def ratio(result: StreetResult | None, reference: StreetResult) -> float:
    """A delay relative to the reference's, EXTRA_S added to both; infinite without a result."""
    return math.inf if result is None else (result.delay_s + EXTRA_S) / (reference.delay_s + EXTRA_S)


def best(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The network that passes with the least mean delay; None if none passes."""
    passing = (verdict for verdict in verdicts if not verdict.failure)
    return min(passing, key=lambda verdict: verdict.mean_delay_s, default=None)


def table(gate_streets: Sequence[GateStreet], results: Results) -> str:
    """The results as CSV: a row for each simulation and each network; empty cells where SUMO has ended it early.

    `ratio`: the delay relative to that of REFERENCE.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["street", "vehicles_per_lane_h", "oddities", "network", "delay_s", "duration_s", "finished", "total"]
    writer.writerow([*head, "walkers", "gridlock", "ratio"])
    for gate_street in gate_streets:
        by_name = results.get(gate_street.name, {})
        reference = by_name.get(REFERENCE)
        for name, result in by_name.items():
            cells: list[object] = []
            if result is not None:
                cells += [f"{result.delay_s:.3f}", f"{result.duration_s:.3f}", result.finished, result.total]
                cells.append(result.walkers)
                if reference is not None:
                    cells += [int(moves_too_few(result, reference)), f"{ratio(result, reference):.3f}"]
            cells += [""] * (7 - len(cells))
            oddity = "; ".join(gate_street.oddities)
            rate = gate_street.vehicles_per_lane_h
            writer.writerow([gate_street.name, "" if rate is None else f"{rate:.1f}", oddity, name, *cells])
    return text.getvalue()
