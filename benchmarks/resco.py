"""The policy for any street on RESCO's eight streets, against the baselines, beside the figures that RESCO publishes.

    python -m benchmarks.resco [--seeds 10] [--street NAME ...] [--all-red 0] [--vary-demand] [--workers 2] [--out out/resco]

Each street is that of the sumo-rl wheel, with the city.toml that `greenserve city init --dialect street` writes and `all_red_s`
of --all-red; `--all-red default` leaves the red clearance by the junction's size. `greenserve evaluate` simulates all arms with
SUMO seeds from 101. Results with these flags that are in --out already are not simulated again: the baselines' by street, the
pretrained policy's as long as the shipped file is the same. After a change of the code, pass another --out. Prints a table in
Markdown.

Delay in s: time loss and departure delay, mean over all vehicles, as RESCO defines it. "Time in the network" is the pretrained
policy's `duration_s`. The closest baseline is the one whose difference has the highest upper bound (with one seed: the
largest difference).

RESCO's figures are computed from its repository (https://github.com/Pi-Star-Lab/RESCO, resco_benchmark/utils/avg_timeLoss.py): of
each method the mean of its last ten episodes, and the best single episode of any of its learners. Its learners explore in these
episodes, with SUMO 1.9 and RESCO's yellow and green times; the policy here is frozen and greedy, under the safety rules.
"""

import argparse
import hashlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.arms import PRETRAINED
from evaluation.statistics import interval, paired
from export import pretrained

BASELINES = ("fixed", "actuated", "max-pressure", "greedy")
FIRST_SEED = 101
DEFAULT_ALL_RED = "default"
CITY_TOML = "city.toml"


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
    parser.add_argument("--street", action="append", choices=STREETS, help="street, repeated for several (default: all)")
    parser.add_argument("--all-red", default="0", metavar="S", help="all_red_s of [safety], or default (default: 0)")
    parser.add_argument("--vary-demand", action="store_true", help="vary the demand between the seeds")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that simulate (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("out/resco"), metavar="DIR", help="folder (default: out/resco)")
    args = parser.parse_args(argv)
    spec = importlib.util.find_spec("sumo_rl")
    if spec is None or spec.origin is None:
        print("skipped: sumo-rl is not installed (pip install sumo-rl), and its wheel has the streets", file=sys.stderr)
        return 0
    rows = []
    variant = f"all-red-{args.all_red}-seeds-{args.seeds}{'-varied' * args.vary_demand}"
    policy = f"{PRETRAINED}-{hashlib.sha256(pretrained.policy().read_bytes()).hexdigest()[:8]}"
    for street in args.street or STREETS:
        folder = args.out / variant / street
        results = []
        for name, arms in ((policy, (PRETRAINED,)), ("baselines", BASELINES)):
            file = folder / name / "results.json"
            if not file.exists():
                print(f"{street}: {', '.join(arms)}", file=sys.stderr, flush=True)
                _prepare(Path(spec.origin).parent / "nets" / "RESCO" / street, folder, args.all_red)
                _evaluate(folder, name, arms, args)
            results += json.loads(file.read_text())["simulations"]
        rows.append(_row(street, results))
    print(_header())
    print("\n".join(rows))
    return 0


def _prepare(source: Path, folder: Path, all_red: str) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / CITY_TOML).unlink(missing_ok=True)
    flags = ["--sumocfg", str(folder / f"{source.name}.sumocfg"), "--out", str(folder / CITY_TOML), "--dialect", "street"]
    subprocess.run([sys.executable, "-m", "greenserve", "city", "init", *flags], check=True, stdout=sys.stderr)
    if all_red != DEFAULT_ALL_RED:
        city_toml = folder / CITY_TOML
        text = city_toml.read_text()
        city_toml.write_text(text.replace("[safety]\n", f"[safety]\nall_red_s = {float(all_red):g}\n", 1))


def _evaluate(folder: Path, name: str, arms: Sequence[str], args: argparse.Namespace) -> None:
    flags = ["--city", str(folder / CITY_TOML), "--arms", ",".join(arms), "--out", str(folder / name)]
    flags += ["--workers", str(args.workers), "--seeds", str(args.seeds), "--first-seed", str(FIRST_SEED)]
    flags += ["--vary-demand"] if args.vary_demand else []
    subprocess.run([sys.executable, "-m", "greenserve", "evaluate", *flags], check=True, stdout=sys.stderr)


def _header() -> str:
    columns = [
        "street", PRETRAINED, "worst seed", "time in the network", *BASELINES, "pretrained - closest baseline (95 % interval)",
        "RESCO: fixed", "max-pressure", "greedy", "IDQN", "IPPO", "best episode",
    ]  # fmt: skip
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def _row(street: str, simulations: Sequence[dict[str, Any]]) -> str:
    delays_s: dict[str, list[float]] = {name: [] for name in (PRETRAINED, *BASELINES)}
    for simulation in sorted(simulations, key=lambda simulation: int(simulation["seed"])):
        delays_s[simulation["arm"]].append(simulation["delay_s"])
    means_s = {name: interval(values).mean for name, values in delays_s.items()}
    # if the highest upper bound is below 0, the policy has less delay than every baseline; one seed has no interval
    differences = [paired(delays_s[PRETRAINED], delays_s[name]) for name in BASELINES]
    difference = max(differences, key=lambda d: d.high if math.isfinite(d.high) else d.mean)
    bounds = f" ({difference.low:+.1f} to {difference.high:+.1f})" if math.isfinite(difference.low) else ""
    duration_s = interval([s["duration_s"] for s in simulations if s["arm"] == PRETRAINED]).mean
    published = ["" if value is None else f"{value:.1f}" for value in STREETS[street]]
    cells = [
        street, f"{means_s[PRETRAINED]:.1f}", f"{max(delays_s[PRETRAINED]):.1f}", f"{duration_s:.1f}",
        *(f"{means_s[name]:.1f}" for name in BASELINES),
        f"{difference.mean:+.1f}{bounds}", *published,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
