"""Rebuild the sample city's street network, demand and fixed-time programs.

    python build.py

1. netgenerate: a 3 x 3 grid of signals, one lane per direction with a left-turn pocket
   150 m before each signal. Left turns get a permissive `g`, then a short protected
   phase.
2. demand.py: the demand of seed 1.
3. SUMO's tlsCycleAdaptation: adapts every signal's cycle length and green splits to
   that demand (Webster). The evaluation compares the served policies with these programs.
"""

import subprocess
import sys
from pathlib import Path

import sumo

HERE = Path(__file__).resolve().parent
BIN = Path(sumo.SUMO_HOME) / "bin"
TOOLS = Path(sumo.SUMO_HOME) / "tools"

NETGENERATE = (
    "--grid --grid.x-number 3 --grid.y-number 3 --grid.length 220 --grid.attach-length 220 "
    "--default.lanenumber 1 --default.speed 13.89 --turn-lanes 1 --turn-lanes.length 150 "
    "--default-junction-type traffic_light --tls.default-type static --no-turnarounds --default.junctions.radius 8 "
    "--seed 42 --output-file grid.net.xml"
)
CYCLE_ADAPTATION = "-n grid.net.xml -r demand.rou.xml -o fixed_time.add.xml --program adapted --yellow-time 3"


def run(*command: str) -> None:
    """Print and run a command in this folder."""
    print("$", " ".join(Path(part).name if "/" in part else part for part in command))
    subprocess.run(command, cwd=HERE, check=True)


if __name__ == "__main__":
    run(str(BIN / "netgenerate"), *NETGENERATE.split())
    run(sys.executable, "demand.py", "--seed", "1", "--out", "demand.rou.xml")
    run(sys.executable, str(TOOLS / "tlsCycleAdaptation.py"), *CYCLE_ADAPTATION.split())
