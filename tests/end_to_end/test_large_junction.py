"""A junction of 49 lanes and 14 greens: city init, export with parity check, control."""

import math
import xml.etree.ElementTree as ET

import pytest

from city import config, network
from export import pretrained
from greenserve.__main__ import main
from pretraining.street_results import JunctionPolicies
from serving.contract import from_saved_model
from tests.end_to_end.generated_streets import Street, run, write_demand
from tests.end_to_end.handmade_streets import netconvert_plain

ARMS, LANES = 7, 7
PROGRAM = "many"


# export with its parity check and control of dialect street are also tested, on smaller junctions, in every run
@pytest.mark.slow
def test_a_junction_of_49_lanes_and_14_greens_is_exported_and_controlled(tmp_path):
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
