"""`greenserve pretrain evaluate`: runs arms on many streets, each with the same random demand for all arms, prints how
they compare, and writes a table.

A policy for any junction is judged by how often it is better than a baseline, by its worst street, and by gridlocks
that a baseline does not have: a mean over streets hides all three.
"""

import argparse
import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city import program, whole_files
from city.arguments import Parser
from city.config import City
from city.errors import InputError
from evaluation import results_files
from evaluation.arms import SERVED, Arm
from evaluation.arms import parse as parse_arms
from evaluation.statistics import Interval, geometric, sign_test
from pretraining import plain_kinds, select_command, street_results
from pretraining.select_command import SECONDS
from pretraining.street_results import MIN_DELAY_S, StreetJob, StreetResult, combined, moves_too_few
from pretraining.streets import PLAIN, SYNTHETIC, city_of, for_jobs, of_folder, synthetic
from simulation.executors import executor
from simulation.street_simulation import SimulationFailed
from training import flags

HELD_OUT_SEED = 1_000_000
"""Seed of the first held-out synthetic street; a training uses those from 0."""
MIN_VEHICLES_PER_LANE_H, MAX_VEHICLES_PER_LANE_H = 60.0, 240.0
"""Bounds of the demand of a street."""
MAX_WORSE = 1.05
"""Ratio of delays beyond which a street counts as worse."""
Results = Mapping[str, Mapping[str, Sequence[StreetResult | None]]]
"""By street, by arm, a result for each demand; None if SUMO has ended it early."""
SETTINGS = ("delta_time_s", "min_green_s", "all_red_s", "max_red_s")
"""Columns of a street's settings, named as in city.toml; `all_red_s` is empty if it is that of the programs."""


def main(argv: list[str], prog: str) -> int:
    """Run an evaluation. Exit code: 0; 2 if the input is wrong; 1 if the work fails."""

    def evaluate() -> int:
        args = parser(prog).parse_args(argv)
        select_command.check_ray(args)
        return run(args)

    return program.run(evaluate)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Compare policies and baselines on many streets.")
    parser.add_argument(
        "--streets",
        default=SYNTHETIC,
        metavar="DIR",
        help="compare on the streets of a folder; or synthetic: on random ones that no training has; or plain: on each "
        "plain kind of signal at 30, 60 and 90 %% of its capacity (default: synthetic)",
    )
    flags.add_count(parser, "--street-count", 1, "number of synthetic streets", 50)
    parser.add_argument(
        "--arms",
        default="pretrained,fixed,actuated,max-pressure",
        metavar="ARM,...",
        help="pretrained, policy:FILE, fixed, actuated, max-pressure, greedy; the first that is not "
        "fixed is the candidate (default: pretrained,fixed,actuated,max-pressure)",
    )
    flags.add_count(parser, "--demands", 1, "random demands of each street", 1)
    flags.add_count(
        parser,
        "--first-seed",
        0,
        "seed of the first street's first demand; each further demand and street has 1 more",
        1,
    )
    flags.add_seconds(parser, f"simulated time (default: {SECONDS:g})", SECONDS)
    flags.add_workers(parser)
    parser.add_argument("--ray", metavar="ADDRESS", help="simulate on a Ray cluster: HOST:PORT of its head, or auto")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write streets.csv there, and the generated streets")
    return parser


def run(args: argparse.Namespace) -> int:
    """Evaluate arms on many streets and return the exit code. Raises InputError, SimulationFailed."""
    arms = parse_arms(args.arms)
    if served := next((arm.name for arm in arms if arm.kind == SERVED), None):
        raise InputError(f"--streets: arm {served} is for a city; leave it out")
    if args.out is not None:
        results_files.check_writable(args.out)
    streets = _streets(args)
    # read before the simulations: an error afterwards would lose their results
    cities = {street.name: city_of(street) for street in streets} if args.out is not None else {}
    places = {}
    with executor(args.workers, args.ray) as runner:
        for k, street in enumerate(streets):
            files = for_jobs(runner, street)
            for demand, seed in enumerate(range(args.first_seed + k, args.first_seed + k + args.demands)):
                rate = float(np.random.default_rng([seed, 8]).uniform(MIN_VEHICLES_PER_LANE_H, MAX_VEHICLES_PER_LANE_H))
                name = street_results.name_of(street, demand)
                for arm in arms:
                    places[StreetJob(name, files, seed, rate, args.seconds, arm)] = street.name, demand
        results: dict[str, dict[str, list[StreetResult | None]]] = {
            street.name: {arm.name: [None] * args.demands for arm in arms} for street in streets
        }
        for job, result in street_results.outcomes(runner, list(places), program.print_line):
            name, demand = places[job]
            results[name][job.arm.name][demand] = result
    if not any(r is not None and r.total for by_arm in results.values() for own in by_arm.values() for r in own):
        raise SimulationFailed("no vehicle departs on any street, or SUMO has ended each simulation early")
    if args.out is not None:
        _write(args.out / "streets.csv", arms, results, cities)
    print("\n".join(_lines(arms, results)))
    return 0


def _streets(args: argparse.Namespace) -> list[Path]:
    """The folders of the streets; writes generated ones. Raises InputError, ProgramFailed."""
    if args.streets not in (SYNTHETIC, PLAIN):
        return of_folder(Path(args.streets), program.print_line)
    if args.out is None:
        raise InputError(f"--streets {args.streets} needs --out, where the streets are written")
    if args.streets == PLAIN:
        return plain_kinds.write(args.out / "streets")
    return synthetic(args.out / "streets", range(HELD_OUT_SEED, HELD_OUT_SEED + args.street_count))


def _write(path: Path, arms: Sequence[Arm], results: Results, cities: Mapping[str, City]) -> None:
    """Write a row for each street, demand (counted from 1) and arm; empty cells if SUMO has ended it early.

    `cities`: by street; the TLs of a street have the same times.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["street", "demand", "arm", "delay_s", "duration_s", "finished", "total", "walkers", *SETTINGS])
    for street, by_arm in results.items():
        safety, tl = cities[street].safety, next(iter(cities[street].tls.values()))
        settings = [tl.delta_time_s, tl.min_green_s, safety.all_red_s, safety.max_red_s]
        for arm in arms:
            for demand, r in enumerate(by_arm[arm.name], 1):
                cells: list[object] = [""] * 5
                if r is not None:
                    cells = [round(r.delay_s, 3), round(r.duration_s, 3), r.finished, r.total, r.walkers]
                writer.writerow([street, demand, arm.name, *cells, *settings])
    whole_files.write(path, table.getvalue())


def _lines(arms: Sequence[Arm], results: Results) -> list[str]:
    width = max(12, *(len(arm.name) + 2 for arm in arms))
    means = [{arm: combined(demands) for arm, demands in by_arm.items()} for by_arm in results.values()]
    common = [by_arm for by_arm in means if all(r is not None and r.total for r in by_arm.values())]
    lines = [
        f"{len(results)} streets; means over the {len(common)} of them on which every arm has a result",
        f"{'':<{width}}{'geometric mean delay, s':>26}{'arrived':>12}{'ended by SUMO':>16}",
    ]
    for arm in arms:
        mean_s = street_results.mean_delay_s(by_arm[arm.name] for by_arm in common)
        own = [r for by_arm in common if (r := by_arm[arm.name]) is not None]
        arrived = f"{sum(r.finished for r in own) / max(1, sum(r.total for r in own)):.1%}"
        ended = sum(by_arm[arm.name] is None for by_arm in means)
        lines.append(f"{arm.name:<{width}}{mean_s:>26.1f}{arrived:>12}{ended:>16}")
    for arm in arms[1:]:
        lines += _compared(arms[0].name, arm.name, compare(results, arms[0].name, arm.name))
    return lines


def _compared(candidate: str, arm: str, c: "Comparison") -> list[str]:
    if not c.streets:
        return [f"{candidate} against {arm}: neither has a result with a vehicle on any street"]
    lines = [
        f"{candidate} against {arm}: less delay on {c.better:.0%} of the streets (sign test: p = {c.p_value:.2g}), "
        f"more than 5 % worse on {len(c.worse)}"
    ]
    if c.ratio is not None:
        interval = (
            "one street has no interval"
            if math.isinf(c.ratio.high)
            else f"95 % interval over streets: {c.ratio.low:.2f} to {c.ratio.high:.2f}"
        )
        lines[0] += (
            f"; {c.ratio.mean:.2f} times its delay in the geometric mean ({interval}), {c.worst_ratio:.2f} times at "
            "worst"
        )
    for name, streets, counted in ((candidate, c.ended, "worse"), (arm, c.arm_ended, "better")):
        if streets:
            lines.append(f"SUMO has ended {name} alone early, so {candidate} counts as {counted}: {', '.join(streets)}")
    if c.gridlocks:
        lines.append(f"gridlocks that {arm} does not have: {', '.join(c.gridlocks)}")
    return lines


@dataclass(frozen=True)
class Comparison:
    """A candidate against one arm, over all streets with a result of either."""

    streets: int
    better: float
    """Share of the streets on which the candidate has less delay, or SUMO has ended the arm alone early."""
    p_value: float
    """Two-sided sign test of the streets on which it is better and worse."""
    worse: tuple[str, ...]
    """Streets on which its delay is more than MAX_WORSE times the arm's, or SUMO has ended it alone early."""
    ratio: Interval | None
    """Geometric mean of candidate's delay / arm's delay, over the streets with both; None without one."""
    worst_ratio: float
    """The largest of these ratios."""
    gridlocks: tuple[str, ...]
    """Streets on which the candidate has a gridlock and the arm has none, with one of their demands."""
    ended: tuple[str, ...]
    """Streets on which SUMO has ended the candidate early, and the arm not."""
    arm_ended: tuple[str, ...]
    """Streets on which SUMO has ended the arm early, and the candidate not."""


def compare(results: Results, candidate: str, arm: str) -> Comparison:
    """Compare a candidate with an arm, over all road users of a street's demands; other arms have no influence."""
    pairs = {street: (combined(by_arm[candidate]), combined(by_arm[arm])) for street, by_arm in results.items()}
    used = {street: pair for street, pair in pairs.items() if any(r is not None and r.total for r in pair)}
    ended, arm_ended = (tuple(street for street, pair in used.items() if pair[k] is None) for k in (0, 1))
    both = {street: (own, other) for street, (own, other) in used.items() if own is not None and other is not None}
    ratios = {
        street: max(own.delay_s, MIN_DELAY_S) / max(other.delay_s, MIN_DELAY_S) for street, (own, other) in both.items()
    }
    better = sum(ratio < 1 for ratio in ratios.values()) + len(arm_ended)
    return Comparison(
        len(used),
        better / max(1, len(used)),
        sign_test(better, sum(ratio > 1 for ratio in ratios.values()) + len(ended)),
        (*(street for street, ratio in ratios.items() if ratio > MAX_WORSE), *ended),
        geometric(list(ratios.values())) if ratios else None,
        max(ratios.values(), default=math.nan),
        tuple(street for street in used if _has_gridlock(results[street][candidate], results[street][arm])),
        ended,
        arm_ended,
    )


def _has_gridlock(candidate: Sequence[StreetResult | None], arm: Sequence[StreetResult | None]) -> bool:
    """True if a candidate has far fewer arrivals than an arm with one of a street's demands."""
    pairs = zip(candidate, arm, strict=True)
    return any(own is not None and other is not None and moves_too_few(own, other) for own, other in pairs)
