"""Faults between controller and server: the run continues, and every TL is back on its policy within 10 s.

Controller, proxy and server are processes of their own, as in production, so that none waits for another's interpreter.
"""

import contextlib
import gc
import shutil
import time

import pytest

from controller.policies.served_contracts import AVAILABLE, fetch_contracts
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.start import connect
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.errors import ModelNotFound
from signals.fallback.control_mode import ControlMode
from simulation.trips import read_trips
from tests.controller.decision_events import Alarms, Events
from tests.end_to_end.controlled_city import OPTIONS, ControlledCity
from tests.end_to_end.faults import Fault, Proxy, injected, proxy_process
from tests.end_to_end.programs import ModelServer
from tests.serving.conftest import running
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

TCP, UNIX = "TCP", "Unix socket"
DEADLINE_S = 0.15
FAULT_S = 30.0
"""Simulated duration of a fault, after which every TL that decides every few seconds is in fallback."""
MAX_RECOVERY_S = 10.0
"""In which every TL must be back on its policy."""


class Run(ControlledCity):
    """The sample city under control, with its server behind the proxy."""

    def __init__(self, city, street, server, transport=TCP, fleet="", options=()):
        self.server, self.transport, self._closing = server, transport, contextlib.ExitStack()
        self.proxy = self._closing.enter_context(proxy_process(self.target(server)))
        client = self._closing.enter_context(Client(self.proxy.address, retries=0))
        contracts = fetch_contracts(client, city.tls, None)
        self.fleet = ServedFleet(client, fleet, contracts, None) if fleet else None
        if self.fleet:
            self.fleet.update()
        self.events, self.alarms = Events(), Alarms()
        policies = ServedPolicies(client, contracts, None, DEADLINE_S, fleet=self.fleet)
        connection = connect(SumoAccess(arguments=[*OPTIONS, "--seed", "3", *options]), Interrupts())
        self._closing.callback(connection.close)
        subscribers = [self.events, self.alarms]
        super().__init__(connection, city, street, list(contracts.values()), policies, subscribers)
        self._slow_down()
        # as the daemon does: this process also holds TensorFlow's objects, and a collection of them takes longer
        # than the deadline
        gc.collect()
        gc.freeze()
        self._closing.callback(gc.unfreeze)

    def target(self, server):
        return server.socket_path if self.transport == UNIX else server.port

    def advance(self, seconds, pace_s=0.0, meanwhile=None):
        """Control for some simulated seconds.

        Args:
            seconds: simulated time.
            pace_s: wall time per simulated second, at least.
            meanwhile: called once while SUMO simulates, so that readings do not age meanwhile.
        """
        self.pace_s, self.meanwhile = pace_s, meanwhile
        super().advance(seconds)

    def _slow_down(self):
        """Delay each advance by pace_s per simulated second: before the reading, because readings must not age."""
        advance = self.connection.advance

        def advance_slowly(until_s):
            advance(until_s)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            time.sleep(self.pace_s * (until_s - self.reached_s))
            self.reached_s = until_s

        self.connection.advance, self.reached_s = advance_slowly, self.loop.now

    def is_back_in_time(self):
        """Simulate in real time until every TL is back on its policy; False if that takes longer than allowed."""
        begin, begin_s = time.monotonic(), self.loop.now
        took_s = 0.0
        while not self.is_on_policies() and took_s < 3 * MAX_RECOVERY_S:
            behind_s = time.monotonic() - begin - (self.loop.now - begin_s)
            self.advance(1, pace_s=max(1.0 - behind_s, 0.0))
            took_s = max(time.monotonic() - begin, self.loop.now - begin_s)
        states = {x.tl: (x.state.mode_state, x.state.next_decision_s) for x in self.loop.intersections.values()}
        print(f"back after {took_s:.1f} s: {states}")
        return self.is_on_policies() and took_s <= MAX_RECOVERY_S

    def close(self):
        self._closing.close()


def wait_for(server, tl, version):
    """Wait until the server serves exactly that version of a TL's model."""

    def versions():
        with contextlib.suppress(ModelNotFound):
            return [x.version for x in client.status(tl) if x.state == AVAILABLE]

    with Client(server.address, retries=0) as client:
        wait_until(lambda: versions() == [version])


@contextlib.contextmanager
def published(server, tl, version, of):
    """Publish another TL's model, or a copy of its own, as the next version of `tl`."""
    staging, version_dir = server.models.parent / "staging", server.models / tl / str(version)
    shutil.copytree(server.models / of / "1", staging)
    staging.rename(version_dir)
    try:
        yield
    finally:
        version_dir.rename(staging)
        shutil.rmtree(staging)
        wait_for(server, tl, 1)


@pytest.fixture(scope="module")
def server(grid_city, grid_models, tmp_path_factory):
    """One server for all tests, because the faults are injected in front of it. It also serves a fleet."""
    from export.__main__ import main as export

    folder = tmp_path_factory.mktemp("faults")
    models = folder / "models"
    shutil.copytree(grid_models, models)
    assert export(["fleet", "city", "--tl", ",".join(grid_city.tls), "--models-dir", str(models)]) == 0
    server = ModelServer(models, folder / "s", "--poll-s", "0.1")
    yield server
    server.stop()


@pytest.fixture
def run(request, grid_city, grid_street, server):
    with contextlib.closing(Run(grid_city, grid_street, server, getattr(request, "param", TCP))) as run:
        yield run


@pytest.fixture
def own_server(grid_models, tmp_path):
    server = ModelServer(grid_models, tmp_path / "s")
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        *((TCP, fault) for fault in (Fault.HALF_OPEN, Fault.GARBAGE)),
        # a recovery takes its seconds in real time; a fleet's, below, is over a Unix socket whose server drops calls
        pytest.param(UNIX, Fault.DROP, marks=pytest.mark.slow),
        *(
            pytest.param(TCP, fault, marks=pytest.mark.slow)
            for fault in (Fault.DELAY, Fault.DROP, Fault.RESET, Fault.REFUSE)
        ),
        pytest.param(UNIX, Fault.GARBAGE, marks=pytest.mark.slow),
    ],
    indirect=["run"],
)
def test_every_tl_is_back_on_its_policy_within_10_s_after_a_fault(run, fault):
    run.advance(30)
    assert run.is_on_policies()
    with injected(run.proxy, fault):
        run.advance(FAULT_S)
        modes = {x.tl: x.state.mode_state for x in run.frequent_deciders()}
        assert all(mode.is_fallback for mode in modes.values()), modes
    assert run.is_back_in_time()
    before = run.loop.counters.decisions
    run.advance(30)
    assert run.loop.counters.decisions > before + 15 and run.is_on_policies()
    assert run.alarms == []


# a new connection after a dead one, HALF_OPEN above, is tested in every run
@pytest.mark.slow
@pytest.mark.parametrize("transport", [TCP, UNIX])
def test_a_server_restarted_at_another_address_is_found_again(transport, grid_city, grid_street, own_server, tmp_path):
    with contextlib.closing(Run(grid_city, grid_street, own_server, transport)) as run:
        run.advance(60)
        assert run.is_on_policies()
        own_server.stop()
        run.advance(FAULT_S)
        assert all(x.state.mode_state.is_fallback for x in run.frequent_deciders())
        own_server.socket_path = tmp_path / "again"
        own_server.start()
        run.proxy.target = run.target(own_server)
        assert run.is_back_in_time() and run.alarms == []


@pytest.mark.slow
def test_every_tl_runs_its_plan_while_the_server_is_away_and_is_back_after_it(grid_city, grid_street, own_server):
    """A TL that decides every other cycle holds its plan until its next decision."""
    with contextlib.closing(Run(grid_city, grid_street, own_server)) as run:
        run.advance(200)
        assert run.is_on_policies() and run.loop.counters.missing_answers.total() == 0
        own_server.stop()
        run.advance(500)
        assert run.modes == {ControlMode.FALLBACK}
        assert all(x.is_released for x in run.loop.intersections.values())
        light = run.connection.api.trafficlight
        signals = [s for x in run.loop.intersections.values() for s in x.contract.signal_ids]
        assert {light.getProgram(s) for s in signals} == {"adapted"}
        own_server.start(own_server.port)
        assert run.is_back_in_time()
        decisions = [decision for event in run.events for decision in event.decisions]
        held = {decision.tl for decision in decisions if decision.mode is ControlMode.HOLD}
        assert held == set(grid_city.tls), "every TL must hold its state before it runs its plan"
        before = run.loop.counters.decisions
        run.advance(100)
        assert run.loop.counters.decisions > before + 50, "the policies decide again"


@pytest.mark.parametrize("run", [UNIX], indirect=True)
def test_a_new_model_number_is_followed_without_a_missing_answer(run, caplog):
    caplog.set_level("INFO", "controller")
    run.advance(60)
    with published(run.server, "SA103", 2, of="SA103"):
        run.advance(60, meanwhile=lambda: wait_for(run.server, "SA103", 2))
        assert run.loop.counters.missing_answers.total() == 0 and run.is_on_policies()
        assert "SA103: the server now answers with version 2, with the same contract" in caplog.text


def test_a_version_with_another_contract_is_not_followed(run):
    """Another TL's model, of other shapes, is published as the next version of this TL; the other TLs go on."""
    run.advance(60)
    with published(run.server, "SA103", 2, of="SA101"):
        run.advance(80, meanwhile=lambda: wait_for(run.server, "SA103", 2))
        assert set(run.loop.counters.missing_answers) == {"SA103"}
        assert run.loop.intersections["SA103"].state.mode_state.is_fallback
        assert {x.mode for x in run.loop.intersections.values() if x.tl != "SA103"} == {ControlMode.POLICY}
    assert run.is_back_in_time() and run.alarms == []


def test_a_fleet_recovers_from_a_fault_as_single_models_do(grid_city, grid_street, server):
    with contextlib.closing(Run(grid_city, grid_street, server, UNIX, fleet="city")) as run:
        assert run.fleet.coverage.tls == set(grid_city.tls)
        run.advance(60)
        assert run.loop.counters.missing_answers.total() == 0
        with injected(run.proxy, Fault.DROP):
            run.advance(FAULT_S)
        assert run.is_back_in_time()
        run.fleet.update()
        assert run.fleet.coverage.tls == set(grid_city.tls)
        assert run.alarms == []


@pytest.mark.slow
def test_delay_under_faults_is_not_above_that_of_fixed_plans(grid_city, grid_street, server, tmp_path):
    trips, end_s = {}, 1000
    for kind in ("faults", "fixed"):
        trips[kind] = tmp_path / f"{kind}.xml"
        options = ["--tripinfo-output", str(trips[kind]), *TRIPINFO_OPTIONS]
        with contextlib.closing(Run(grid_city, grid_street, server, options=options)) as run:
            if kind == "fixed":
                run.connection.api.simulationStep(float(end_s))
                continue
            for fault in (Fault.RESET, Fault.HALF_OPEN):
                run.advance(150)
                with injected(run.proxy, fault):
                    run.advance(100)
                assert run.is_back_in_time()
            run.advance(end_s - run.loop.now)
            assert run.alarms == []
    faults, fixed = read_trips(trips["faults"]), read_trips(trips["fixed"])
    assert faults.total == fixed.total > 300
    assert faults.delay_s <= fixed.delay_s, (faults.delay_s, fixed.delay_s)


def test_the_proxy_injects_every_fault(grid_models, tmp_path):
    with running(ServerConfig(grid_models, port=0, socket_path=tmp_path / "s")) as server:
        for target in (server.port, tmp_path / "s"):
            with contextlib.closing(Proxy(target)) as proxy:
                for fault in Fault:
                    with Client(proxy.address, retries=0) as client:
                        client.contract("SA101")
                        # which error depends on the fault
                        is_refused = pytest.raises(Exception) if fault is not Fault.NONE else contextlib.nullcontext()
                        with injected(proxy, fault), is_refused:
                            client.contract("SA101", timeout_s=0.3)
