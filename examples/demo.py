"""Run the sample city end to end: checkpoints -> models -> server -> controller -> comparison.

    python demo.py [--out DIR]

`make demo` installs everything and runs this example.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import pipeline

from city.arguments import Parser

SEED = 42
SEEDS = 2
"""Simulations of each arm in the comparison."""
STAGES = 4


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of the results (default: out/demo)")
    out = parser.parse_args().out
    begin = time.monotonic()
    shutil.rmtree(out / "models", ignore_errors=True)  # models of an earlier run; the other files are overwritten
    out.mkdir(parents=True, exist_ok=True)

    def announce(stage: int, text: str) -> None:
        print(f"[{stage}/{STAGES} at {time.monotonic() - begin:3.0f} s] {text}", flush=True)

    announce(1, "export: write the sample city's trained actors as SavedModels")
    print(f"  {pipeline.export(out / 'models', out / 'export.log')}")
    announce(2, "serving: start the embedded server")
    with pipeline.serving(out / "models", out / "serving.log") as server:
        announce(3, f"controller: simulate one hour under the policies served at {server}")
        print("  simulated:", end="", flush=True)
        run = pipeline.controlled(server, SEED, out, lambda second: print(f" {second} s", end="", flush=True))
        print(f"\n{table(run)}")
        announce(
            4, f"evaluation: the same policies beside fixed, actuated and max-pressure control, {SEEDS} seeds each"
        )
        flags = ["--server", server, "--seeds", SEEDS, "--workers", os.cpu_count() or 1, "--out", out]
        print(f"\n{pipeline.evaluation(flags, out / 'evaluation.log')}   ({time.monotonic() - begin:.0f} s in all)")
    return 0


def table(run: pipeline.Run) -> str:
    """The controller's results as a table."""
    trips, figures = run.trips, run.figures
    rows = [
        ("trips finished", f"{trips.finished} of {trips.total}"),
        ("mean delay", f"{trips.delay_s:.1f} s"),
        ("decisions taken", f"{figures['decisions']}"),
        ("decision p50", f"{figures['decision_ms_p50']:.2f} ms"),
        ("decision p99", f"{figures['decision_ms_p99']:.2f} ms"),
        ("missing answers", f"{figures['missing_answers']}"),
        ("requests corrected", f"{figures['overrides']}"),
    ]
    return "\n".join(f"  {name:<20}{value:>16}" for name, value in rows)


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
