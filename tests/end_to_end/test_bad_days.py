"""Days on which the model server refuses calls, the clock jumps, or one district's server is lost."""

import contextlib
import json
import sys
import time
from concurrent import futures

import grpc

from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.libsumo_connection import start_libsumo
from controller.telemetry.health import Health
from serving.client import Client
from serving.tf_serving.__main__ import main as serve_config
from signals.fallback.control_mode import ControlMode
from tests.conftest import GRID
from tests.end_to_end.controlled_city import OPTIONS, ControlledCity
from tests.end_to_end.programs import ModelServer, program, sumo
from tests.sample_city import write_city

DAY_S = 86_400.0
DEADLINE_S = 5.0


class Gateway:
    """A gRPC server that passes every call on to another one, or refuses it as TensorFlow Serving does without a free
    thread."""

    def __init__(self, target):
        self._channel, self.refuses = grpc.insecure_channel(target), False
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details):
        def call(request, context):
            if self.refuses:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Server Threadpool Exhausted")
            try:
                return self._channel.unary_unary(details.method)(request, timeout=10)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

        return grpc.unary_unary_rpc_method_handler(call)

    def close(self):
        self._server.stop(None).wait()
        self._channel.close()


class Run(ControlledCity):
    """The sample city under control, with the reasons of missing answers."""

    def __init__(self, city, street, client):
        contracts = fetch_contracts(client, city.tls, None)
        self.reasons, self.health = set(), Health()
        policies = ServedPolicies(client, contracts, None, DEADLINE_S)
        connection = start_libsumo([*OPTIONS, "--seed", "3"])
        super().__init__(connection, city, street, list(contracts.values()), policies, [self])

    def add(self, event):
        self.reasons.update(decision.failure.partition(":")[0] for decision in event.decisions if decision.failure)
        self.health.beat()

    def close(self):
        self.connection.close()

    def modes_after(self, seconds):
        """Control for some simulated seconds; the modes of the TLs that decide every few seconds."""
        self.advance(seconds)
        return {x.mode for x in self.frequent_deciders()}


@contextlib.contextmanager
def running(city, street, address):
    with Client(address, retries=0) as client, contextlib.closing(Run(city, street, client)) as run:
        yield run


def test_tls_fall_back_while_the_server_refuses_calls_and_come_back(grid_city, grid_street, grid_server):
    gateway = Gateway(grid_server)
    try:
        with running(grid_city, grid_street, gateway.address) as run:
            assert run.modes_after(60) == {ControlMode.POLICY} and not run.reasons
            gateway.refuses = True
            assert run.modes_after(60) == {ControlMode.FALLBACK} and run.reasons == {"Overloaded"}
            gateway.refuses = False
            assert run.modes_after(60) == {ControlMode.POLICY} and not run.loop.counters.alarms
    finally:
        gateway.close()


def test_wall_clock_that_jumps_by_days_changes_nothing(grid_city, grid_street, grid_server, monkeypatch):
    """gRPC keeps the real clock: its core compares deadlines with it."""
    real, calls = time.time, []

    def jumping():
        if sys._getframe(1).f_globals["__name__"].partition(".")[0] == "grpc":
            return real()
        calls.append(None)
        return real() + DAY_S * (-1) ** len(calls)

    monkeypatch.setattr(time, "time", jumping)
    assert abs(time.time() - time.time()) > DAY_S
    with running(grid_city, grid_street, grid_server) as run:
        assert run.modes_after(120) == {ControlMode.POLICY}
        assert not run.reasons and not run.loop.counters.alarms and run.health.status() == (True, "running")


def test_district_whose_server_is_lost_leaves_the_other_untouched(grid_models, tmp_path):
    servers, controllers = {}, {}
    with contextlib.ExitStack() as closing:
        for name in ("shard-1", "shard-2"):
            (tmp_path / name).mkdir()
            servers[name] = ModelServer(grid_models, tmp_path / name / "socket")
            closing.callback(servers[name].stop)
        flags = ["--city", str(GRID / "city.toml"), "--models-dir", str(grid_models), "--shards", "2"]
        assert serve_config([*flags, "--out", str(tmp_path / "config")]) == 0
        tables = (tmp_path / "config" / "districts.toml").read_text()
        for name, server in servers.items():
            tables = tables.replace(f"tf-serving-{name}:8500", server.address)
        city = write_city(tmp_path, more=tables)
        port, _ = closing.enter_context(sumo(2))
        for order, name in enumerate(servers, 1):
            arguments = ["--city", city, "--district", name, "--sumo", f"127.0.0.1:{port}", "--order", str(order)]
            # answers may be late if other tests run beside this one
            arguments += ["--summary", str(tmp_path / f"{name}.json"), "--end", "300", "--deadline-ms", "4000"]
            controllers[name] = closing.enter_context(program("controller", *arguments))
        for controller in controllers.values():
            # SUMO begins when both clients are there
            assert any("controlling" in line for line in controller.stderr)
        servers["shard-2"].stop()
        for controller in controllers.values():
            controller.stderr.read()
            assert controller.wait(120) == 0
    lost, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("shard-2", "shard-1"))
    assert other["missing_answers"] == 0 and other["decisions"] > 150 and other["alarms"] == 0
    assert lost["missing_answers"] > 0 and lost["fallbacks"] > 0 and lost["alarms"] == 0
