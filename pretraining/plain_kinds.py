"""The plain kinds of signals that people and netconvert build: one street each, with demand at a share of capacity.

They are no product of `synthetic`, from which policies learn: shapes, programs and demand are made here, by netconvert
alone, so that a policy is judged on what its training's generator may have left out.

A level of demand is a share of the capacity that critical movement analysis gives (Transportation Research Board,
Highway Capacity Manual, 6th edition, chapter 19): each link belongs to the first green that shows it G, else g; of each
green the lane with the largest flow relative to SATURATION_VEHICLES_H counts, a yielding left turn for YIELDING_LEFT
vehicles; a cycle of CYCLE_S has CHANGE_S without flow for each green.
"""

import math
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import quoteattr

import sumolib

from city import network
from city.errors import ProgramFailed
from city.network import SignalNetwork, StreetNetwork
from controller.sumo.programs import sumo_program
from signals.policy_signals import distinct_greens, running_program
from signals.safety.conflicts import GREEN

LEVELS = (0.3, 0.6, 0.9)
"""Demand, as shares of capacity."""
ALL_RED = (None, 0.0)
"""`all_red_s` of [safety]: the default, and none."""
SATURATION_VEHICLES_H, YIELDING_LEFT, CYCLE_S, CHANGE_S = 1800.0, 4.0, 90.0, 4.0
END_S = 1200
LEG_M = 400.0
SPEED_MPS = 13.89
LEFT = "lL"
TURN_WEIGHTS = {"r": 0.15, "R": 0.15, "s": 0.65, "l": 0.2, "L": 0.2}
"""Flow of each turn of a leg, by SUMO's directions."""
LEG_WEIGHTS = (1.0, 0.7, 0.9, 0.6, 0.8)
"""Flow of each leg and lane, so that no two legs are equal."""
CONFIGURATION = f"""\
<configuration>
    <net-file value="street.net.xml"/>
    <route-files value="demand.rou.xml"/>
    <additional-files value="programs.add.xml"/>
    <begin value="0"/>
    <end value="{END_S}"/>
</configuration>
"""
NETCONVERT = [
    "--no-turnarounds", "true", "--no-warnings", "true", "--tls.default-type", "static", "--tls.cycle.time", "90",
    "--default.junctions.radius", "10",
]  # fmt: skip
"""Options of all kinds; the radius is such that opposite left turns do not meet."""


@dataclass(frozen=True)
class Kind:
    """A kind of signal: what netconvert is given."""

    name: str
    legs: int = 4
    lanes: int = 1
    pocket_m: float = 0.0
    """Length of a left-turn lane beside the others; 0 without."""
    layout: str = "opposites"
    """netconvert's layout of the program, or one of PROGRAMS."""
    left_green_s: int = 0
    usable_share: float = 1.0
    """Share of the capacity that is left where a lane stands for one of its turns while another has green."""
    has_yielding_leg: bool = False
    """One leg has no signal: it yields."""


SPLIT, LEADING, LAGGING, ARROWS = "incoming", "leading", "lagging", "arrows"
PROGRAMS = (LEADING, LAGGING, ARROWS)
"""Programs made here: lefts first, then both; both, then lefts; lefts with arrows alone."""
KINDS = (
    *(Kind(f"lanes-{n}", lanes=n) for n in (1, 2, 3, 4)),
    *(Kind(f"split-lanes-{n}", lanes=n, layout=SPLIT) for n in (1, 2, 3)),
    *(Kind(f"legs-3-lanes-{n}", legs=3, lanes=n) for n in (1, 2, 3)),
    *(Kind(f"legs-5-lanes-{n}", legs=5, lanes=n) for n in (1, 2)),
    Kind("pocket-10", pocket_m=10),
    Kind("pocket-30", lanes=2, pocket_m=30, left_green_s=6),
    Kind("pocket-60-leading", lanes=2, pocket_m=60, layout=LEADING),
    Kind("pocket-60-lagging", pocket_m=60, layout=LAGGING),
    Kind("arrows-own-lanes", lanes=2, pocket_m=60, layout=ARROWS),
    Kind("arrows-shared-lane", layout=ARROWS, usable_share=0.4),
    Kind("arrows-shared-lanes-2", lanes=2, layout=ARROWS, usable_share=0.5),
    Kind("half-signalised", lanes=2, has_yielding_leg=True),
    Kind("ramp", legs=0, lanes=2),
    Kind("one-way-grid", legs=-1, lanes=2),
)


def write(folder: Path, kinds: Sequence[Kind] = KINDS) -> list[Path]:
    """Write the streets of all kinds, levels and all-reds into `folder`, one folder each, and return these.

    Raises ProgramFailed.
    """
    return [path for kind in kinds for path in _write_kind(folder, kind)]


def _write_kind(folder: Path, kind: Kind) -> list[Path]:
    plain = folder / ".plain" / kind.name
    plain.mkdir(parents=True, exist_ok=True)
    net_file = _network(plain, kind)
    net = sumolib.net.readNet(str(net_file), withPrograms=True)
    additional = f"<additional>\n{_programs(net, kind) if kind.layout in PROGRAMS else ''}</additional>\n"
    flows = _flows(net)
    paths = []
    for level in LEVELS:
        for all_red_s in ALL_RED:
            street = folder / f"{kind.name}-{100 * level:.0f}{'' if all_red_s is None else '-no-all-red'}"
            street.mkdir(exist_ok=True)
            (street / "street.net.xml").write_bytes(net_file.read_bytes())
            (street / "programs.add.xml").write_text(additional)
            (street / "street.sumocfg").write_text(CONFIGURATION)
            signals = network.of_sumocfg(street / "street.sumocfg")
            capacity = _capacity_vehicles_h(net, signals, flows)
            (street / "demand.rou.xml").write_text(_demand_xml(flows, level * kind.usable_share * capacity))
            (street / "city.toml").write_text(_city_toml(signals, all_red_s))
            paths.append(street)
    return paths


def _network(folder: Path, kind: Kind) -> Path:
    """Build a kind's network from plain XML, with netconvert. Raises ProgramFailed."""
    if kind.legs > 0:
        nodes, edges = _crossing(kind)
    else:
        nodes, edges = _grid(kind.lanes) if kind.legs else _ramp(kind.lanes)
    options = []
    for name, lines in (("node", nodes), ("edge", edges)):
        path = folder / f"plain.{name}.xml"
        path.write_text(f"<{name}s>\n{''.join(lines)}</{name}s>\n")
        options += [f"--{name}-files", str(path)]
    if kind.has_yielding_leg:
        path = folder / "plain.connection.xml"
        connections = "".join(
            f'<connection from="A3-C" to="C-A{to}" fromLane="{lane}" toLane="{lane}" uncontrolled="true"/>\n'
            for to, lane in ((0, 0), (1, 0), (1, 1), (2, 1))
        )
        path.write_text(f"<connections>\n{connections}</connections>\n")
        options += ["--connection-files", str(path)]
    layout = kind.layout if kind.layout == SPLIT else "opposites"
    net_file = folder / "street.net.xml"
    command = [
        sumo_program("netconvert"), *NETCONVERT, *options, "--tls.layout", layout, "--tls.left-green.time",
        str(kind.left_green_s), "--output-file", str(net_file),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise ProgramFailed(f"netconvert cannot build {kind.name}: {result.stderr.strip().splitlines()[:1]}")
    return net_file


def _node(name: str, x: float, y: float, kind: str = "priority") -> str:
    return f'<node id="{name}" x="{x:.1f}" y="{y:.1f}" type="{kind}"/>\n'


def _edge(start: str, end: str, lanes: int, pocket_m: float = 0.0, priority: int = 2) -> str:
    split = ""
    if pocket_m:
        few, more = (" ".join(map(str, range(n))) for n in (lanes, lanes + 1))
        split = f'<split pos="0" lanes="{few}"/><split pos="{-pocket_m:g}" lanes="{more}"/>'
    return (
        f'<edge id="{start}-{end}" from="{start}" to="{end}" numLanes="{lanes + bool(pocket_m)}" '
        f'speed="{SPEED_MPS}" priority="{priority}">{split}</edge>\n'
    )


def _crossing(kind: Kind) -> tuple[list[str], list[str]]:
    """A signal C with legs that end at A0, A1, ..."""
    nodes, edges = [_node("C", 0, 0, "traffic_light")], []
    # three legs of a crossing of four, so that two are opposite
    angles = [360 / max(kind.legs, 4) * k for k in range(kind.legs)]
    for k, degrees in enumerate(angles):
        end = f"A{k}"
        x, y = LEG_M * math.cos(math.radians(degrees)), LEG_M * math.sin(math.radians(degrees))
        nodes.append(_node(end, x, y))
        edges += [_edge(end, "C", kind.lanes, kind.pocket_m), _edge("C", end, kind.lanes)]
    return nodes, edges


def _ramp(lanes: int) -> tuple[list[str], list[str]]:
    """A main road W-C-E, onto which a ramp S-C merges, with a signal for both."""
    nodes = [_node("W", -LEG_M, 0), _node("S", -LEG_M, -120), _node("C", 0, 0, "traffic_light"), _node("E", LEG_M, 0)]
    return nodes, [_edge("W", "C", lanes), _edge("S", "C", 1), _edge("C", "E", lanes)]


def _grid(lanes: int) -> tuple[list[str], list[str]]:
    """Four signals of four one-way roads, 200 m apart; neighbouring roads have opposite directions."""
    places = {f"{a}{b}": (200.0 * a, 200.0 * b) for a in range(4) for b in range(4) if {a, b} & {1, 2}}
    nodes = [
        _node(name, x, y, "traffic_light" if {int(name[0]), int(name[1])} <= {1, 2} else "priority")
        for name, (x, y) in places.items()
    ]
    edges = []
    for line in (1, 2):
        steps = [(k, k + 1) if line == 1 else (k + 1, k) for k in range(3)]
        edges += [_edge(f"{a}{line}", f"{b}{line}", lanes) for a, b in steps]
        edges += [_edge(f"{line}{a}", f"{line}{b}", lanes) for a, b in steps]
    return nodes, edges


def _programs(net: sumolib.net.Net, kind: Kind) -> str:
    """The program of signal C in which two opposite legs' left turns have greens of their own."""
    links = sorted(net.getTLS("C").getConnections(), key=lambda link: link[2])
    # an edge with a pocket is cut in two
    turns = [
        (incoming.getEdge().getID().partition(".")[0], _turn(incoming, outgoing)) for incoming, outgoing, _ in links
    ]
    phases = []
    for axis in ({"A0-C", "A2-C"}, {"A1-C", "A3-C"}):
        ahead = "".join("G" if edge in axis and turn not in LEFT else "r" for edge, turn in turns)
        lefts = "".join("G" if edge in axis and turn in LEFT else "r" for edge, turn in turns)
        both = "".join("g" if left == "G" else c for left, c in zip(lefts, ahead, strict=True))
        order = {LEADING: (lefts, both), LAGGING: (both, lefts), ARROWS: (ahead, lefts)}[kind.layout]
        for green, following in zip(order, (order[1], "r" * len(turns)), strict=True):
            yellow = "".join("y" if c in GREEN and n == "r" else c for c, n in zip(green, following, strict=True))
            phases += [(green, 12 if green == lefts else 25), (yellow, 3)]
    lines = "".join(f'    <phase duration="{seconds}" state="{state}"/>\n' for state, seconds in phases)
    return f'<tlLogic id="C" type="static" programID="plain" offset="0">\n{lines}</tlLogic>\n'


def _turn(incoming: sumolib.net.lane.Lane, outgoing: sumolib.net.lane.Lane) -> str:
    """SUMO's direction of a connection: r, s, l, ..."""
    return next(str(c.getDirection()) for c in incoming.getOutgoing() if c.getToLane() is outgoing)


def _flows(net: sumolib.net.Net) -> dict[tuple[str, str], float]:
    """Relative flows by (first edge, last edge)."""
    edges = net.getEdges()
    flows = {}
    for number, start in enumerate(edge for edge in edges if not edge.getIncoming()):
        from_here = LEG_WEIGHTS[number % len(LEG_WEIGHTS)] * start.getLaneNumber()
        for end in (edge for edge in edges if not edge.getOutgoing()):
            path, _ = net.getShortestPath(start, end)
            if path:
                turns = {_turn(c.getFromLane(), c.getToLane()) for a, b in pairwise(path) for c in a.getOutgoing()[b]}
                flows[start.getID(), end.getID()] = from_here * min(TURN_WEIGHTS[turn] for turn in turns)
    return flows


def _demand_xml(flows: Mapping[tuple[str, str], float], vehicles_h: float) -> str:
    """A route file with random arrivals (Poisson). `vehicles_h`: of a flow of 1."""
    lines = "".join(
        f'    <flow id="{start}_{end}" from={quoteattr(start)} to={quoteattr(end)} begin="0" end="{END_S}" '
        f'period="exp({flow * vehicles_h / 3600:.6f})" departLane="best" departSpeed="max"/>\n'
        for (start, end), flow in flows.items()
    )
    return f"<routes>\n{lines}</routes>\n"


def _capacity_vehicles_h(net: sumolib.net.Net, street: StreetNetwork, flows: Mapping[tuple[str, str], float]) -> float:
    """Vehicles per hour of a flow of 1 at which the first signal is saturated."""
    by_pair: dict[tuple[str, str], float] = defaultdict(float)
    for (start, end), flow in flows.items():
        path, _ = net.getShortestPath(net.getEdge(start), net.getEdge(end))
        for a, b in pairwise(path):
            lanes = [(c.getFromLane(), c.getToLane()) for c in a.getOutgoing()[b]]
            for incoming, outgoing in lanes:
                by_pair[incoming.getID(), outgoing.getID()] += flow / len(lanes)
    return min(_signal_capacity(net, signal, by_pair) for signal in street.signals.values())


def _signal_capacity(net: sumolib.net.Net, signal: SignalNetwork, flows: Mapping[tuple[str, str], float]) -> float:
    """As `_capacity_vehicles_h`, of one signal. `flows`: by (incoming lane, outgoing lane)."""
    greens = distinct_greens(signal, running_program(signal))
    of_green: list[dict[str, float]] = [defaultdict(float) for _ in greens]
    for k, pairs in enumerate(signal.links):
        shown = [green[k] for green in greens]
        if not set(shown) & set(GREEN):
            continue
        for incoming, outgoing in pairs:
            turn = _turn(net.getLane(incoming), net.getLane(outgoing))
            weight = YIELDING_LEFT if turn in LEFT and "G" not in shown else 1.0
            first = shown.index("G" if "G" in shown else "g")
            of_green[first][incoming] += weight * flows.get((incoming, outgoing), 0.0)
    critical = sum(max(lanes.values(), default=0.0) for lanes in of_green) / SATURATION_VEHICLES_H
    return (1 - len(greens) * CHANGE_S / CYCLE_S) / critical


def _city_toml(street: StreetNetwork, all_red_s: float | None) -> str:
    tables = "".join(f'[tl.{name}]\nsignals = ["{name}"]\ndialect = "street"\n' for name in street.signals)
    safety = "" if all_red_s is None else f"[safety]\nall_red_s = {all_red_s:g}\n"
    return f'[network]\nsumocfg = "street.sumocfg"\n{safety}{tables}'
