"""Streets of netgenerate with demand, run by their fixed plans or under our controller in the real SUMO."""

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from city import config, network
from city.network import StreetNetwork, green_states
from controller.assembly import ControlledTls, assemble
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from signals import contract
from signals.policy import Answer
from tests.controller.decision_events import Alarms
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
    alarms: list[str] = field(default_factory=list)
    overrides: Mapping[str, int] = field(default_factory=dict)
    decisions: int = 0
    overruled: int = 0
    longest_shown_s: float = 0.0
    """The longest time for which a signal showed one state."""
    is_released: bool = True
    programs: Mapping[str, str] = field(default_factory=dict)
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


class RandomChoice:
    """Another green in nearly every decision."""

    def __init__(self, contracts: Sequence, seed: int = 1) -> None:
        self._sizes = {each.tl: each.action.size for each in contracts}
        self._rng = np.random.default_rng(seed)

    def ask(self, observations, observed_s=None):
        return {tl: Answer(self._rng.integers(self._sizes[tl], size=1)) for tl in observations}


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
    end_s = street.begin_s + seconds
    outcome = Outcome(0, 0, 0, 0, 0)
    with contextlib.closing(connect(SumoAccess(arguments=options), Interrupts())) as connection:
        if policies is None:
            connection.api.simulationStep(end_s)
        else:
            controlled_s = seconds - release_s
            safety, control, alarms = safety or config.Safety(), control or config.Controller(), Alarms()
            loop = _control(connection, street, controlled_s, policies, dialect, safety, control, outcome, alarms)
            if release_s:
                loop.release(end_s)
                outcome.is_released = all(intersection.is_released for intersection in loop.intersections.values())
                connection.api.simulationStep(end_s)
            loop.finish()
            outcome.alarms = [f"{alarm.signal} at {alarm.at_s:g}: {alarm.rule} {alarm.message}" for alarm in alarms]
        light = connection.api.trafficlight
        outcome.programs = {signal: light.getProgram(signal) for signal in light.getIDList()}
    counted = ET.parse(statistics).getroot()
    outcome.arrived = int(counted.find("vehicleTripStatistics").get("count"))
    places = _controlled_places(street.net_file)
    outcome.collisions = sum(
        each.get("lane").rsplit("_", 2 if each.get("lane").startswith(":") else 1)[0] in places
        for each in ET.parse(collisions).getroot().iter("collision")
    )
    outcome.emergency_stops = int(counted.find("safety").get("emergencyStops"))
    outcome.emergency_braking = int(counted.find("safety").get("emergencyBraking"))
    outcome.teleports = int(counted.find("teleports").get("total"))
    return outcome


def _controlled_places(net_file: Path) -> set[str]:
    """Junctions with a signal, as in the names of their internal lanes (`:junction`), and the edges that leave them."""
    root = ET.parse(net_file).getroot()
    start_of = {edge.get("id"): edge.get("from") for edge in root.iter("edge")}
    left_by = {connection.get("to") for connection in root.iter("connection") if connection.get("tl")}
    return left_by | {f":{start_of[edge]}" for edge in left_by}


def _control(connection, street, seconds, policies, dialect, safety, control, outcome, alarms):
    read = network.read(street.net_file, list(street.additional), street.begin_s)
    city = config.City(street.net_file)
    contracts = [
        contract.build(city, config.TL((signal.id,), dialect, signal.id), read)
        for signal in read.signals.values()
        if signal.first_program.greens
    ]
    loop = assemble(connection, ControlledTls(read, contracts, safety, control), policies(read, contracts), [alarms])
    shown_since: dict[str, tuple[str, float]] = {}
    end_s = street.begin_s + seconds
    while loop.now < end_s:
        loop.step(end_s)
        for signal, state in connection.shown().items():
            before, since_s = shown_since.get(signal, ("", loop.now))
            if state != before:
                shown_since[signal] = state, loop.now
            outcome.longest_shown_s = max(outcome.longest_shown_s, loop.now - since_s)
    outcome.overrides = dict(loop.counters.overrides)
    outcome.decisions = loop.counters.decisions
    outcome.overruled = sum(loop.counters.overruled_by_tl.values())
    return loop
