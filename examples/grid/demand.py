"""Generate one morning hour of demand for the sample city from a seed.

    python demand.py --seed 7 --out demand.rou.xml [--scale 1.0]

The peak is asymmetric: traffic from the west and the south to the east and the north
grows until the 35th minute; the opposite directions and the cross traffic are constant.
Departures are a Poisson process thinned by the profile, so every seed is another
sample of the same demand. duarouter chooses the routes with randomised travel times,
so that vehicles from the same origin take different routes.
"""

import argparse
import random
import re
import subprocess
from pathlib import Path

import sumo

DUAROUTER = Path(sumo.SUMO_HOME) / "bin" / "duarouter"
HERE = Path(__file__).resolve().parent
HOUR_S = 3600
DEPARTURES_END_S = 3300
"""End of the departures, so that most trips end within the hour."""

WEST, EAST = ("left0", "left1", "left2"), ("right0", "right1", "right2")
SOUTH, NORTH = ("bottom0", "bottom1", "bottom2"), ("top0", "top1", "top2")
FLOWS = (
    (WEST, EAST, 1080, 0.75),
    (SOUTH, NORTH, 840, 0.70),
    (WEST, NORTH, 310, 0.65),
    (SOUTH, EAST, 380, 0.65),
    (EAST, WEST, 310, 0.0),
    (NORTH, SOUTH, 360, 0.0),
    (EAST, SOUTH, 145, 0.0),
    (NORTH, WEST, 145, 0.0),
    (SOUTH, WEST, 130, 0.0),
    (NORTH, EAST, 155, 0.0),
)
"""(origins, destinations, vehicles per hour at the peak, peakedness: 0 is constant)."""
ROAD_WEIGHT = (0.3, 0.45, 0.25)
"""Share of a side's traffic by road."""


def profile(t_s: float, peaked: float) -> float:
    """Share of the peak rate at second t_s, in [1 - peaked, 1]."""
    rise = min(t_s / 2100.0, max(0.0, (HOUR_S - t_s) / 1500.0))
    return 1.0 - peaked * (1.0 - rise)


def node_edges(node: str) -> tuple[str, str]:
    """The entry edge and the exit edge of a boundary node of the grid."""
    side, i = node[:-1], node[-1]
    inner = {"left": f"A{i}", "right": f"C{i}"}.get(side)
    if inner is None:
        inner = f"{'ABC'[int(i)]}{'0' if side == 'bottom' else '2'}"
    return f"{node}{inner}", f"{inner}{node}"


def trips(seed: int, scale: float) -> list[tuple[float, str, str]]:
    """(departure in s, entry edge, exit edge), sorted by departure."""
    rng = random.Random(seed)
    departures = []
    for origins, destinations, peak_per_hour, peaked in FLOWS:
        t_s = 0.0
        while True:
            t_s += rng.expovariate(scale * peak_per_hour / HOUR_S)
            if t_s >= DEPARTURES_END_S:
                break
            if rng.random() <= profile(t_s, peaked):
                origin = rng.choices(origins, ROAD_WEIGHT)[0]
                destination = rng.choices(destinations, ROAD_WEIGHT)[0]
                departures.append((t_s, node_edges(origin)[0], node_edges(destination)[1]))
    return sorted(departures)


def write(path: Path, seed: int, scale: float = 1.0) -> int:
    """Write routed demand to `path`; return the number of vehicles."""
    path = Path(path)
    departures = trips(seed, scale)
    raw = path.with_suffix(".trips.tmp.xml")
    with raw.open("w") as file:
        file.write('<routes>\n    <vType id="car" sigma="0.5" speedDev="0.1"/>\n')
        for n, (t_s, start, end) in enumerate(departures):
            file.write(
                f'    <trip id="{n}" type="car" depart="{t_s:.2f}" from="{start}" to="{end}" '
                'departLane="best" departSpeed="max"/>\n'
            )
        file.write("</routes>\n")
    command = [DUAROUTER, "-n", HERE / "grid.net.xml", "-r", raw, "-o", path, "--seed", seed]
    command += ["--weights.random-factor", "1.3", "--no-step-log", "--no-warnings", "--alternatives-output", "NUL"]
    try:
        subprocess.run([str(argument) for argument in command], check=True, stdout=subprocess.DEVNULL)
    finally:
        raw.unlink(missing_ok=True)
    # duarouter's header contains the paths of the machine it ran on
    path.write_text(re.sub(r"<!--.*?-->\s*", "", path.read_text(), count=1, flags=re.DOTALL))
    return len(departures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--out", type=Path, default=HERE / "demand.rou.xml", help="route file to write")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of vehicles (default: 1.0)")
    args = parser.parse_args()
    print(f"{args.out}: {write(args.out, args.seed, args.scale)} vehicles")
