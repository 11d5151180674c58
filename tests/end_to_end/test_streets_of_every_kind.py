"""Ten minutes of control on networks of every kind, beside ten minutes of their fixed plans."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from city import config, network
from export import pretrained
from greenserve.__main__ import main
from pretraining.street_results import JunctionPolicies
from serving.contract import from_saved_model
from tests.end_to_end import handmade_streets
from tests.end_to_end.generated_streets import AdversarialPolicies, LongestQueue, Street, generate, run, write_demand
from tests.end_to_end.handmade_streets import netconvert_plain

pytestmark = pytest.mark.slow
SECONDS = 600
SIZES = ["--grid.number", "2", "--grid.length", "150", "--grid.attach-length", "150", "--default.lanenumber", "2"]
GRID = ["--grid", *SIZES]
RANDOM = ["--rand", "--rand.iterations", "25", "--rand.grid", "--seed", "5"]
SPIDER = ["--spider", "--spider.arm-number", "5", "--spider.circle-number", "2", "--spider.attach-length", "100"]
JOINED = ["--junctions.join", "--junctions.join-dist", "60", "--tls.join", "--tls.join-dist", "80"]
GENERATED = {
    "crossroads": GRID,
    "left-hand": (*GRID, "--lefthand"),
    "100 km/h": (*GRID, "--default.speed", "27.78"),
    "three arms and more": SPIDER,
    "joined junctions": (*RANDOM, *JOINED),
    "pedestrian crossings": (*GRID, "--sidewalks.guess", "--crossings.guess"),
    "bicycle lanes": (*GRID, "--bikelanes.guess", "--sidewalks.guess", "--crossings.guess"),
    "right on red": (*GRID, "--default-junction-type", "traffic_light_right_on_red"),
    "turn lanes": (*GRID, "--turn-lanes", "1"),
    "no internal links": (*GRID, "--no-internal-links"),
    "a phase per approach": (*GRID, "--tls.layout", "incoming"),
    "actuated": (*GRID, "--tls.default-type", "actuated"),
    "delay-based": (*GRID, "--tls.default-type", "delay_based"),
    "NEMA": (*GRID, "--tls.layout", "opposites", "--tls.default-type", "NEMA", "--turn-lanes", "1"),
}
WITH_WALKERS = {name for name, options in GENERATED.items() if "--crossings.guess" in options}
HANDMADE = {
    "rail crossing beside": handmade_streets.beside_a_rail_crossing,
    "public-transport lanes": handmade_streets.with_bus_lanes,
    "bicycles": handmade_streets.with_bicycles,
    "ramp meter": handmade_streets.with_a_ramp_meter,
}
TIMES = {
    "0.1 s": (0.1, 0.0),
    "0.25 s": (0.25, 0.0),
    "0.5 s from 1234.5 s": (0.5, 1234.5),
    "0.1 s from 0.3 s": (0.1, 0.3),
}


def street_of(name, folder):
    if name in HANDMADE:
        return HANDMADE[name](folder)
    if name in TIMES:
        step_s, begin_s = TIMES[name]
        return replace(generate(folder, *GRID, cars_per_second=0.012), step_s=step_s, begin_s=begin_s)
    if name == "two programs":
        street = generate(folder, *GRID, cars_per_second=0.012)
        plan = network.read(street.net_file).signals["A0"].plan
        phases = "".join(f'<phase duration="{phase.duration_s + 5:g}" state="{phase.state}"/>' for phase in plan.phases)
        additional = folder / "second.add.xml"
        program = f'<tlLogic id="A0" programID="second" type="actuated" offset="3">{phases}</tlLogic>'
        additional.write_text(f"<additional>{program}</additional>")
        return replace(street, additional=(additional,))
    return generate(folder, *GENERATED[name], cars_per_second=0.012, walkers=name in WITH_WALKERS)


@pytest.mark.parametrize("name", [*GENERATED, *HANDMADE, "two programs", *TIMES])
def test_control_is_as_safe_as_the_fixed_plan_and_moves_as_many_vehicles(name, tmp_path):
    street = street_of(name, tmp_path)
    seconds = SECONDS / 2 if name in TIMES else SECONDS  # several steps each
    fixed = run(street, seconds)

    def checked(policies, *options, dialect="sumo-rl"):
        controlled = run(street, seconds, policies, *options, dialect=dialect)
        assert controlled.alarms == [] and controlled.is_released and controlled.decisions > 50
        assert controlled.programs == fixed.programs
        for count in ("collisions", "emergency_stops", "emergency_braking"):
            assert getattr(controlled, count) <= getattr(fixed, count), count
        return controlled

    # it may starve a lane for the 300 s after which SUMO teleports
    checked(lambda _, contracts: AdversarialPolicies("random", contracts))
    longest_queue = checked(LongestQueue)
    # the phases of a NEMA program are single movements, which sumo-rl shows one by one
    assert longest_queue.arrived >= (0.7 if name == "NEMA" else 0.9) * fixed.arrived > 0
    safety = config.Safety(max_red_s=config.STREET_MAX_RED_S)
    shipped = checked(lambda _, own: JunctionPolicies(own, pretrained.policy()), safety, dialect="street")
    # where the last vehicles are when a short run ends is chance
    assert shipped.arrived >= (0.9 if name in TIMES else 0.95) * fixed.arrived
    assert longest_queue.teleports <= fixed.teleports and shipped.teleports <= fixed.teleports


ARMS, LANES = 7, 7
PROGRAM = "many"


def test_a_junction_of_49_lanes_and_14_greens_is_exported_and_controlled(tmp_path):
    """With `city init` and the export's parity check."""
    nodes = '<node id="A0" x="0" y="0" type="traffic_light"/>'
    edges = ""
    for k in range(ARMS):
        angle = 2 * math.pi * k / ARMS
        nodes += f'<node id="n{k}" x="{300 * math.cos(angle):.1f}" y="{300 * math.sin(angle):.1f}"/>'
        for origin, target in ((f"n{k}", "A0"), ("A0", f"n{k}")):
            edges += f'<edge id="{origin}_{target}" from="{origin}" to="{target}" numLanes="{LANES}" speed="13.89"/>'
    net_file = netconvert_plain(tmp_path, nodes, edges, "--tls.layout", "incoming")
    additional = _program_of_halves(tmp_path / "many.add.xml", net_file)
    street = Street(net_file, write_demand(net_file, tmp_path / "demand.rou.xml", 0.01), (additional,))
    (tmp_path / "street.sumocfg").write_text(
        f'<configuration><input><net-file value="{net_file.name}"/><route-files value="demand.rou.xml"/>'
        '<additional-files value="many.add.xml"/></input></configuration>'
    )
    city = tmp_path / "city.toml"
    assert (
        main(["city", "init", "--sumocfg", str(tmp_path / "street.sumocfg"), "--dialect", "street", "--out", str(city)])
        == 0
    )
    models = tmp_path / "models"
    # compares the model with the policy in NumPy
    assert main(["export", "--city", str(city), "--pretrained", "--tl", "all", "--models-dir", str(models)]) == 0
    (version,) = (models / "A0").iterdir()
    contract = from_saved_model(version)
    (signal,) = contract.signals
    assert len(signal.approaches) == ARMS * LANES and contract.action.size == 2 * ARMS
    fixed = run(street, 600)
    controlled = run(
        street,
        600,
        lambda _, own: JunctionPolicies(own, pretrained.policy()),
        config.load(city).safety,
        dialect="street",
    )
    assert controlled.alarms == [] and controlled.collisions == 0
    assert controlled.arrived >= fixed.arrived > 100


def _program_of_halves(path, net_file):
    """A program that serves each arm twice: all of its links, then those of its left lanes alone."""
    (signal,) = network.read(net_file).signals.values()
    phases = []
    for k in range(ARMS):
        for first_lane in (0, LANES // 2):
            served = {f"n{k}_A0_{lane}" for lane in range(first_lane, LANES)}
            state = "".join("G" if any(incoming in served for incoming, _ in link) else "r" for link in signal.links)
            phases += [(10, state), (3, state.replace("G", "y")), (2, "r" * len(state))]
    root = ET.Element("additional")
    logic = ET.SubElement(root, "tlLogic", id=signal.id, type="static", programID=PROGRAM, offset="0")
    for duration_s, state in phases:
        ET.SubElement(logic, "phase", duration=str(duration_s), state=state)
    ET.ElementTree(root).write(path)
    return path
