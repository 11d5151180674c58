"""A run that is assembled on a running SUMO."""

import contextlib
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from city import config, network
from city.errors import InputError
from controller.assembly import ControlledTls, assemble, checked_start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.network import other_programs, running_signals
from controller.sumo.start import connect
from signals import contract
from signals.safety.service_bounds import ServiceBounds
from tests.end_to_end.generated_streets import LongestQueue, generate
from tests.records.replayed_city import run_city


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    street = generate(tmp_path_factory.mktemp("street"), "--grid", "--grid.number", "1", "--grid.attach-length", "200")
    street.net_file.write_text(street.net_file.read_text().replace('offset="0"', 'offset="40"'))
    return street


@contextlib.contextmanager
def running(street, *more):
    files = ["-n", str(street.net_file), "-r", str(street.routes)]
    options = [*more, *files, "--seed", "1", "--no-step-log", "true", "--no-warnings", "true"]
    with contextlib.closing(connect(SumoAccess(arguments=options), Interrupts())) as connection:
        yield connection


def assembled(street, connection, **safety):
    read = network.read(street.net_file)
    contracts = [contract.build(config.City(street.net_file), config.TL(("A0",), "sumo-rl", "SA101"), read)]
    tls = ControlledTls(read, contracts, config.Safety(**safety), config.Controller())
    return assemble(connection, tls, LongestQueue(read, contracts))


@pytest.mark.parametrize(("floors", "has_vehicles"), [("dialect", False), ("dialect", True), ("street", False)])
def test_first_green_is_forced_only_with_the_dialects_floors_on_an_empty_street(street, floors, has_vehicles):
    with running(street) as connection:
        if has_vehicles:
            while connection.api.vehicle.getIDCount() == 0:
                connection.api.simulationStep()
        loop = assembled(street, connection, floors=floors)
        (x,) = loop.intersections.values()
        first = network.green_states(phase.state for phase in x.contract.signals[0].phases)[0]
        is_forced = floors == "dialect" and not has_vehicles
        assert (x.safeties[0].shown == first) == is_forced
        loop.step(loop.now + 1)
        assert (connection.api.trafficlight.getRedYellowGreenState("A0") == first) == is_forced


@pytest.mark.parametrize(("depart_s", "has_traffic"), [(0, True), (50, False)])
def test_persons_are_traffic_once_they_walk(street, tmp_path, depart_s, has_traffic):
    edge = re.search(r'<edge id="([^:"]+)"', street.net_file.read_text())[1]
    walkers = tmp_path / "walkers.rou.xml"
    walkers.write_text(f'<routes><person id="p" depart="{depart_s}"><walk edges="{edge}"/></person></routes>')
    with running(street, "--additional-files", str(walkers), "--max-num-vehicles", "0") as connection:
        connection.api.simulationStep()
        assert connection.api.vehicle.getIDCount() == 0
        assert checked_start(connection, network.read(street.net_file), []).has_traffic == has_traffic


def test_second_controller_is_refused_while_the_first_one_is_connected(street):
    with running(street) as connection:
        loop = assembled(street, connection)
        for act in (lambda: None, lambda: loop.step(20), lambda: loop.release(60)):
            act()
            with pytest.raises(InputError, match="signal A0 is controlled by another controller, process"):
                assembled(street, connection)
        connection.mark_controlled(["A0"], "")
        assert assembled(street, connection).now == loop.now


def test_running_mesoscopic_simulation_is_refused(street):
    with running(street, "--mesosim", "true") as connection, pytest.raises(InputError, match="without mesosim"):
        checked_start(connection, network.read(street.net_file), [])


def test_programs_are_read_with_the_defaults_of_sumo(street, tmp_path):
    """A program without an id, times as h:m:s, and bounds of which one is missing."""
    state = "r" * len(network.read(street.net_file).signals["A0"].links)
    bounds = ('minDur="5"', 'maxDur="70"', 'minDur="0:00:03" maxDur="0:01:00"', "")
    phases = "".join(f'<phase duration="0:00:42" {bound} state="{state}"/>' for bound in bounds)
    additional = tmp_path / "a.add.xml"
    additional.write_text(
        f'<additional><tlLogic id="A0" type="static" offset="0:00:10">{phases}</tlLogic></additional>'
    )
    read = network.read(street.net_file, [additional])
    with running(street, "-a", str(additional)) as connection:
        in_sumo = running_signals(connection.api, read, ["A0"])["A0"]
    assert list(in_sumo.programs.values()) == list(read.signals["A0"].programs)
    assert in_sumo.fallback_program_id == read.signals["A0"].active_program == network.UNNAMED_PROGRAM


def test_another_program_than_the_files_say_is_named(street, tmp_path):
    read = network.read(street.net_file)
    plan = read.signals["A0"].plan
    phases = "".join(f'<phase duration="9" state="{phase.state}"/>' for phase in plan.phases)
    additional = tmp_path / "a.add.xml"
    additional.write_text(
        f'<additional><tlLogic id="A0" type="static" programID="split">{phases}</tlLogic></additional>'
    )
    with running(street, "-a", str(additional)) as connection:
        start = checked_start(connection, read, [])
        in_sumo = running_signals(connection.api, read, ["A0"])
    assert "A0 ('split' instead of '0')" in other_programs(in_sumo, read, start.now)
    assert other_programs(in_sumo, network.read(street.net_file, [additional]), start.now) == ""


@pytest.mark.parametrize("bounds", [{"left": 8.0, "through": 8.0}, {"protected left": 8.0}])
def test_each_monitor_has_the_max_red_of_its_own_signal(bounds, grid_city, monkeypatch):
    monkeypatch.setattr(ServiceBounds, "forced", lambda *_: None)
    safety = config.Safety(max_red_s_of_signal={"C2": bounds})
    city = replace(grid_city, safety=safety, tls={"SA108": grid_city.tls["SA108"]})
    alarms = []
    collector = SimpleNamespace(add=lambda event: alarms.extend(event.alarms), close=lambda: None)
    run_city(city, 150, subscribe=lambda run: [collector])
    assert {(alarm.signal, alarm.rule.value) for alarm in alarms} == {("C2", "max_red_exceeded")}
