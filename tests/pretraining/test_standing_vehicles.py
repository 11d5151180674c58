"""Vehicles that would stand for ever: at the end of a lane that does not lead where they go, and inside a junction."""

import subprocess
import xml.etree.ElementTree as ET

import pytest

from controller.sumo.programs import sumo_program
from pretraining.streets import MAX_STANDING_S, RandomTraffic
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
CROSSING_NODES = """
    <node id="west" x="-200" y="0" type="priority"/>
    <node id="east" x="200" y="0" type="priority"/>
    <node id="south" x="0" y="-200" type="priority"/>
    <node id="north" x="0" y="200" type="priority"/>
    <node id="middle" x="0" y="0" type="traffic_light" keepClear="false"/>
"""
CROSSING_EDGES = """
    <edge id="from_west" from="west" to="middle" numLanes="1"/>
    <edge id="to_east" from="middle" to="east" numLanes="1"/>
    <edge id="from_south" from="south" to="middle" numLanes="1"/>
    <edge id="to_north" from="middle" to="north" numLanes="1"/>
"""
# each begins at the stop line, in the lane that the other needs
VEHICLES = """<routes>
    <vehicle id="to_left" depart="0" departLane="0" departPos="last" departSpeed="0"><route edges="short left"/></vehicle>
    <vehicle id="to_right" depart="0" departLane="1" departPos="last" departSpeed="0"><route edges="short right"/></vehicle>
    <vehicle id="behind" depart="0" departLane="0"><route edges="in short right"/></vehicle>
</routes>"""


PARKED = """<routes>
    <vehicle id="parked" depart="0" departPos="180"><route edges="from_south to_north"/>
        <stop lane="to_north_0" endPos="3" duration="1000"/></vehicle>
    <vehicle id="standing" depart="0" departPos="150"><route edges="from_south to_north"/></vehicle>
    <vehicle id="crossing" depart="0"><route edges="from_west to_east"/></vehicle>
</routes>"""


def simulated(folder, net_file, vehicles, without):
    """Durations in s of the trips that end within 300 s, by vehicle. `without`: an option of SUMO that is left out."""
    options = RandomTraffic(net_file, 1, 100.0, 300.0).options(folder / "street.sumocfg", folder)
    if without is not None:
        del options[options.index(without) : options.index(without) + 2]
    (folder / "demand.rou.xml").write_text(vehicles)
    trips = folder / "tripinfo.xml"
    command = [sumo_program("sumo"), "-n", str(net_file), *options, "--end", "300", "--tripinfo-output", str(trips)]
    subprocess.run([*command, "--no-step-log", "--no-warnings"], check=True, capture_output=True)
    return {trip.get("id"): float(trip.get("duration")) for trip in ET.parse(trips).getroot()}


@pytest.mark.parametrize(
    ("nodes", "edges", "vehicles", "without", "arrived"),
    [
        (NODES, EDGES, VEHICLES, None, {"to_left", "to_right", "behind"}),
        (NODES, EDGES, VEHICLES, "--time-to-teleport.highways", set()),
        (CROSSING_NODES, CROSSING_EDGES, PARKED, None, {"crossing"}),
        (CROSSING_NODES, CROSSING_EDGES, PARKED, "--ignore-junction-blocker", set()),
    ],
)
def test_vehicles_that_block_each_other_continue_after_a_while(nodes, edges, vehicles, without, arrived, tmp_path):
    durations_s = simulated(tmp_path, netconvert_plain(tmp_path, nodes, edges), vehicles, without)
    assert durations_s.keys() == arrived
    assert all(duration_s < MAX_STANDING_S + 150 for duration_s in durations_s.values())
    assert durations_s.get("crossing", MAX_STANDING_S + 1) > MAX_STANDING_S, "it waits first"
