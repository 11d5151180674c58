"""A grid of 1,000 signals with traffic, made by netgenerate and randomTrips.

python -m benchmarks.thousand_signals FOLDER
"""

import subprocess
import sys
from pathlib import Path

import sumo

BIN, TOOLS = Path(sumo.SUMO_HOME) / "bin", Path(sumo.SUMO_HOME) / "tools"
NETGENERATE = (
    "--grid --grid.x-number 40 --grid.y-number 25 --grid.length 150 --grid.attach-length 150 --default.lanenumber 1 "
    "--default-junction-type traffic_light --tls.default-type static --no-turnarounds --seed 42"
)
END_S, PERIOD_S = 1200, 0.2
"""Vehicles depart until END_S, one every PERIOD_S."""


def write(folder: Path) -> Path:
    """The .sumocfg."""
    net, trips, cfg = folder / "thousand.net.xml", folder / "thousand.trips.xml", folder / "thousand.sumocfg"
    subprocess.run([str(BIN / "netgenerate"), *NETGENERATE.split(), "--output-file", str(net)], check=True, capture_output=True)
    words = ["-n", str(net), "-o", str(trips), "-e", str(END_S), "-p", str(PERIOD_S), "--seed", "42", "--fringe-factor", "3"]
    subprocess.run([sys.executable, str(TOOLS / "randomTrips.py"), *words], check=True, capture_output=True, cwd=folder)
    cfg.write_text(
        f'<configuration><input><net-file value="{net.name}"/><route-files value="{trips.name}"/></input>'
        f'<time><begin value="0"/><end value="{END_S}"/></time></configuration>\n'
    )
    return cfg


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
