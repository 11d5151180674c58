"""The policy for any street on RESCO's eight streets, against the baselines, beside the figures that RESCO publishes.

    python -m benchmarks.resco [--seeds 10] [--street NAME ...] [--all-red 0] [--vary-demand] [--workers 2] [--out out/resco]

Each street is that of the sumo-rl wheel, with the city.toml that `greenserve city init --dialect street` writes and `all_red_s`
of --all-red; `--all-red default` leaves the red clearance by the junction's size. `greenserve evaluate` simulates all arms with
SUMO seeds from 101. A street whose results with these flags are in --out already is not simulated again. Prints a table in
Markdown.

Delay in s: time loss and departure delay, mean over all vehicles, as RESCO defines it. "Time in the network" is the pretrained
policy's `duration_s`. RESCO's figures are computed from its repository (https://github.com/Pi-Star-Lab/RESCO,
resco_benchmark/utils/avg_timeLoss.py): of each method the mean of its last ten episodes, and the best single episode of any of
its learners. Its learners explore in these episodes, with SUMO 1.9 and RESCO's yellow and green times; the policy here is frozen
and greedy, under the safety rules.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ARMS = ("pretrained", "fixed", "actuated", "max-pressure", "greedy")
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
    for street in args.street or STREETS:
        folder = args.out / variant / street
        results = folder / "results" / "results.json"
        if not results.exists():
            print(street, file=sys.stderr, flush=True)
            _prepare(Path(spec.origin).parent / "nets" / "RESCO" / street, folder, args.all_red)
            _evaluate(folder, args.seeds, args.workers, args.vary_demand)
        rows.append(_row(street, json.loads(results.read_text())))
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


def _evaluate(folder: Path, seeds: int, workers: int, vary_demand: bool) -> None:
    flags = ["--city", str(folder / CITY_TOML), "--arms", ",".join(ARMS), "--seeds", str(seeds), "--first-seed", str(FIRST_SEED)]
    flags += ["--workers", str(workers), "--out", str(folder / "results"), *(["--vary-demand"] if vary_demand else [])]
    subprocess.run([sys.executable, "-m", "greenserve", "evaluate", *flags], check=True, stdout=sys.stderr)


def _header() -> str:
    columns = [
        "street", "pretrained", "worst seed", "time in the network", *ARMS[1:], "pretrained - best baseline (95 % interval)",
        "RESCO: fixed", "max-pressure", "greedy", "IDQN", "IPPO", "best episode",
    ]  # fmt: skip
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def _row(street: str, results: dict[str, Any]) -> str:
    arms = {name: results["arms"][name]["delay_s"] for name in ARMS}
    duration_s = results["arms"][ARMS[0]]["duration_s"]["mean"]
    best = min(ARMS[1:], key=lambda name: float(arms[name]["mean"]))
    difference = arms[best]["difference"]
    low, mean, high = (difference[key] for key in ("low", "mean", "high"))
    # one seed has no interval
    interval = "" if low is None else f" ({low:+.1f} to {high:+.1f})"
    worst = max(simulation["delay_s"] for simulation in results["simulations"] if simulation["arm"] == ARMS[0])
    published = ["" if value is None else f"{value:.1f}" for value in STREETS[street]]
    cells = [
        street, f"{arms[ARMS[0]]['mean']:.1f}", f"{worst:.1f}", f"{duration_s:.1f}",
        *(f"{arms[name]['mean']:.1f}" for name in ARMS[1:]),
        f"{mean:+.1f}{interval}", *published,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
