"""Faults between controller and server: the run continues, and every TL is back on its policy within 10 s.

The server is a process of its own, as in production.
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
from export.__main__ import main as export
from serving.client import Client
from serving.errors import ModelNotFound
from signals.fallback.control_mode import ControlMode
from simulation.trips import read_trips
from tests.controller.decision_events import Alarms
from tests.end_to_end.controlled_city import OPTIONS, ControlledCity
from tests.end_to_end.faults import Fault, Proxy, injected
from tests.end_to_end.programs import ModelServer
from tests.waiting import wait_until

TCP, UNIX = "TCP", "Unix socket"
DEADLINE_S = 0.5
FAULT_S = 30.0
"""Simulated duration of a fault, after which every TL that decides every few seconds is in fallback."""
MAX_RECOVERY_S = 10.0
"""In which every TL must be back on its policy."""


class Run(ControlledCity):
    """The sample city under control, with its server behind the proxy."""

    def __init__(self, city, street, server, transport=TCP, fleet="", options=()):
        self.server, self._closing = server, contextlib.ExitStack()
        target = server.socket_path if transport == UNIX else server.port
        self.proxy = self._closing.enter_context(contextlib.closing(Proxy(target)))
        client = self._closing.enter_context(Client(self.proxy.address, retries=0))
        contracts = fetch_contracts(client, city.tls, None)
        self.fleet = ServedFleet(client, fleet, contracts, None) if fleet else None
        if self.fleet:
            self.fleet.update()
        policies, self.alarms = ServedPolicies(client, contracts, None, DEADLINE_S, fleet=self.fleet), Alarms()
        connection = connect(SumoAccess(arguments=[*OPTIONS, "--seed", "3", *options]), Interrupts())
        self._closing.callback(connection.close)
        super().__init__(connection, city, street, list(contracts.values()), policies, [self.alarms])
        advance, self.reached_s = connection.advance, self.loop.now

        def advance_and_wait(until_s):
            advance(until_s)
            self.meanwhile(until_s - self.reached_s)
            self.reached_s = until_s

        connection.advance = advance_and_wait
        # as the daemon does: this process also holds TensorFlow's objects, and a collection of them takes longer
        # than the deadline
        gc.collect()
        gc.freeze()
        self._closing.callback(gc.unfreeze)

    def advance(self, seconds, meanwhile=lambda simulated_s: None):
        """Control for some simulated seconds. `meanwhile`: called while SUMO simulates, so that readings do not age."""
        self.meanwhile = meanwhile
        super().advance(seconds)

    def is_back_in_time(self):
        """Simulate in real time until every TL is back on its policy; False if that takes longer than allowed."""
        begin, took_s = time.monotonic(), 0.0
        while not self.is_on_policies() and took_s < 3 * MAX_RECOVERY_S:
            self.advance(1, meanwhile=time.sleep)
            took_s = time.monotonic() - begin
        states = {x.tl: (x.state.mode_state, x.state.next_decision_s) for x in self.loop.intersections.values()}
        print(f"back after {took_s:.1f} s: {states}")
        return took_s <= MAX_RECOVERY_S

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
    folder = tmp_path_factory.mktemp("faults")
    shutil.copytree(grid_models, folder / "models")
    assert export(["fleet", "city", "--tl", ",".join(grid_city.tls), "--models-dir", str(folder / "models")]) == 0
    server = ModelServer(folder / "models", folder / "s", "--poll-s", "0.1")
    yield server
    server.stop()


@pytest.fixture
def run_over(grid_city, grid_street, server):
    """A function: the run over a transport, with a fleet or without."""
    with contextlib.ExitStack() as runs:
        yield lambda *how: runs.enter_context(contextlib.closing(Run(grid_city, grid_street, server, *how)))


def test_every_tl_is_back_on_its_policy_within_10_s_after_a_fault(run_over):
    """A day of faults, in make slow, has every kind."""
    run = run_over(TCP)
    for fault in (Fault.HALF_OPEN, Fault.GARBAGE):
        run.advance(30)
        assert run.is_on_policies()
        with injected(run.proxy, fault):
            run.advance(FAULT_S)
            modes = {x.tl: x.state.mode_state for x in run.frequent_deciders()}
            assert all(mode.is_fallback for mode in modes.values()), modes
        assert run.is_back_in_time()
    before = run.loop.counters.decisions
    run.advance(30)
    assert run.loop.counters.decisions > before + 15 and run.is_on_policies() and run.alarms == []


def test_a_new_model_number_is_followed_unless_it_has_another_contract(run_over, caplog):
    """Another TL's model, of the same shapes, is published as a version of a TL; the other TLs go on."""
    caplog.set_level("INFO", "controller")
    run = run_over(UNIX)
    run.advance(30)
    with published(run.server, "SA103", 2, of="SA103"):
        run.advance(60, meanwhile=lambda _: wait_for(run.server, "SA103", 2))
        assert run.loop.counters.missing_answers.total() == 0 and run.is_on_policies()
        assert "SA103: the server now answers with version 2, with the same contract" in caplog.text
    run.advance(30)
    with published(run.server, "SA101", 2, of="SA104"):
        run.advance(80, meanwhile=lambda _: wait_for(run.server, "SA101", 2))
        assert "SA101: the server now answers with version 2, with another contract" in caplog.text
        assert set(run.loop.counters.missing_answers) == {"SA101"}
        assert run.loop.intersections["SA101"].state.mode_state.is_fallback
        assert {x.mode for x in run.loop.intersections.values() if x.tl != "SA101"} == {ControlMode.POLICY}
    assert run.is_back_in_time() and run.alarms == []


def test_a_fleet_recovers_from_a_fault_as_single_models_do(run_over, grid_city):
    run = run_over(UNIX, "city")
    assert run.fleet.coverage.tls == set(grid_city.tls)
    run.advance(30)
    assert run.loop.counters.missing_answers.total() == 0
    with injected(run.proxy, Fault.DROP):
        run.advance(FAULT_S)
    assert run.is_back_in_time()
    run.fleet.update()
    assert run.fleet.coverage.tls == set(grid_city.tls) and run.alarms == []


@pytest.mark.parametrize("fault", Fault)
def test_the_proxy_injects_every_fault(fault, server):
    for target in (server.port, server.socket_path):
        with contextlib.closing(Proxy(target)) as proxy, Client(proxy.address, retries=0) as client:
            client.contract("SA101")
            # which error depends on the fault
            is_refused = pytest.raises(Exception) if fault is not Fault.NONE else contextlib.nullcontext()
            with injected(proxy, fault), is_refused:
                client.contract("SA101", timeout_s=0.3)


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
