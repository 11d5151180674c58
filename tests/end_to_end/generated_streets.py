"""Streets of netgenerate with demand, run by their fixed plans or under our controller in the real SUMO."""

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city import config, network
from city.network import StreetNetwork, green_states
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from signals import contract
from signals.policy import Answer
from tests.controller.decision_events import Alarms
from tests.end_to_end.controlled_city import ControlledCity
from tests.networks import netgenerate

PASSENGERS_PER_SECOND = 0.01


@dataclass(frozen=True)
class Street:
    net_file: Path
    routes: Path
    additional: tuple[Path, ...] = ()
    begin_s: float = 0.0
    step_s: float = 1.0
    options: tuple[str, ...] = ()
    """More options of SUMO."""


@dataclass
class Outcome:
    """What SUMO counted, and what the controller did."""

    arrived: int
    collisions: int
    """On junctions with a signal, and on the roads that leave them."""
    teleports: int
    emergency_stops: int
    emergency_braking: int
    alarms: Sequence[str] = ()
    decisions: int = 0
    is_released: bool = True
    programs: Mapping[str, str] | None = None
    """By signal, the program that it runs at the end."""


def generate(
    folder: Path, *options: str, cars_per_second: float = PASSENGERS_PER_SECOND, walkers: bool = False
) -> Street:
    """A street of netgenerate with a flow between every two of its outer roads."""
    net_file = netgenerate(folder / "street.net.xml", "--no-turnarounds", *options)
    return Street(net_file, write_demand(net_file, folder / "demand.rou.xml", cars_per_second, walkers))


def write_demand(net_file: Path, path: Path, cars_per_second: float, walkers: bool = False) -> Path:
    """A flow of cars, and of pedestrians with `walkers`, between every two of a network's outer roads."""
    root = ET.parse(net_file).getroot()
    roads = {
        edge.get("id"): edge for edge in root.iter("edge") if edge.get("function") != "internal" and edge.get("from")
    }
    connections = [(c.get("from"), c.get("to")) for c in root.iter("connection") if not c.get("from").startswith(":")]
    entries = set(roads) - {target for _, target in connections}
    exits = set(roads) - {origin for origin, _ in connections}
    ways = [
        (name, other)
        for name, edge in roads.items()
        for other, target in roads.items()
        if name in entries and other in exits and edge.get("from") != target.get("to")
    ]
    flows = []
    for k, (origin, target) in enumerate(ways):
        flows.append(
            f'<flow id="car{k}" begin="0" end="100000" probability="{cars_per_second}" from="{origin}" to="{target}" '
            'departLane="best" departSpeed="max"/>'
        )
        if walkers:
            flows.append(
                f'<personFlow id="walker{k}" begin="0" end="100000" probability="{cars_per_second / 4}">'
                f'<walk from="{origin}" to="{target}"/></personFlow>'
            )
    path.write_text(f"<routes>{''.join(flows)}</routes>")
    return path


class LongestQueue:
    """A sensible policy of the sumo-rl dialect: the green whose lanes have the longest queues."""

    def __init__(self, street: StreetNetwork, contracts: Sequence) -> None:
        self._serves = {}
        for each in contracts:
            signal = street.signals[each.signal_ids[0]]
            lanes = list(each.signals[0].lane_ids)
            self._serves[each.tl] = np.array(
                [
                    [
                        any(
                            c in "gG" and lane in {a for a, _ in link}
                            for c, link in zip(state, signal.links, strict=False)
                        )
                        for lane in lanes
                    ]
                    for state in green_states(phase.state for phase in each.signals[0].phases)
                ],
                float,
            )

    def ask(self, observations, observed_s=None):
        return {
            tl: Answer(np.array([int((self._serves[tl] @ o[-self._serves[tl].shape[1] :]).argmax())]))
            for tl, o in observations.items()
        }


class AdversarialPolicies:
    """Policies that ask for what no trained policy should."""

    def __init__(self, kind, contracts):
        self.kind, self.sizes = kind, {c.tl: c.action.size for c in contracts}
        self.rng, self.requests = np.random.default_rng(1), 0

    def ask(self, observations, observed_s=None):
        self.requests += 1
        return {tl: self.answer(self.sizes[tl]) for tl in observations}

    def answer(self, size):
        match self.kind:
            case "random":
                return Answer(self.rng.integers(size, size=1))
            case "constant":
                return Answer(np.array([size - 1]))
            case "flipping":
                return Answer(np.array([self.requests % size]))
            case "nonsense":
                values = [np.nan, np.inf, -1.0, float(size), 0.5, 1e30]
                return Answer(self.rng.choice([np.array([value]) for value in [*values, 0.0, 1.0]] + [np.zeros(7)[:1]]))
            case "intermittent" | "max-pressure":
                return (
                    Answer(np.array([self.requests % size])) if self.requests % 40 < 15 else TimeoutError("no answer")
                )


def run(
    street: Street,
    seconds: float,
    policies: Callable[[StreetNetwork, Sequence], object] | None = None,
    safety: config.Safety | None = None,
    control: config.Controller | None = None,
    release_s: float = 60,
    dialect: str = "sumo-rl",
) -> Outcome:
    """Run the street: by its fixed plans without `policies`, else under control, and released for the last release_s
    seconds."""
    statistics, collisions = (street.net_file.with_suffix(f".{name}.xml") for name in ("statistics", "collisions"))
    options = ["-n", str(street.net_file), "-r", str(street.routes), "--begin", str(street.begin_s), "--seed", "1"]
    options += ["--step-length", str(street.step_s), "--no-step-log", "true", "--no-warnings", "true"]
    options += ["--statistic-output", str(statistics), "--duration-log.statistics", "true"]
    options += ["--collision-output", str(collisions), *street.options]
    if street.additional:
        options += ["--additional-files", ",".join(map(str, street.additional))]
    end_s, controlled = street.begin_s + seconds, {}
    with contextlib.closing(connect(SumoAccess(arguments=options), Interrupts())) as connection:
        if policies is not None:
            read = network.read(street.net_file, list(street.additional), street.begin_s)
            city = config.City(
                street.net_file, safety=safety or config.Safety(), controller=control or config.Controller()
            )
            contracts = [
                contract.build(city, config.TL((signal.id,), dialect, signal.id), read)
                for signal in read.signals.values()
                if signal.first_program.greens
            ]
            alarms = Alarms()
            run = ControlledCity(connection, city, read, contracts, policies(read, contracts), [alarms])
            run.advance(seconds - release_s)
            run.loop.release(end_s)
            controlled = {
                "decisions": run.loop.counters.decisions,
                "is_released": all(intersection.is_released for intersection in run.loop.intersections.values()),
                "alarms": alarms,
            }
        connection.api.simulationStep(end_s)
        if policies is not None:
            run.loop.finish()
        light = connection.api.trafficlight
        programs = {signal: light.getProgram(signal) for signal in light.getIDList()}
    counted, places = ET.parse(statistics).getroot(), _controlled_places(street.net_file)
    return Outcome(
        arrived=int(counted.find("vehicleTripStatistics").get("count")),
        collisions=sum(
            each.get("lane").rsplit("_", 2 if each.get("lane").startswith(":") else 1)[0] in places
            for each in ET.parse(collisions).getroot().iter("collision")
        ),
        teleports=int(counted.find("teleports").get("total")),
        emergency_stops=int(counted.find("safety").get("emergencyStops")),
        emergency_braking=int(counted.find("safety").get("emergencyBraking")),
        programs=programs,
        **controlled,
    )


def _controlled_places(net_file: Path) -> set[str]:
    """Junctions with a signal, as in the names of their internal lanes (`:junction`), and the edges that leave them."""
    root = ET.parse(net_file).getroot()
    start_of = {edge.get("id"): edge.get("from") for edge in root.iter("edge")}
    left_by = {connection.get("to") for connection in root.iter("connection") if connection.get("tl")}
    return left_by | {f":{start_of[edge]}" for edge in left_by}
