"""The main job on the sample city: checkpoints -> models -> server -> controller -> table.

    python demo.py [--out DIR]

`make demo` sets everything up and runs this.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pipeline
from report_page import write_report

SEED = 42


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    begin = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)

    def tell(step, text):
        print(f"\n[{step}/4 at {time.monotonic() - begin:3.0f} s] {text}", flush=True)

    demand = pipeline.GRID / "demand.rou.xml"
    tell(1, "export: the sample city's trained actors become SavedModels")
    pipeline.export(out / "models")
    tell(2, "serving: the embedded server takes them up")
    with pipeline.serving(out / "models", out / "serving.log") as server:
        tell(3, f"controller: one simulated hour under the policies served at {server}")
        served = pipeline.controlled(server, demand, SEED, out)
    tell(4, "SUMO: the same demand under the fixed-time plans")
    fixed = pipeline.fixed(demand, SEED, out)
    print(f"\n{table(fixed, served)}\n")
    page = write_report(out, fixed, served, table(fixed, served))
    print(f"report: {page.resolve()}   ({time.monotonic() - begin:.0f} s in all)")


def table(fixed, served):
    """One table, fixed against served."""
    f, s, n = fixed.trips, served.trips, served.figures
    rows = [
        ("trips finished", f"{f.finished} of {f.all}", f"{s.finished} of {s.all}", ""),
        ("mean delay", f"{f.delay_s:.1f} s", f"{s.delay_s:.1f} s", change(f.delay_s, s.delay_s)),
        ("mean duration", f"{f.duration_s:.1f} s", f"{s.duration_s:.1f} s", change(f.duration_s, s.duration_s)),
        ("mean waiting time", f"{f.waiting_s:.1f} s", f"{s.waiting_s:.1f} s", change(f.waiting_s, s.waiting_s)),
        ("decisions taken", "-", f"{n['decisions']}", ""),
        ("decision p50", "-", f"{n['decision_ms_p50']:.2f} ms", ""),
        ("decision p99", "-", f"{n['decision_ms_p99']:.2f} ms", ""),
        ("fallbacks", "-", f"{n['failures']}", ""),
        ("safety overrides", "-", f"{n['overrides']}", ""),
    ]
    lines = [f"{'':<20}{'fixed':>16}{'served':>16}{'change':>10}", "-" * 62]
    return "\n".join(lines + [f"{a:<20}{b:>16}{c:>16}{d:>10}" for a, b, c, d in rows])


def change(before, after):
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


if __name__ == "__main__":
    try:
        main()
    except (subprocess.CalledProcessError, RuntimeError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; every program it started has been ended")
