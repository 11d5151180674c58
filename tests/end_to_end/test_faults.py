"""Faults between controller and server: the run always goes on, and every TL is back on its policy within 10 s.

Controller, proxy and server are processes of their own, as they are on a street: none waits for another's interpreter.
"""

import contextlib
import gc
import shutil
import time

import pytest

from controller.assembly import assemble
from controller.decision_step import Events
from controller.fallback.control_mode import ControlMode
from controller.policies.served_contracts import AVAILABLE, fetch_contracts
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from controller.sumo.start import start
from controller.sumo.tripinfo import TRIPINFO_OPTIONS, read_trips
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.errors import ModelNotFound
from tests.conftest import GRID
from tests.end_to_end.faults import Fault, Proxy, ProxyProcess
from tests.end_to_end.programs import ModelServer
from tests.serving.conftest import running

pytestmark = pytest.mark.alone

TCP, UNIX = "TCP", "Unix socket"
DEADLINE_S = 0.15
BACK_S = 10.0
"""Within which every TL must be on its policy again."""


class Run:
    """The sample city under control, its server behind the proxy."""

    def __init__(self, city, street, server, way=TCP, fleet="", options=()):
        """`way`: how the server is asked."""
        self.server, self.way = server, way
        self.proxy = ProxyProcess(self.target(server))
        self.client = Client(self.proxy.address, retries=0)
        self.contracts = fetch_contracts(self.client, city.tls, None)
        self.fleet = ServedFleet(self.client, fleet, self.contracts, None) if fleet else None
        if self.fleet:
            self.fleet.update()
        arguments = ["-c", str(GRID / "grid.sumocfg"), "--no-step-log", "true", "--no-warnings", "true", "--seed", "3", *options]
        self.link = start(arguments, 1, lambda: False)
        self.alarms = []
        policies = ServedPolicies(self.client, self.contracts, None, DEADLINE_S, fleet=self.fleet)
        events = Events(alarm=self.alarms.append)
        self.steps = assemble(self.link, street, list(self.contracts.values()), policies, city.safety, city.controller, events)
        self._slow_down()
        # as the daemon does; besides its own objects this process holds TensorFlow's, and a look through them takes longer
        # than the deadline
        gc.collect()
        gc.freeze()

    def target(self, server):
        return server.socket_path if self.way == UNIX else server.port

    def go(self, seconds, pace_s=0.0, meanwhile=None):
        """`meanwhile`: called once while the simulation is on its way: what is seen before must not grow old."""
        self.pace_s, self.meanwhile = pace_s, meanwhile
        end_s = self.steps.now + seconds
        while self.steps.now < end_s:
            self.steps.step(end_s)

    def _slow_down(self):
        """The simulation takes its time as a street does: before it is read, as what is read must not grow old."""
        go = self.link.go

        def slowly(until_s):
            go(until_s)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            time.sleep(self.pace_s * (until_s - self.reached_s))
            self.reached_s = until_s

        self.link.go, self.reached_s = slowly, self.steps.now

    @property
    def rungs(self):
        return {x.mode for x in self.steps.intersections.values()}

    def asked_often(self):
        """TLs that are asked every few seconds; one that decides every other cycle is asked again when it is on its plan."""
        return [x for x in self.steps.intersections.values() if x.policy.action.kind in ("categorical", "kc")]

    def is_back(self):
        return self.rungs == {ControlMode.POLICY}

    def come_back(self):
        """Seconds until every TL is on its policy again, on a street that goes as fast as a real one."""
        begin, begin_s = time.monotonic(), self.steps.now
        took_s = 0.0
        while not self.is_back() and took_s < 3 * BACK_S:
            late_s = time.monotonic() - begin - (self.steps.now - begin_s)
            self.advance(1, pace_s=max(1.0 - late_s, 0.0))
            took_s = max(time.monotonic() - begin, self.steps.now - begin_s)
        return took_s

    def description(self):
        return {x.tl: (x.mode_state, x.next_decision_s) for x in self.steps.intersections.values()}

    def close(self):
        gc.unfreeze()
        self.link.close()
        self.client.close()
        self.proxy.close()


def wait_for(server, tl, version):
    """Until the server answers with that version of a TL's model."""
    end = time.monotonic() + 20
    with Client(server.address, retries=0) as client:
        while True:
            with contextlib.suppress(ModelNotFound):
                if [x.version for x in client.status(tl) if x.state == AVAILABLE] == [version]:
                    return
            assert time.monotonic() < end, f"{tl} is not served with version {version}"
            time.sleep(0.01)


@contextlib.contextmanager
def published(server, tl, version, of):
    """Another TL's model, or its own once more, as the next version of `tl`."""
    beside, place = server.models.parent / "beside", server.models / tl / str(version)
    shutil.copytree(server.models / of / "1", beside)
    beside.rename(place)
    try:
        yield
    finally:
        place.rename(beside)
        shutil.rmtree(beside)
        wait_for(server, tl, 1)


@pytest.fixture(scope="module")
def server(grid_city, grid_models, tmp_path_factory):
    """All tests' server: what goes wrong is between it and the controller. A fleet is served beside the TLs' models."""
    from export.__main__ import main as export

    folder = tmp_path_factory.mktemp("faults")
    models = folder / "models"
    shutil.copytree(grid_models, models)
    assert export(["fleet", "city", "--tl", ",".join(grid_city.tls), "--models-dir", str(models)]) == 0
    made = ModelServer(models, folder / "s", "--poll-s", "0.1")
    yield made
    made.stop()


@pytest.fixture
def run(request, grid_city, grid_street, server):
    made = Run(grid_city, grid_street, server, getattr(request, "param", TCP))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        *((TCP, fault) for fault in Fault if fault is not Fault.NONE),
        *((UNIX, fault) for fault in (Fault.DROP, Fault.GARBAGE)),
    ],
    indirect=["run"],
)
def test_every_tl_is_back_on_its_policy_within_10_s_of_the_faults_end(run, fault):
    run.advance(100)
    assert run.is_back()
    run.proxy.fault = fault
    run.advance(60)
    assert all(x.mode_state.is_fallback for x in run.asked_often()), {x.tl: x.mode for x in run.asked_often()}
    run.proxy.fault = Fault.NONE
    took_s = run.come_back()
    assert run.is_back() and took_s <= BACK_S, (took_s, run.description())
    before = run.steps.counters.decisions
    run.advance(60)
    assert run.steps.counters.decisions > before + 30 and run.is_back()
    assert run.alarms == []


@pytest.mark.parametrize("way", [TCP, UNIX])
def test_a_server_that_is_started_again_elsewhere_is_found_again(way, grid_city, grid_street, grid_models, tmp_path):
    server = ModelServer(grid_models, tmp_path / "s")
    run = Run(grid_city, grid_street, server, way)
    try:
        run.advance(60)
        assert run.is_back()
        server.stop()
        run.advance(60)
        assert all(x.mode_state.is_fallback for x in run.asked_often())
        server.socket_path = tmp_path / "again"
        server.start()
        run.proxy.aim(run.target(server))
        took_s = run.come_back()
        assert run.is_back() and took_s <= BACK_S, (took_s, run.description())
        assert run.alarms == []
    finally:
        run.close()
        server.stop()


@pytest.mark.parametrize("run", [UNIX], indirect=True)
def test_a_new_model_number_is_followed_without_a_missed_decision(run, caplog):
    caplog.set_level("INFO", "controller")
    run.advance(60)
    with published(run.server, "SA103", 2, of="SA103"):
        run.advance(60, meanwhile=lambda: wait_for(run.server, "SA103", 2))
        assert run.steps.counters.missing_answers.total() == 0 and run.is_back()
        assert "SA103: the server now answers with version 2, with the same contract" in caplog.text


def test_another_policy_in_a_tls_place_is_not_followed_and_the_others_go_on(run):
    """Wrong shapes and a wrong contract: a model of another TL is published as this one's next version."""
    run.advance(60)
    with published(run.server, "SA103", 2, of="SA101"):
        run.advance(80, meanwhile=lambda: wait_for(run.server, "SA103", 2))
        assert set(run.steps.counters.missing_answers) == {"SA103"}
        assert run.steps.intersections["SA103"].mode_state.is_fallback
        assert {x.mode for x in run.steps.intersections.values() if x.tl != "SA103"} == {ControlMode.POLICY}
    assert run.come_back() <= BACK_S and run.is_back()
    assert run.alarms == []


def test_a_fleet_behind_a_bad_line_costs_no_more_than_single_calls(grid_city, grid_street, server):
    made = Run(grid_city, grid_street, server, UNIX, fleet="city")
    try:
        assert made.fleet.coverage.tls == set(grid_city.tls)
        made.advance(60)
        assert made.steps.counters.missing_answers.total() == 0
        made.proxy.fault = Fault.DROP
        made.advance(60)
        made.proxy.fault = Fault.NONE
        assert made.come_back() <= BACK_S and made.is_back()
        made.fleet.update()
        assert made.fleet.coverage.tls == set(grid_city.tls)
        assert made.alarms == []
    finally:
        made.close()


def test_delay_under_faults_is_no_worse_than_the_fixed_plans(grid_city, grid_street, server, tmp_path):
    trips, end_s = {}, 1000
    for kind in ("faults", "fixed"):
        trips[kind] = tmp_path / f"{kind}.xml"
        options = ["--tripinfo-output", str(trips[kind]), *TRIPINFO_OPTIONS]
        made = Run(grid_city, grid_street, server, options=options)
        try:
            if kind == "fixed":
                made.link.api.simulationStep(float(end_s))
                continue
            for fault in (Fault.RESET, Fault.HALF_OPEN):
                made.advance(150)
                made.proxy.fault = fault
                made.advance(100)
                made.proxy.fault = Fault.NONE
                made.come_back()
            made.advance(end_s - made.steps.now)
            assert made.alarms == []
        finally:
            made.close()
    faults, fixed = read_trips(trips["faults"]), read_trips(trips["fixed"])
    assert faults.all == fixed.all > 300
    assert faults.delay_s <= fixed.delay_s, (faults.delay_s, fixed.delay_s)


def test_the_proxy_does_what_its_names_say(grid_models, tmp_path):
    with running(ServerConfig(grid_models, port=0, socket_path=tmp_path / "s")) as server:
        for target in (server.port, tmp_path / "s"):
            proxy = Proxy(target)
            try:
                for fault in Fault:
                    with Client(proxy.address, retries=0) as client:
                        client.contract("SA101")
                        proxy.fault = fault
                        if fault is Fault.NONE:
                            client.contract("SA101", timeout_s=0.3)
                        else:
                            with pytest.raises(Exception):  # noqa: B017 - whatever it is, it is no answer
                                client.contract("SA101", timeout_s=0.3)
                        proxy.fault = Fault.NONE
            finally:
                proxy.close()
