"""A server that goes away and comes back: the run goes on, on plans, then on policies again."""

import time

import pytest

from controller.assembly import assemble
from controller.decision_step import Events
from controller.fallback.control_mode import ControlMode
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.start import start
from serving.client import Client
from tests.conftest import GRID
from tests.end_to_end.programs import ModelServer

pytestmark = pytest.mark.alone


@pytest.fixture
def link():
    options = ["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "true", "--no-warnings", "true", "--seed", "3"]
    made = start(options, 1, lambda: False)
    yield made
    made.close()


@pytest.fixture
def server(grid_models, tmp_path):
    made = ModelServer(grid_models, tmp_path / "s")
    yield made
    made.stop()


def test_the_run_survives_the_server_and_every_tl_returns_to_its_policy(server, grid_city, grid_street, link):
    client = Client(server.address)
    contracts = fetch_contracts(client, grid_city.tls, None)
    rungs = []
    steps = assemble(
        link,
        grid_street,
        list(contracts.values()),
        ServedPolicies(client, contracts, None, 0.5),
        grid_city.safety,
        grid_city.controller,
        Events(rung=lambda tl, old, new, now, why: rungs.append((now, tl, new))),
    )

    def rungs_now():
        return {x.mode for x in steps.intersections.values()}

    while steps.now < 200:
        steps.step(200)
    assert rungs_now() == {ControlMode.POLICY} and sum(steps.counters.missing_answers.values()) == 0
    server.stop()
    while steps.now < 700:
        steps.step(700)
    # the one that decides every other cycle holds its plan until it is asked again
    assert rungs_now() == {ControlMode.FALLBACK}
    assert all(x.is_released for x in steps.intersections.values())
    programs = {s: link.api.trafficlight.getProgram(s) for x in steps.intersections.values() for s in x.policy.signal_ids}
    assert set(programs.values()) == {"adapted"}

    server.start(server.port)
    back = time.monotonic()
    while rungs_now() != {ControlMode.POLICY} and time.monotonic() < back + 10 and steps.now < 3500:
        steps.step(3500)
        time.sleep(0.002)  # simulated time would run out before the channel connects again
    assert rungs_now() == {ControlMode.POLICY}
    held = {tl for _, tl, rung in rungs if rung is ControlMode.HOLD}
    assert held == set(grid_city.tls), "every TL held its state before it went on its plan"
    # what the policies do after their return is theirs again
    end = steps.now + 100
    decisions = steps.counters.decisions
    while steps.now < end:
        steps.step(end)
    assert steps.counters.decisions > decisions + 50
    client.close()
