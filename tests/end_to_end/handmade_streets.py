"""Streets that netgenerate cannot draw, in netconvert's plain XML: a rail crossing beside, a lane for buses, a ramp
meter."""

import subprocess
from pathlib import Path

from controller.sumo.programs import sumo_program
from tests.end_to_end.generated_streets import Street

ARMS = {"north": (0, 200), "east": (200, 0), "south": (0, -200), "west": (-200, 0)}


def netconvert_plain(folder: Path, nodes: str, edges: str, *options: str) -> Path:
    """A network of plain nodes and edges."""
    net_file = folder / "street.net.xml"
    (folder / "plain.nod.xml").write_text(f"<nodes>{nodes}</nodes>")
    (folder / "plain.edg.xml").write_text(f"<edges>{edges}</edges>")
    command = [sumo_program("netconvert"), "-n", str(folder / "plain.nod.xml"), "-e", str(folder / "plain.edg.xml")]
    subprocess.run([*command, "--no-turnarounds", *options, "-o", str(net_file)], check=True, capture_output=True)
    return net_file


def crossroads(lanes: str = "") -> tuple[str, str]:
    """(nodes, edges) of a signal with four arms of two lanes. `lanes`: what is special about the lanes of every
    edge."""
    nodes = '<node id="A0" x="0" y="0" type="traffic_light"/>'
    edges = ""
    for name, (x, y) in ARMS.items():
        nodes += f'<node id="{name}" x="{x}" y="{y}"/>'
        for origin, target in ((name, "A0"), ("A0", name)):
            edges += (
                f'<edge id="{origin}_{target}" from="{origin}" to="{target}" numLanes="2" speed="13.89">{lanes}</edge>'
            )
    return nodes, edges


def demand(folder: Path, flows: dict[str, tuple[str, str, float]], ways: bool = True) -> Path:
    """Flows by vehicle class: {id: (vClass, from edge and to edge, vehicles per second)}; cars on every way with
    `ways`."""
    text = "".join(
        f'<vType id="type_{name}" vClass="{vehicle_class}"/>'
        f'<flow id="{name}" type="type_{name}" begin="0" end="100000" probability="{per_second}" from="{edges.split()[0]}" to="{edges.split()[1]}"/>'
        for name, (vehicle_class, edges, per_second) in flows.items()
    )
    if ways:
        text += "".join(
            f'<flow id="{origin}_{target}" begin="0" end="100000" probability="0.03" from="{origin}_A0" '
            f'to="A0_{target}" departLane="best" departSpeed="max"/>'
            for origin in ARMS
            for target in ARMS
            if origin != target
        )
    path = folder / "demand.rou.xml"
    path.write_text(f"<routes>{text}</routes>")
    return path


def beside_a_rail_crossing(folder: Path) -> Street:
    """A signal 100 m from a rail crossing on its eastern arm."""
    nodes, edges = crossroads()
    nodes += '<node id="R" x="100" y="0" type="rail_crossing"/><node id="r0" x="100" y="-900"/><node id="r1" x="100" y="900"/>'
    for origin, target in (("east", "R"), ("R", "east")):
        edges += f'<edge id="{origin}_{target}" from="{origin}" to="{target}" numLanes="2" speed="13.89"/>'
    for origin, target in (("r0", "R"), ("R", "r1")):
        edges += f'<edge id="{origin}_{target}" from="{origin}" to="{target}" allow="rail" speed="30"/>'
    edges = edges.replace('id="east_A0" from="east"', 'id="east_A0" from="R"').replace(
        'from="A0" to="east"', 'from="A0" to="R"'
    )
    return Street(netconvert_plain(folder, nodes, edges), demand(folder, {"train": ("rail", "r0_R R_r1", 0.01)}))


def with_bus_lanes(folder: Path) -> Street:
    net_file = netconvert_plain(folder, *crossroads('<lane index="0" allow="bus"/>'))
    buses = {f"bus{k}": ("bus", edges, 0.02) for k, edges in enumerate(("west_A0 A0_east", "south_A0 A0_north"))}
    return Street(net_file, demand(folder, buses))


def with_bicycles(folder: Path) -> Street:
    net_file = netconvert_plain(
        folder, *crossroads(), "--bikelanes.guess", "--bikelanes.guess.from-permissions", "false"
    )
    bicycles = {
        f"bicycle{k}": ("bicycle", edges, 0.05)
        for k, edges in enumerate(("west_A0 A0_east", "south_A0 A0_north", "east_A0 A0_south"))
    }
    return Street(net_file, demand(folder, bicycles))


def with_a_ramp_meter(folder: Path) -> Street:
    """A motorway whose ramp has a signal of a single link, with a program of green, yellow and red."""
    nodes = (
        '<node id="a" x="-500" y="0"/><node id="m" x="0" y="0" type="priority"/><node id="b" x="500" y="0"/>'
        '<node id="s" x="-200" y="-120"/><node id="A0" x="-100" y="-60" type="traffic_light"/>'
    )
    roads = (("a", "m", 2, 30), ("m", "b", 3, 30), ("s", "A0", 1, 14), ("A0", "m", 1, 20))
    edges = "".join(
        f'<edge id="{origin}_{target}" from="{origin}" to="{target}" numLanes="{lanes}" speed="{speed}"/>'
        for origin, target, lanes, speed in roads
    )
    net_file = netconvert_plain(folder, nodes, edges)
    additional = folder / "meter.add.xml"
    phases = '<phase duration="4" state="G"/><phase duration="3" state="y"/><phase duration="6" state="r"/>'
    additional.write_text(
        f'<additional><tlLogic id="A0" type="static" programID="meter" offset="0">{phases}</tlLogic></additional>'
    )
    flows = {"through": ("passenger", "a_m m_b", 0.4), "ramp": ("passenger", "s_A0 m_b", 0.15)}
    return Street(net_file, demand(folder, flows, ways=False), (additional,))
