"""Compare served policies with fixed-time plans on demand that training never saw.

    python evaluate.py [--seeds 9001,9002,9003,9004,9005]

Exports the sample city's checkpoints, serves them, and simulates each demand seed
under the served policies and under the fixed-time plans. Prints the mean delay per
seed and over all. Exit code 1: the mean delay is not at least 20 % lower.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import pipeline
from grid import demand

from city.arguments import Parser
from city.errors import InputError

MIN_REDUCTION = 0.20
"""Relative reduction of the mean delay."""


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="9001,9002,9003,9004,9005", help="demand seeds, separated by commas")
    text = parser.parse_args().seeds
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text!r} must be whole numbers separated by commas, such as 9001,9002") from None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(pipeline.export(folder / "models", folder / "export.log"), flush=True)
        rows = []
        with pipeline.serving(folder / "models", folder / "serving.log") as server:
            for seed in seeds:
                route_file = folder / f"{seed}.rou.xml"
                demand.write(route_file, seed)
                served = pipeline.controlled(server, route_file, seed, folder)
                fixed = pipeline.fixed(route_file, seed, folder)
                rows.append((seed, fixed.trips, served.trips, served.figures["missing_answers"]))
                print(f"seed {seed} simulated", flush=True)
    print(f"\n{'seed':>6}{'fixed delay':>14}{'served delay':>14}{'change':>10}{'trips':>14}{'missing answers':>17}")
    for seed, before, after, missing_answers in rows:
        change = 100 * (after.delay_s / before.delay_s - 1)
        trips = f"{after.finished}/{after.total}"
        print(f"{seed:>6}{before.delay_s:>12.1f} s{after.delay_s:>12.1f} s{change:>8.1f} %{trips:>14}{missing_answers:>17}")
    fixed_s = sum(before.delay_s for _, before, _, _ in rows) / len(rows)
    served_s = sum(after.delay_s for _, _, after, _ in rows) / len(rows)
    reduction = 1 - served_s / fixed_s
    print(f"{'mean':>6}{fixed_s:>12.1f} s{served_s:>12.1f} s{-100 * reduction:>8.1f} %")
    if reduction < MIN_REDUCTION:
        print(
            f"error: the mean delay is {100 * reduction:.1f} % lower; at least {100 * MIN_REDUCTION:g} % is required",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
