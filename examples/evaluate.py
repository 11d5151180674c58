"""Are the served policies worth serving? Five mornings that training never saw.

    python evaluate.py [--seeds 9001,9002,9003,9004,9005]

Exports the sample city's checkpoints, serves them, and runs each demand seed
under the served policies and under the fixed-time plans. Prints mean delay by
seed and over all; ends with 1 where it is not at least 20 % lower.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import pipeline
from grid import demand

WANTED = 0.20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="9001,9002,9003,9004,9005")
    seeds = [int(word) for word in parser.parse_args().seeds.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline.export(folder / "models")
        rows = []
        with pipeline.serving(folder / "models", folder / "serving.log") as server:
            for seed in seeds:
                route_file = folder / f"{seed}.rou.xml"
                demand.write(route_file, seed)
                served = pipeline.controlled(server, route_file, seed, folder)
                fixed = pipeline.fixed(route_file, seed, folder)
                rows.append((seed, fixed.trips, served.trips, served.figures["failures"]))
    print(f"\n{'seed':>6}{'fixed delay':>14}{'served delay':>14}{'change':>10}{'trips':>14}{'fallbacks':>11}")
    for seed, fixed, served, failures in rows:
        gain = 100 * (served.delay_s / fixed.delay_s - 1)
        trips = f"{served.finished}/{served.all}"
        print(f"{seed:>6}{fixed.delay_s:>12.1f} s{served.delay_s:>12.1f} s{gain:>8.1f} %{trips:>14}{failures:>11}")
    fixed_s = sum(fixed.delay_s for _, fixed, _, _ in rows) / len(rows)
    served_s = sum(served.delay_s for _, _, served, _ in rows) / len(rows)
    gain = 1 - served_s / fixed_s
    print(f"{'mean':>6}{fixed_s:>12.1f} s{served_s:>12.1f} s{-100 * gain:>8.1f} %")
    return 0 if gain >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
