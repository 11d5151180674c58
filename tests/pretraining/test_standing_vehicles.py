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
    ("without", "arrived"), [(None, {"to_left", "to_right", "behind"}), ("--time-to-teleport.highways", set())]
)
def test_vehicles_that_need_each_others_lane_continue_after_a_while(without, arrived, tmp_path):
    net_file = netconvert_plain(tmp_path, NODES, EDGES)
    durations_s = simulated(tmp_path, net_file, VEHICLES, without)
    assert set(durations_s) == arrived
    assert all(duration_s < MAX_STANDING_S + 150 for duration_s in durations_s.values())


@pytest.mark.parametrize(("without", "arrived"), [(None, {"crossing"}), ("--ignore-junction-blocker", set())])
def test_a_vehicle_that_stands_inside_a_junction_holds_up_others_for_a_while_only(without, arrived, tmp_path):
    net_file = netconvert_plain(tmp_path, CROSSING_NODES, CROSSING_EDGES)
    vehicles = """<routes>
        <vehicle id="parked" depart="0" departPos="180"><route edges="from_south to_north"/>
            <stop lane="to_north_0" endPos="3" duration="1000"/></vehicle>
        <vehicle id="standing" depart="0" departPos="150"><route edges="from_south to_north"/></vehicle>
        <vehicle id="crossing" depart="0"><route edges="from_west to_east"/></vehicle>
    </routes>"""
    durations_s = simulated(tmp_path, net_file, vehicles, without)
    assert set(durations_s) == arrived
    assert all(MAX_STANDING_S < duration_s < MAX_STANDING_S + 60 for duration_s in durations_s.values())
