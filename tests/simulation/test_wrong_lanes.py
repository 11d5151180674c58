"""Vehicles that stand for ever at the ends of lanes that do not lead where they go."""

import subprocess
import xml.etree.ElementTree as ET

import pytest

from controller.sumo.programs import sumo_program
from simulation.streets import MAX_STANDING_S, RandomTraffic
from tests.end_to_end.handmade_streets import netconvert_plain

NODES = """
    <node id="west" x="-200" y="0" type="priority"/>
    <node id="gore" x="-16" y="0" type="priority"/>
    <node id="fork" x="0" y="0" type="traffic_light"/>
    <node id="north" x="200" y="100" type="priority"/>
    <node id="south" x="200" y="-100" type="priority"/>
"""
EDGES = """
    <edge id="in" from="west" to="gore" numLanes="2"/>
    <edge id="short" from="gore" to="fork" numLanes="2"/>
    <edge id="left" from="fork" to="north" numLanes="1"/>
    <edge id="right" from="fork" to="south" numLanes="1"/>
"""
# each begins at the stop line, in the lane that the other needs
VEHICLES = """<routes>
    <vehicle id="to_left" depart="0" departLane="0" departPos="last" departSpeed="0"><route edges="short left"/></vehicle>
    <vehicle id="to_right" depart="0" departLane="1" departPos="last" departSpeed="0"><route edges="short right"/></vehicle>
    <vehicle id="behind" depart="0" departLane="0"><route edges="in short right"/></vehicle>
</routes>"""


@pytest.mark.parametrize("continues", [True, False])
def test_vehicles_that_need_each_others_lane_continue_after_a_while(continues, tmp_path):
    net_file = netconvert_plain(tmp_path, NODES, EDGES)
    options = RandomTraffic(net_file, 1, 100.0, 300.0).options(tmp_path / "street.sumocfg", tmp_path)
    if not continues:  # as SUMO does without the option
        options = options[: options.index("--time-to-teleport.highways")]
    (tmp_path / "demand.rou.xml").write_text(VEHICLES)
    trips = tmp_path / "tripinfo.xml"
    command = [sumo_program("sumo"), "-n", str(net_file), *options, "--end", "300", "--tripinfo-output", str(trips)]
    subprocess.run([*command, "--no-step-log", "--no-warnings"], check=True, capture_output=True)
    arrived = {trip.get("id"): float(trip.get("duration")) for trip in ET.parse(trips).getroot()}
    assert set(arrived) == ({"to_left", "to_right", "behind"} if continues else set())
    assert all(duration_s < MAX_STANDING_S + 150 for duration_s in arrived.values())
