"""Generate a grid of 1,000 signals, or of a multiple, with traffic: netgenerate, randomTrips and duarouter.

python -m benchmarks.thousand_signals FOLDER
"""

import subprocess
import sys
from pathlib import Path

import sumo

BIN, TOOLS = Path(sumo.SUMO_HOME) / "bin", Path(sumo.SUMO_HOME) / "tools"
NETGENERATE = (
    "--grid --grid.y-number 25 --grid.length 150 --grid.attach-length 150 --default.lanenumber 1 "
    "--default-junction-type traffic_light --tls.default-type static --no-turnarounds --seed 42"
)
END_S, MINUTE_S = 300, 60
DAY, NIGHT = (9000, 1300), (300, 300)
"""Vehicles that depart in the first minute, anywhere, and in each later one. By day there are about
as many running vehicles (`sumo --summary-output`) per controlled signal as in cologne8 (8.6 in its
first 1,200 s) and ingolstadt7 (12.9); by night there are nearly none, and SUMO has little to do."""


def write(folder: Path, traffic: tuple[int, int], thousands: int = 1) -> Path:
    """Write the network and its traffic (of each thousand signals); return the .sumocfg."""
    first, later = (thousands * count for count in traffic)
    size = ["--grid.x-number", str(40 * thousands)]
    net, routes, cfg = folder / "thousand.net.xml", folder / "thousand.rou.xml", folder / "thousand.sumocfg"
    subprocess.run(
        [str(BIN / "netgenerate"), *NETGENERATE.split(), *size, "--output-file", str(net)],
        check=True,
        capture_output=True,
    )
    periods = [MINUTE_S / count for count in (first, *[later] * (END_S // MINUTE_S - 1))]
    # routes are computed in advance, as in the other scenarios, so that routing is not measured
    arguments = [
        "-n",
        str(net),
        "-o",
        str(folder / "thousand.trips.xml"),
        "-r",
        str(routes),
        "-e",
        str(END_S),
        "--seed",
        "42",
    ]
    arguments += ["--random-departpos", "-p", *map(str, periods)]
    subprocess.run(
        [sys.executable, str(TOOLS / "randomTrips.py"), *arguments], check=True, capture_output=True, cwd=folder
    )
    cfg.write_text(
        f'<configuration><input><net-file value="{net.name}"/><route-files value="{routes.name}"/></input>'
        f'<time><begin value="0"/><end value="{END_S}"/></time></configuration>\n'
    )
    return cfg


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), DAY))
