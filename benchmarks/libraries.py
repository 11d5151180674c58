"""Other libraries train TLs of the sample city beside served neighbours; then their policies control the street.

    python -m benchmarks.libraries [--steps 20000] [--seconds 900] [--venv DIR] [--libraries RLlib ...]

Each library runs its example (examples/train_*.py) in a process of its own: --steps steps of the environment on varied
demand, export, serving, control. Printed are the steps a second, the number of trips in the environment and under the
controller, or that they differ, and the mean delay of the trained and the untrained policy (served:3, served:2) beside
the fixed plan and max-pressure. SA101 learns, with CleanRL and RLlib SA102 too; all other TLs run their programs in the
comparison. PyTorch and the libraries are installed into a virtual environment (--venv keeps it). Exits with 1 if a
library failed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import harness, pytorch_venv
from benchmarks.turns import ROOT

CASES = {
    "stable-baselines3": ("train_in_the_environment.py",),
    "sb3-contrib": ("train_in_the_environment.py", "--masks"),
    "CleanRL": ("train_with_cleanrl.py", "--targets", "SA101,SA102", "--neighbours", "SA104"),
    "RLlib": ("train_with_rllib.py",),
}
"""By library, its example and flags."""


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="of each training (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=900, metavar="S", help="of an episode (default: %(default)s)")
    parser.add_argument("--libraries", nargs="+", choices=CASES, default=list(CASES), help="(default: all)")
    parser.add_argument("--venv", type=Path, metavar="DIR", help="virtual environment to make, or to use again")
    args = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            python = pytorch_venv.create(args.venv or folder / "venv", pytorch_venv.LIBRARIES)
        except pytorch_venv.CannotInstall as error:
            print(f"skipped: {error}")
            return 0
        for library in args.libraries:
            example, *flags = CASES[library]
            print(f"\n{library}", flush=True)
            command = [python, ROOT / "examples" / example, *flags, "--out", folder / library]
            command += ["--steps", str(args.steps), "--seconds", str(args.seconds)]
            if subprocess.run(command).returncode:
                failed.append(library)
    print(f"failed: {', '.join(failed)}" if failed else "all trips are those of the environment")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
