"""The policy for any street on RESCO's eight streets, against the baselines, beside the figures that RESCO publishes.

    python -m benchmarks.resco [--seeds 10] [--street NAME ...] [--all-red 0] [--vary-demand] [--workers 2]
                               [--results docs/resco.csv] [--out out/resco]

Each street is that of the sumo-rl wheel, with the city.toml that `greenserve city init --dialect street` writes and
`all_red_s` of --all-red, a number or computed; `--all-red default` leaves that of the signals' programs.
`greenserve evaluate` simulates all arms with SUMO seeds from 101. Each simulation has a row in --results. Those that
have one already are not simulated again: the baselines' by street, the pretrained policy's as long as the shipped file
is the same. fixed and actuated are SUMO's own control, so they have the same rows with any --all-red. After a change of
the code, pass another file. Prints a table in Markdown.

Delay in s: time loss and departure delay, mean over all vehicles, as RESCO defines it. "Time in the network" is the
pretrained policy's `duration_s`. The closest baseline is the one whose difference has the highest upper bound (with one
seed: the largest difference).

RESCO's figures are computed from its repository (https://github.com/Pi-Star-Lab/RESCO,
resco_benchmark/utils/avg_timeLoss.py): of each method the mean of its last ten episodes, and the best single episode of
any of its learners. Its learners explore in these episodes, with SUMO 1.9 and RESCO's yellow and green times; the
policy here is frozen and greedy, under the safety rules.
"""

import argparse
import csv
import hashlib
import importlib.util
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from city import whole_files
from city.config import COMPUTED
from evaluation.arms import ACTUATED, BASELINES, FIXED, PRETRAINED
from evaluation.statistics import interval, paired
from export import pretrained

OWN_PROGRAM = (FIXED, ACTUATED)
"""Arms that SUMO itself controls, so that all_red_s changes nothing."""
FIRST_SEED = 101
DEFAULT_ALL_RED, OWN_ALL_RED = "default", "own"
CITY_TOML = "city.toml"
VARIED = "varied"
COLUMNS = ("all_red_s", "demand", "street", "arm", "policy", "seed", "delay_s", "duration_s")


class Variant(NamedTuple):
    """Simulations of each street."""

    all_red: str
    is_varied: bool


class Result(NamedTuple):
    """A simulation."""

    delay_s: float
    duration_s: float


Key = tuple[Variant, str, str, str, int]
"""Variant, street, arm, digest of the policy ("" for a baseline), seed."""


class Published(NamedTuple):
    """RESCO's delays in s; None: not published."""

    fixed: float | None
    max_pressure: float
    greedy: float
    idqn: float
    ippo: float
    best: float
    """The best episode of IDQN, IPPO, MPLight and FMA2C."""


STREETS = {
    "cologne1": Published(56.5, 135.5, 27.6, 28.9, 210.8, 26.1),
    "cologne3": Published(39.8, 114.4, 179.2, 95.5, 123.3, 24.0),
    "cologne8": Published(65.1, 39.6, 21.9, 22.3, 22.5, 21.6),
    "ingolstadt1": Published(39.5, 23.5, 28.6, 22.2, 22.7, 20.9),
    "ingolstadt7": Published(91.5, 46.4, 79.2, 35.6, 32.5, 31.2),
    "ingolstadt21": Published(137.6, 112.8, 69.1, 86.2, 397.2, 59.6),
    "grid4x4": Published(None, 52.3, 34.2, 34.1, 45.9, 32.9),
    "arterial4x4": Published(None, 988.1, 911.6, 1316.2, 1457.6, 654.1),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resco", description="The policy for any street on RESCO's eight streets."
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="simulations of each arm (default: 10)")
    parser.add_argument(
        "--street", action="append", choices=STREETS, help="street, repeated for several (default: all)"
    )
    parser.add_argument(
        "--all-red", default="0", metavar="S", help="all_red_s of [safety], computed or default (default: 0)"
    )
    parser.add_argument("--vary-demand", action="store_true", help="vary the demand between the seeds")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that simulate (default: 2)")
    parser.add_argument(
        "--results", type=Path, default=Path("docs/resco.csv"), metavar="FILE",
        help="what is known, and what this run adds (default: docs/resco.csv)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("out/resco"), metavar="DIR", help="folder (default: out/resco)"
    )
    args = parser.parse_args(argv)
    spec = importlib.util.find_spec("sumo_rl")
    if spec is None or spec.origin is None:
        print("skipped: sumo-rl is not installed (pip install sumo-rl), and its wheel has the streets", file=sys.stderr)
        return 0
    variant = Variant(args.all_red, args.vary_demand)
    policy = hashlib.sha256(pretrained.policy().read_bytes()).hexdigest()[:8]
    try:
        results = _read(args.results)
    except (TypeError, ValueError, csv.Error) as error:
        print(
            f"error: {args.results}: is not a file of this benchmark ({error}); pass another --results", file=sys.stderr
        )
        return 2
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    rows = []
    for street in args.street or STREETS:
        of_street = []
        for label, arms in ((policy, (PRETRAINED,)), ("", BASELINES)):
            keys = {arm: [(_of_arm(arm, variant), street, arm, label, seed) for seed in seeds] for arm in arms}
            missing = [arm for arm in arms if any(key not in results for key in keys[arm])]
            if missing:
                print(f"{street}: {', '.join(missing)}", file=sys.stderr, flush=True)
                simulations = _simulate(Path(spec.origin).parent / "nets" / "RESCO" / street, missing, args)
                outdated = [
                    key for key in results if key[:3] == (variant, street, PRETRAINED) and PRETRAINED in missing
                ]
                results = {key: result for key, result in results.items() if key not in outdated}
                results |= {
                    (_of_arm(s["arm"], variant), street, s["arm"], label, int(s["seed"])): _result(s)
                    for s in simulations
                }
                _write(args.results, results)
            of_street += [(arm, results[key]) for arm in arms for key in keys[arm]]
        rows.append(_row(street, of_street))
    print(_header())
    print("\n".join(rows))
    return 0


def _of_arm(arm: str, variant: Variant) -> Variant:
    """The variant that an arm's rows are of."""
    return variant._replace(all_red=OWN_ALL_RED) if arm in OWN_PROGRAM else variant


def _read(file: Path) -> dict[Key, Result]:
    """The results of earlier runs. Raises TypeError, ValueError or csv.Error for another file."""
    if not file.exists():
        return {}
    results: dict[Key, Result] = {}
    with file.open(newline="") as lines:
        rows = csv.DictReader(lines)
        if rows.fieldnames is None or tuple(rows.fieldnames) != COLUMNS:
            raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
        for row in rows:
            variant = Variant(row["all_red_s"], row["demand"] == VARIED)
            key = variant, row["street"], row["arm"], row["policy"], int(row["seed"])
            results[key] = Result(float(row["delay_s"]), float(row["duration_s"]))
    return results


def _write(file: Path, results: Mapping[Key, Result]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (variant, street, arm, policy, seed), result in sorted(results.items()):
        demand = VARIED if variant.is_varied else "same"
        writer.writerow(
            [variant.all_red, demand, street, arm, policy, seed, f"{result.delay_s:.3f}", f"{result.duration_s:.3f}"]
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    whole_files.write(file, text.getvalue())


def _simulate(source: Path, arms: Sequence[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The simulations of arms on a street, as `greenserve evaluate` writes them."""
    folder = args.out / source.name
    shutil.rmtree(folder, ignore_errors=True)
    _prepare(source, folder, args.all_red)
    flags = ["--city", str(folder / CITY_TOML), "--arms", ",".join(arms), "--out", str(folder / "results")]
    flags += ["--workers", str(args.workers), "--seeds", str(args.seeds), "--first-seed", str(FIRST_SEED)]
    flags += ["--vary-demand"] if args.vary_demand else []
    subprocess.run([sys.executable, "-m", "greenserve", "evaluate", *flags], check=True, stdout=sys.stderr)
    simulations: list[dict[str, Any]] = json.loads((folder / "results" / "results.json").read_text())["simulations"]
    return simulations


def _result(simulation: Mapping[str, Any]) -> Result:
    """As it is read from the file again."""
    return Result(round(simulation["delay_s"], 3), round(simulation["duration_s"], 3))


def _prepare(source: Path, folder: Path, all_red: str) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / CITY_TOML).unlink(missing_ok=True)
    flags = [
        "--sumocfg",
        str(folder / f"{source.name}.sumocfg"),
        "--out",
        str(folder / CITY_TOML),
        "--dialect",
        "street",
    ]
    subprocess.run([sys.executable, "-m", "greenserve", "city", "init", *flags], check=True, stdout=sys.stderr)
    if all_red != DEFAULT_ALL_RED:
        value = f'"{COMPUTED}"' if all_red == COMPUTED else f"{float(all_red):g}"
        city_toml = folder / CITY_TOML
        text = city_toml.read_text()
        city_toml.write_text(text.replace("[safety]\n", f"[safety]\nall_red_s = {value}\n", 1))


def _header() -> str:
    columns = [
        "street", PRETRAINED, "worst seed", "time in the network", *BASELINES, "pretrained - closest baseline (95 % "
        "interval)",
        "RESCO: fixed", "max-pressure", "greedy", "IDQN", "IPPO", "best episode",
    ]  # fmt: skip
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def _row(street: str, simulations: Sequence[tuple[str, Result]]) -> str:
    """A row of the table. `simulations`: arms and results, by arm in the order of the seeds."""
    delays_s: dict[str, list[float]] = {name: [] for name in (PRETRAINED, *BASELINES)}
    for arm, result in simulations:
        delays_s[arm].append(result.delay_s)
    means_s = {name: interval(values).mean for name, values in delays_s.items()}
    # if the highest upper bound is below 0, the policy has less delay than every baseline; one seed has no interval
    differences = [paired(delays_s[PRETRAINED], delays_s[name]) for name in BASELINES]
    difference = max(differences, key=lambda d: d.high if math.isfinite(d.high) else d.mean)
    bounds = f" ({difference.low:+.1f} to {difference.high:+.1f})" if math.isfinite(difference.low) else ""
    duration_s = interval([result.duration_s for arm, result in simulations if arm == PRETRAINED]).mean
    published = ["" if value is None else f"{value:.1f}" for value in STREETS[street]]
    cells = [
        street, f"{means_s[PRETRAINED]:.1f}", f"{max(delays_s[PRETRAINED]):.1f}", f"{duration_s:.1f}",
        *(f"{means_s[name]:.1f}" for name in BASELINES),
        f"{difference.mean:+.1f}{bounds}", *published,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
