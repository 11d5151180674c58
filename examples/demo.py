"""Run the sample city end to end: checkpoints -> models -> server -> controller -> table.

    python demo.py [--out DIR]

`make demo` installs everything and runs this.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import pipeline
from report_page import write_report

from city.arguments import Parser

SEED = 42
STAGES = 4


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of the results (default: out/demo)")
    out = parser.parse_args().out
    begin = time.monotonic()
    shutil.rmtree(out / "models", ignore_errors=True)  # of an earlier run; all other files are overwritten
    out.mkdir(parents=True, exist_ok=True)

    def announce(stage: int, text: str) -> None:
        print(f"[{stage}/{STAGES} at {time.monotonic() - begin:3.0f} s] {text}", flush=True)

    demand = pipeline.GRID / "demand.rou.xml"
    announce(1, "export: write the sample city's trained actors as SavedModels")
    print(f"  {pipeline.export(out / 'models', out / 'export.log')}")
    announce(2, "serving: start the embedded server")
    with pipeline.serving(out / "models", out / "serving.log") as server:
        announce(3, f"controller: simulate one hour under the policies served at {server}")
        print("  simulated:", end="", flush=True)
        served = pipeline.controlled(server, demand, SEED, out, lambda second: print(f" {second} s", end="", flush=True))
        print()
    announce(4, "SUMO: simulate the same demand under the fixed-time plans")
    fixed = pipeline.fixed(demand, SEED, out)
    results = table(fixed, served)
    print(f"\n{results}\n")
    page = write_report(out, fixed, served, results)
    print(f"report: {page.resolve()}   ({time.monotonic() - begin:.0f} s in all)")
    return 0


def table(fixed: pipeline.Run, served: pipeline.Run) -> str:
    """Fixed-time plans against served policies, and the controller's figures."""
    f, s, figures = fixed.trips, served.trips, served.figures
    rows = [
        ("trips finished", f"{f.finished} of {f.total}", f"{s.finished} of {s.total}", ""),
        ("mean delay", f"{f.delay_s:.1f} s", f"{s.delay_s:.1f} s", change(f.delay_s, s.delay_s)),
        ("mean duration", f"{f.duration_s:.1f} s", f"{s.duration_s:.1f} s", change(f.duration_s, s.duration_s)),
        ("mean waiting time", f"{f.waiting_s:.1f} s", f"{s.waiting_s:.1f} s", change(f.waiting_s, s.waiting_s)),
        ("decisions taken", "-", f"{figures['decisions']}", ""),
        ("decision p50", "-", f"{figures['decision_ms_p50']:.2f} ms", ""),
        ("decision p99", "-", f"{figures['decision_ms_p99']:.2f} ms", ""),
        ("missing answers", "-", f"{figures['missing_answers']}", ""),
        ("requests corrected", "-", f"{figures['overrides']}", ""),
    ]
    lines = [f"{'':<20}{'fixed':>16}{'served':>16}{'change':>10}", "-" * 62]
    return "\n".join(lines + [f"{a:<20}{b:>16}{c:>16}{d:>10}".rstrip() for a, b, c, d in rows])


def change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
