"""Compare the sample city's policies with fixed, actuated and max-pressure control on demand that training never saw.

    python evaluate.py [--seeds 5] [--out DIR]

The demand is demand.rou.xml (seed 1 of demand.py; training used seeds 1000 to 1023), with
other drivers in every simulation: the intervals are over drivers on this one demand. Exports
the checkpoints, then runs `greenserve evaluate`.
Exit code 3: the policies are not better than max-pressure, the best of the baselines.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pipeline

from city.arguments import Parser
from evaluation.__main__ import main as evaluate


def main() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="5", help="simulations of each arm (default: 5)")
    parser.add_argument("--out", default="out/evaluation", help="folder of the results (default: out/evaluation)")
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(pipeline.export(folder / "models", Path(args.out) / "export.log"), flush=True)
        flags = ["--city", str(pipeline.CITY), "--models-dir", str(folder / "models"), "--gate", "max-pressure"]
        flags.append("--same-demand")
        return evaluate([*flags, "--seeds", args.seeds, "--workers", str(os.cpu_count() or 1), "--out", args.out])


if __name__ == "__main__":
    sys.exit(pipeline.exit_code(main))
