"""Plain kinds of signals that people and netconvert build: one street each, with demand at a share of capacity.

Policies learn from the streets of `synthetic`. Shapes, programs and demand of these here are made by other code, with
netconvert alone, so that a policy is judged on streets that the training's generator may have left out.

A level of demand is a share of the capacity that critical movement analysis gives (Transportation Research Board,
Highway Capacity Manual, 6th edition, chapter 19): each link belongs to the first green that shows it G, else g; of each
green the lane with the largest flow relative to SATURATION_VEHICLES_H counts, a yielding left turn for YIELDING_LEFT
vehicles; a cycle of CYCLE_S has CHANGE_S and the all-red without flow for each green.
"""

import math
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import quoteattr

import sumolib

from city import config, network
from city.errors import ProgramFailed
from city.network import SignalNetwork, StreetNetwork
from controller.sumo.programs import sumo_program
from pretraining.synthetic import plain_network
from signals.policy_signals import distinct_greens, running_program
from signals.safety.conflicts import GREEN

LEVELS = (0.3, 0.6, 0.9)
"""Demand, as shares of capacity."""
ALL_REDS_S = (0, 2)
"""All-red of the programs, which controlled signals keep too: no arm has other change times."""
SATURATION_VEHICLES_H, YIELDING_LEFT, CYCLE_S, CHANGE_S, YELLOW_S = 1800.0, 4.0, 90, 4, 3
END_S = 1200
LEG_M = 400.0
SPEED_MPS = 13.89
WALKERS_H = 180
"""Persons per hour and direction of a pedestrian crossing."""
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
    "--no-turnarounds", "true", "--no-warnings", "true", "--tls.default-type", "static",
    "--tls.cycle.time", str(CYCLE_S), "--tls.yellow.time", str(YELLOW_S), "--default.junctions.radius", "10",
]  # fmt: skip
"""Options of all kinds; the radius is such that opposite left turns do not meet."""
CROSSING, FOOTWAY, RAMP, ONE_WAY_GRID = "crossing", "footway", "ramp", "one-way-grid"
"""Shapes: legs around a signal; a pedestrian crossing of a road; a ramp onto a road; signals of one-way roads."""
OPPOSITES, SPLIT = "opposites", "incoming"
"""netconvert's programs: a green for two opposite legs, and one for each leg."""
LEADING, LAGGING, ARROWS = "leading", "lagging", "arrows"
"""Programs made here: lefts first, then both; both, then lefts; lefts with arrows alone."""


@dataclass(frozen=True)
class Kind:
    """A kind of signal."""

    name: str
    shape: str = CROSSING
    legs: int = 4
    """Number of legs of a CROSSING."""
    lanes: int = 1
    """Lanes of each leg, without the pocket."""
    pocket_m: float = 0.0
    """Length of a left-turn lane beside the others; 0 without."""
    layout: str = OPPOSITES
    """The signal's program."""
    left_green_s: int = 0
    """netconvert's green for left turns alone, after both; 0 without."""
    usable_share: float = 1.0
    """Share of the capacity that is left if a lane stands for one of its turns while another has green."""
    has_yielding_leg: bool = False
    """True if one leg has no signal: it yields."""


KINDS = (
    *(Kind(f"lanes-{n}", lanes=n) for n in (1, 2, 3, 4)),
    *(Kind(f"split-lanes-{n}", lanes=n, layout=SPLIT) for n in (1, 2, 3)),
    Kind("legs-2-footway", FOOTWAY, lanes=2),
    *(Kind(f"legs-3-lanes-{n}", legs=3, lanes=n) for n in (1, 2, 3)),
    *(Kind(f"legs-5-lanes-{n}", legs=5, lanes=n) for n in (1, 2)),
    Kind("pocket-10", pocket_m=10, usable_share=0.7),
    Kind("pocket-30", lanes=2, pocket_m=30, left_green_s=6),
    Kind("pocket-60-leading", lanes=2, pocket_m=60, layout=LEADING),
    Kind("pocket-60-lagging", pocket_m=60, layout=LAGGING),
    Kind("arrows-own-lanes", lanes=2, pocket_m=60, layout=ARROWS),
    *(Kind(f"{layout}-shared-lane", layout=layout, usable_share=0.5) for layout in (LEADING, LAGGING)),
    Kind("arrows-shared-lane", layout=ARROWS, usable_share=0.35),
    Kind("arrows-shared-lanes-2", lanes=2, layout=ARROWS, usable_share=0.5),
    Kind("half-signalised", lanes=2, has_yielding_leg=True),
    Kind("ramp", RAMP, lanes=2),
    Kind("one-way-grid", ONE_WAY_GRID, lanes=2),
)


def write(folder: Path, kinds: Sequence[Kind] = KINDS) -> list[Path]:
    """Write the streets of all kinds, all-reds and levels into `folder`, one folder each, and return these.

    Raises ProgramFailed.
    """
    return [path for kind in kinds for all_red_s in ALL_REDS_S for path in _write_kind(folder, kind, all_red_s)]


def _write_kind(folder: Path, kind: Kind, all_red_s: int) -> list[Path]:
    with tempfile.TemporaryDirectory(prefix="greenserve-") as name:
        scratch = Path(name)
        net_file = _network(scratch, kind, all_red_s)
        net = sumolib.net.readNet(str(net_file), withPrograms=True)
        programs = _program(net, kind, all_red_s) if kind.layout in (LEADING, LAGGING, ARROWS) else ""
        files = {
            "street.net.xml": net_file.read_text(),
            "programs.add.xml": f"<additional>\n{programs}</additional>\n",
            "street.sumocfg": CONFIGURATION,
        }
        for file, text in files.items():
            (scratch / file).write_text(text)
        street = network.of_sumocfg(scratch / "street.sumocfg")
    flows = _flows(net)
    capacity_vehicles_h = kind.usable_share * _capacity_vehicles_h(net, street, flows, CHANGE_S + all_red_s)
    tls = "".join(f'[tl.{name}]\nsignals = ["{name}"]\ndialect = "street"\n' for name in street.signals)
    safety = f"[safety]\nmax_red_s = {config.STREET_MAX_RED_S:g}\n"
    files["city.toml"] = f'[network]\nsumocfg = "street.sumocfg"\n{safety}{tls}'
    paths = []
    for level in LEVELS:
        path = folder / f"{kind.name}-{100 * level:.0f}{f'-all-red-{all_red_s}' if all_red_s else ''}"
        path.mkdir(parents=True, exist_ok=True)
        files["demand.rou.xml"] = _demand_xml(kind, flows, level * capacity_vehicles_h)
        for file, text in files.items():
            (path / file).write_text(text)
        paths.append(path)
    return paths


def _network(folder: Path, kind: Kind, all_red_s: int) -> Path:
    """Build a kind's network from plain XML, with netconvert. Raises ProgramFailed."""
    nodes, edges = {CROSSING: _legs, FOOTWAY: _footway, RAMP: _ramp, ONE_WAY_GRID: _grid}[kind.shape](kind)
    connections = []
    if kind.shape == FOOTWAY:
        connections.append('<crossing node="C" edges="W-C C-W" width="4"/>\n')
    if kind.has_yielding_leg:
        connections += [
            f'<connection from="A3-C" to="C-A{to}" fromLane="{lane}" toLane="{lane}" uncontrolled="true"/>\n'
            for to, lane in ((0, 0), (1, 0), (1, 1), (2, 1))
        ]
    options = plain_network.write_xml(folder, nodes, edges, connections)
    net_file = folder / "street.net.xml"
    command = [
        sumo_program("netconvert"), *NETCONVERT, *options, "--output-file", str(net_file),
        "--tls.layout", kind.layout if kind.layout == SPLIT else OPPOSITES,
        "--tls.left-green.time", str(kind.left_green_s), "--tls.allred.time", str(all_red_s),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise ProgramFailed(f"netconvert cannot build {kind.name}: {result.stderr.strip()[:200]!r}")
    return net_file


def _node(name: str, x: float, y: float, kind: str = "priority") -> str:
    return f'<node id="{name}" x="{x:.1f}" y="{y:.1f}" type="{kind}"/>\n'


def _edge(start: str, end: str, lanes: int, pocket_m: float = 0.0, sidewalk_m: float = -1.0) -> str:
    split = ""
    if pocket_m:
        few, more = (" ".join(map(str, range(n))) for n in (lanes, lanes + 1))
        split = f'<split pos="0" lanes="{few}"/><split pos="{-pocket_m:g}" lanes="{more}"/>'
    return (
        f'<edge id="{start}-{end}" from="{start}" to="{end}" numLanes="{lanes + bool(pocket_m)}" '
        f'speed="{SPEED_MPS}" priority="2" sidewalkWidth="{sidewalk_m:g}">{split}</edge>\n'
    )


def _legs(kind: Kind) -> tuple[list[str], list[str]]:
    """A signal C with legs that end at A0, A1, ..."""
    nodes, edges = [_node("C", 0, 0, "traffic_light")], []
    for k in range(kind.legs):
        # three legs of a crossing of four, so that two are opposite
        angle = 2 * math.pi * k / max(kind.legs, 4)
        nodes.append(_node(f"A{k}", LEG_M * math.cos(angle), LEG_M * math.sin(angle)))
        edges += [_edge(f"A{k}", "C", kind.lanes, kind.pocket_m), _edge("C", f"A{k}", kind.lanes)]
    return nodes, edges


def _footway(kind: Kind) -> tuple[list[str], list[str]]:
    """A road W-C-E; people cross it at signal C."""
    nodes = [_node("W", -LEG_M, 0), _node("C", 0, 0, "traffic_light"), _node("E", LEG_M, 0)]
    return nodes, [_edge(a, b, kind.lanes, sidewalk_m=2) for a, b in ("WC", "CE", "EC", "CW")]


def _ramp(kind: Kind) -> tuple[list[str], list[str]]:
    """A main road W-C-E, onto which a ramp S-C merges, with a signal for both."""
    nodes = [_node("W", -LEG_M, 0), _node("S", -LEG_M, -120), _node("C", 0, 0, "traffic_light"), _node("E", LEG_M, 0)]
    return nodes, [_edge("W", "C", kind.lanes), _edge("S", "C", 1), _edge("C", "E", kind.lanes)]


def _grid(kind: Kind) -> tuple[list[str], list[str]]:
    """Four signals of four one-way roads, 200 m apart; neighbouring roads have opposite directions."""
    places = [(a, b) for a in range(4) for b in range(4) if {a, b} & {1, 2}]
    nodes = [
        _node(f"{a}{b}", 200.0 * a, 200.0 * b, "traffic_light" if {a, b} <= {1, 2} else "priority") for a, b in places
    ]
    edges = []
    for line in (1, 2):
        steps = [(k, k + 1) if line == 1 else (k + 1, k) for k in range(3)]
        edges += [_edge(f"{a}{line}", f"{b}{line}", kind.lanes) for a, b in steps]
        edges += [_edge(f"{line}{a}", f"{line}{b}", kind.lanes) for a, b in steps]
    return nodes, edges


def _program(net: sumolib.net.Net, kind: Kind, all_red_s: int) -> str:
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
            phases.append((green, 12 if green == lefts else 25))
            phases += _change(green, following, all_red_s)
    lines = "".join(f'    <phase duration="{seconds}" state="{state}"/>\n' for state, seconds in phases)
    return f'<tlLogic id="C" type="static" programID="plain" offset="0">\n{lines}</tlLogic>\n'


def _change(green: str, following: str, all_red_s: int) -> list[tuple[str, int]]:
    """The phases between two greens: (state, seconds)."""
    ends = [c in GREEN and n == "r" for c, n in zip(green, following, strict=True)]
    phases = []
    if any(ends):
        phases.append(("".join("y" if end else c for c, end in zip(green, ends, strict=True)), YELLOW_S))
    # links that stay green have no foe among the following ones, as in netconvert's programs
    if all_red_s and all(c == "r" or end for c, end in zip(green, ends, strict=True)):
        phases.append(("r" * len(green), all_red_s))
    return phases


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


def _demand_xml(kind: Kind, flows: Mapping[tuple[str, str], float], vehicles_h: float) -> str:
    """A route file with random arrivals (Poisson). `vehicles_h`: of a flow of 1."""
    lines = "".join(
        f'    <flow id="{start}_{end}" from={quoteattr(start)} to={quoteattr(end)} begin="0" end="{END_S}" '
        f'period="exp({flow * vehicles_h / 3600:.6f})" departLane="best" departSpeed="max"/>\n'
        for (start, end), flow in flows.items()
    )
    if kind.shape == FOOTWAY:
        lines += "".join(
            f'    <personFlow id="{start}_{end}" begin="0" end="{END_S}" period="exp({WALKERS_H / 3600})" '
            f'departPos="{at:g}"><walk from="{start}" to="{end}" arrivalPos="{to:g}"/></personFlow>\n'
            for start, at, end, to in (("W-C", -20, "C-W", 20), ("C-W", 20, "W-C", -20))
        )
    return f"<routes>\n{lines}</routes>\n"


def _capacity_vehicles_h(
    net: sumolib.net.Net, street: StreetNetwork, flows: Mapping[tuple[str, str], float], change_s: float
) -> float:
    """Vehicles per hour of a flow of 1 at which the first signal is saturated."""
    by_pair: dict[tuple[str, str], float] = defaultdict(float)
    for (start, end), flow in flows.items():
        path, _ = net.getShortestPath(net.getEdge(start), net.getEdge(end))
        for a, b in pairwise(path):
            lanes = [(c.getFromLane(), c.getToLane()) for c in a.getOutgoing()[b]]
            for incoming, outgoing in lanes:
                by_pair[incoming.getID(), outgoing.getID()] += flow / len(lanes)
    return min(_signal_capacity(net, signal, by_pair, change_s) for signal in street.signals.values())


def _signal_capacity(
    net: sumolib.net.Net, signal: SignalNetwork, flows: Mapping[tuple[str, str], float], change_s: float
) -> float:
    """Capacity of one signal, as `_capacity_vehicles_h` has it. `flows`: by (incoming lane, outgoing lane)."""
    greens = distinct_greens(signal, running_program(signal))
    of_green: list[dict[str, float]] = [defaultdict(float) for _ in greens]
    for k, pairs in enumerate(signal.links):
        shown = [green[k] for green in greens]
        if signal.crossing_m[k] or not set(shown) & set(GREEN):
            continue
        for incoming, outgoing in pairs:
            turn = _turn(net.getLane(incoming), net.getLane(outgoing))
            weight = YIELDING_LEFT if turn in LEFT and "G" not in shown else 1.0
            first = shown.index("G" if "G" in shown else "g")
            of_green[first][incoming] += weight * flows.get((incoming, outgoing), 0.0)
    critical = sum(max(lanes.values(), default=0.0) for lanes in of_green) / SATURATION_VEHICLES_H
    return (1 - len(greens) * change_s / CYCLE_S) / critical
