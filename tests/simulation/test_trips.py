"""Trips of a tripinfo file, which are complete whatever files a configuration writes; and those stay as they are."""

import math

import pytest

from city import config
from simulation.demand import Demand
from simulation.street_simulation import simulated
from simulation.trips import Trips, mean_delay_s, read_trips
from tests.conftest import GRID

DEPARTED = '<tripinfo depart="30" departDelay="10" arrival="-1" duration="70" waitingTime="1" timeLoss="5"/>'
UNDEPARTED = '<tripinfo depart="-1" departDelay="40" arrival="-1" duration="0" waitingTime="0" timeLoss="0"/>'


def trips_of(folder, *vehicles, end_s=None):
    path = folder / "tripinfo.xml"
    path.write_text(f"<tripinfos>{''.join(vehicles)}</tripinfos>")
    return read_trips(path, end_s)


def test_vehicle_that_never_departs_is_booked_at_its_schedule(tmp_path):
    trips = trips_of(tmp_path, DEPARTED, UNDEPARTED, end_s=100.0)
    assert trips.delay_by_departure == ((20.0, 15.0), (60.0, 40.0))
    assert (trips.total, trips.finished, trips.delay_s) == (2, 0, 27.5)
    unknown_end = trips_of(tmp_path, DEPARTED, UNDEPARTED)
    assert unknown_end.delay_by_departure == ((20.0, 15.0),), "its schedule is not known"
    assert (unknown_end.total, unknown_end.delay_s, unknown_end.duration_s) == (2, 27.5, 35.0)


def test_simulations_without_a_vehicle_have_no_part_in_a_mean_delay():
    """A delay of 0 without a vehicle could not be beaten."""
    some, none = (Trips(total, total, delay_s, 0, 0, 0, {}, ()) for total, delay_s in ((10, 30.0), (0, 0.0)))
    assert mean_delay_s([some, none]) == 30.0 and math.isnan(mean_delay_s([none]))


OPTIONS = {
    "summary": "sum.xml",
    "fcd-output": "fcd.xml.gz",
    "tripinfo-output": "mine.xml",
    "vtk-output": "vtk",
    "netstate": "net.xml",
    "log": "sumo.log",
    "save-state.times": "1,2",
    "save-state.prefix": "state",
    "output-prefix": "PRE",
    "human-readable-time": "true",
    "precision": "0",
    "output.format": "csv",
    "device.tripinfo.probability": "0.1",
    "device.ssm.probability": "1",
    "device.ssm.measures": "TTC",
}
ADDITIONAL = """<additional>
<include href="parts/included.add.xml"/>
<e1Detector id="e1" lane="A0A1_0" pos="1" period="10" file="e1.xml"/>
<edgeData id="edges" file="edges.xml"/>
<timedEvent type="SaveTLSStates" source="A0" dest="states.xml"/>
<variableSpeedSign id="vss" lanes="A0A1_0" file="vss.xml"/>
</additional>"""
INCLUDED = '<additional><laneData id="lanes" file="lanes.xml"/></additional>'


@pytest.fixture
def city(tmp_path):
    files = {"a.add.xml": ADDITIONAL, "parts/included.add.xml": INCLUDED}
    files["vss.xml"] = '<vss><step time="0" speed="10"/></vss>'
    options = "".join(f'<{name} value="{value}"/>' for name, value in OPTIONS.items())
    inputs = f'<net-file value="{GRID / "grid.net.xml"}"/><route-files value="{GRID / "demand.rou.xml"}"/>'
    files["c.sumocfg"] = (
        f'<configuration>{inputs}<additional-files value="a.add.xml"/><end value="60"/>{options}</configuration>'
    )
    (tmp_path / "parts").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "sum.xml").write_text("results of last week")
    return config.City(tmp_path / "city.toml", network=config.Network(sumocfg=tmp_path / "c.sumocfg"))


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_outputs_of_the_configuration_are_not_written(city, tmp_path_factory):
    folder, scratch = city.path.parent, tmp_path_factory.mktemp("scratch")
    before = content_of(folder)
    tripinfo = scratch / "tripinfo.xml"
    with simulated(city, Demand(1), tripinfo) as connection:
        connection.api.simulationStep(60.0)
        vehicles = connection.api.simulation.getArrivedNumber() + connection.api.vehicle.getIDCount()
    assert content_of(folder) == before
    assert read_trips(tripinfo).total >= vehicles > 5, "each vehicle's trip is written, in seconds, as XML"
