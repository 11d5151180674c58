"""A model server that stops and restarts: the run continues on fallback plans, then on policies again."""

import time

import pytest

from controller.assembly import ControlledTls, assemble
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from serving.client import Client
from signals.fallback.control_mode import ControlMode
from tests.conftest import GRID
from tests.controller.decision_events import Events
from tests.end_to_end.programs import ModelServer

pytestmark = pytest.mark.alone


@pytest.fixture
def connection():
    options = ["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "true", "--no-warnings", "true", "--seed", "3"]
    connection = connect(SumoAccess(arguments=options), Interrupts())
    yield connection
    connection.close()


@pytest.fixture
def server(grid_models, tmp_path):
    server = ModelServer(grid_models, tmp_path / "s")
    yield server
    server.stop()


@pytest.mark.slow
def test_every_tl_returns_to_its_policy_after_a_server_restart(server, grid_city, grid_street, connection):
    client = Client(server.address)
    contracts = fetch_contracts(client, grid_city.tls, None)
    events = Events()
    loop = assemble(
        connection,
        ControlledTls(grid_street, list(contracts.values()), grid_city.safety, grid_city.controller),
        ServedPolicies(client, contracts, None, 0.5),
        [events],
    )

    def modes():
        return {x.mode for x in loop.intersections.values()}

    while loop.now < 200:
        loop.step(200)
    assert modes() == {ControlMode.POLICY} and sum(loop.counters.missing_answers.values()) == 0
    server.stop()
    while loop.now < 700:
        loop.step(700)
    # a TL that decides every other cycle holds its plan until its next decision
    assert modes() == {ControlMode.FALLBACK}
    assert all(x.is_released for x in loop.intersections.values())
    programs = {
        s: connection.api.trafficlight.getProgram(s) for x in loop.intersections.values() for s in x.contract.signal_ids
    }
    assert set(programs.values()) == {"adapted"}

    server.start(server.port)
    limit = time.monotonic() + 10
    while modes() != {ControlMode.POLICY} and time.monotonic() < limit and loop.now < 3500:
        loop.step(3500)
        time.sleep(0.002)  # simulated time would run out before the channel connects again
    assert modes() == {ControlMode.POLICY}
    held = {decision.tl for event in events for decision in event.decisions if decision.mode is ControlMode.HOLD}
    assert held == set(grid_city.tls), "every TL must hold its state before it runs its plan"
    # the policies decide again
    end = loop.now + 100
    decisions = loop.counters.decisions
    while loop.now < end:
        loop.step(end)
    assert loop.counters.decisions > decisions + 50
    client.close()
