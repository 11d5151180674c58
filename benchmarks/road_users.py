"""Mean time lost of cars, buses, walkers and trains under the policy for any street.

    python -m benchmarks.road_users [--streets 20] [--seconds 1200] [--policy FILE] [--max-red 300]

The streets are held-out synthetic ones (seeds from 1,000,000, no training has them) whose signals have pedestrian
crossings, a junction with a lane for buses on each arm, and a signal 100 m from a rail crossing, with 40 trains an
hour. `max_red_s` is the value of --max-red; its default is 300, as `greenserve city init` writes it. Arms: the shipped
policy (or --policy), SUMO's actuated control, max-pressure and the fixed programs, each with the same demand. Prints
the mean time lost (for vehicles with the departure delay), in s, and the number of road users.

Goal: no class of road users loses more time than under actuated control.
"""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from benchmarks import harness
from city import config, network
from controller.sumo.programs import sumo_program
from evaluation import road_users
from evaluation.arms import ACTUATED, FIXED, MAX_PRESSURE, POLICY, PRETRAINED
from evaluation.road_users import RoadUsers
from export import pretrained
from pretraining.evaluate_command import HELD_OUT_SEED
from pretraining.street_results import control_of
from pretraining.streets import SUMOCFG, RandomTraffic, city_of
from pretraining.synthetic.streets import generate
from simulation.controlled_simulation import ControlledSimulation
from simulation.demand import Demand, SimulatedDemand
from simulation.street_simulation import simulated

ARMS = (PRETRAINED, ACTUATED, MAX_PRESSURE, FIXED)
VEHICLES_PER_LANE_H = 150.0
ROADS = {"north": (0, 200), "east": (200, 0), "south": (0, -200), "west": (-200, 0)}


@dataclass(frozen=True)
class Case:
    """Streets of one kind."""

    name: str
    streets: Sequence[tuple[Path, SimulatedDemand]]
    """Their folders, and the demand of each."""


def with_crossings(folder: Path, count: int, seconds: float) -> Case:
    """Held-out synthetic streets whose signals have pedestrian crossings."""
    found: list[tuple[Path, SimulatedDemand]] = []
    for seed in itertools.count(HELD_OUT_SEED):
        street = generate(folder, seed)
        city = city_of(street)
        signals = network.of_city(city).signals
        if any(any(signals[signal].crossing_m) for tl in city.tls.values() for signal in tl.signals):
            found.append((street, RandomTraffic(street / "street.net.xml", seed, VEHICLES_PER_LANE_H, seconds)))
        if len(found) == count:
            return Case(f"{count} synthetic streets with crossings", found)
    raise AssertionError("the seeds do not end")


def crossroads(
    folder: Path, name: str, lanes: str, has_railway: bool, flows: Sequence[tuple[str, str, float]], seconds: float
) -> Case:
    """A signal with four roads of two lanes each, and cars on all ways.

    Args:
        folder: where a folder of the street is made.
        name: of the case.
        lanes: what is special about each road's lanes, in netconvert's plain XML.
        has_railway: whether a railway crosses the eastern road, 100 m from the signal.
        flows: more vehicles: class, edges, vehicles per second.
        seconds: simulated time.
    """
    street = folder / name.replace(" ", "_")
    street.mkdir()
    nodes = '<node id="A0" x="0" y="0" type="traffic_light"/>'
    edges = ""
    for road, (x, y) in ROADS.items():
        nodes += f'<node id="{road}" x="{x}" y="{y}"/>'
        near = "R" if has_railway and road == "east" else road
        pairs = [(near, "A0", f"{road}_A0"), ("A0", near, f"A0_{road}")]
        if near == "R":
            nodes += '<node id="R" x="100" y="0" type="rail_crossing"/>'
            nodes += '<node id="r0" x="100" y="-900"/><node id="r1" x="100" y="900"/>'
            pairs += [("east", "R", "east_R"), ("R", "east", "R_east")]
            edges += "".join(
                f'<edge id="{a}_{b}" from="{a}" to="{b}" allow="rail" speed="30"/>'
                for a, b in (("r0", "R"), ("R", "r1"))
            )
        edges += "".join(
            f'<edge id="{e}" from="{a}" to="{b}" numLanes="2" speed="13.89">{lanes}</edge>' for a, b, e in pairs
        )
    (street / "plain.nod.xml").write_text(f"<nodes>{nodes}</nodes>")
    (street / "plain.edg.xml").write_text(f"<edges>{edges}</edges>")
    files = ["-n", street / "plain.nod.xml", "-e", street / "plain.edg.xml", "-o", street / "street.net.xml"]
    subprocess.run([sumo_program("netconvert"), *map(str, files), "--no-turnarounds"], check=True, capture_output=True)
    ways = [("car", f"{a}_A0 A0_{b}", 0.04) for a, b in itertools.permutations(ROADS, 2)]
    types = {"car": "passenger", "bus": "bus", "rail": "rail"}
    routes = "".join(f'<vType id="{kind}" vClass="{vehicle_class}"/>' for kind, vehicle_class in types.items())
    for k, (kind, way, per_second) in enumerate([*ways, *flows]):
        first, last = way.split()
        depart = ' departLane="best" departSpeed="max"' if kind == "car" else ""
        way_of = f'from="{first}" to="{last}"{depart}'
        routes += f'<flow id="{k}" type="{kind}" begin="0" end="{seconds}" probability="{per_second}" {way_of}/>'
    (street / "demand.rou.xml").write_text(f"<routes>{routes}</routes>")
    (street / SUMOCFG).write_text(
        '<configuration><input><net-file value="street.net.xml"/><route-files value="demand.rou.xml"/></input>'
        f'<time><begin value="0"/><end value="{seconds}"/></time></configuration>'
    )
    return Case(name, [(street, Demand(seed)) for seed in range(101, 106)])


def simulate(
    folder: Path, demand: SimulatedDemand, arm: str, policy: Path, seconds: float, max_red_s: float, scratch: Path
) -> dict[str, RoadUsers]:
    """The road users of a street under an arm, by class."""
    city = city_of(folder)
    city = replace(city, safety=replace(city.safety, max_red_s=max_red_s))
    street = network.of_city(city)
    tripinfo = scratch / "tripinfo.xml"
    kind = POLICY if arm == PRETRAINED else arm
    control, additional = control_of(city, street, kind, policy if kind == POLICY else None, scratch)
    with simulated(city, demand, tripinfo, additional=additional) as connection:
        ControlledSimulation(connection, city, street, control).advance(seconds)
        vehicle_classes = road_users.vehicle_classes(connection.api)
    return road_users.read(tripinfo, vehicle_classes)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--streets", type=int, default=20, metavar="N", help="synthetic streets (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=1200.0, metavar="S", help="simulated time (default: %(default)g)"
    )
    parser.add_argument(
        "--policy", type=Path, default=pretrained.policy(), metavar="FILE", help="(default: the shipped one)"
    )
    parser.add_argument(
        "--max-red", type=float, default=config.STREET_MAX_RED_S, metavar="S", help="max_red_s (default: %(default)g)"
    )
    args = parser.parse_args()
    print(f"| street | road users | {' | '.join(ARMS)} |\n|{' --- |' * (len(ARMS) + 2)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        buses = [("bus", way, 0.02) for way in ("west_A0 A0_east", "south_A0 A0_north")]
        cases = [
            with_crossings(folder / "streets", args.streets, args.seconds),
            crossroads(folder, "lanes for buses", '<lane index="0" allow="bus"/>', False, buses, args.seconds),
            crossroads(folder, "beside a rail crossing", "", True, [("rail", "r0_R R_r1", 0.011)], args.seconds),
        ]
        for case in cases:
            users: dict[str, list[dict[str, RoadUsers]]] = {arm: [] for arm in ARMS}
            jobs = list(itertools.product(case.streets, ARMS))
            for (street, demand), arm in tqdm(jobs, desc=case.name, disable=None, leave=False):
                users[arm].append(simulate(street, demand, arm, args.policy, args.seconds, args.max_red, folder))
            means = {arm: road_users.means(simulations) for arm, simulations in users.items()}
            for kind, own in means[PRETRAINED].items():
                cells = " | ".join(_describe(means[arm][kind]) for arm in ARMS)
                print(f"| {case.name} | {own.total * len(case.streets):,.0f} {kind} | {cells} |", flush=True)


def _describe(users: RoadUsers) -> str:
    return "-" if users.lost_s is None else f"{users.lost_s:.1f}"


if __name__ == "__main__":
    sys.exit(main())
