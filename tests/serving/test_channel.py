"""The client's channel: addresses, several servers, retries, reconnections; and fleets and other signatures over it."""

import contextlib
import logging
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from export.__main__ import main as export
from serving.client import Client
from serving.client.channel import grpc_target
from serving.contract import ContractError
from serving.embedded.config import ServerConfig
from serving.errors import BadRequest, DeadlineExceeded, InvalidResponse, Overloaded, ServingError, Unavailable
from tests.conftest import ROOT
from tests.end_to_end.faults import Fault, Proxy
from tests.serving.conftest import requests, running
from tests.serving.fake_server import answer
from tests.waiting import wait_until

X = np.zeros(17, np.float32)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8500", ("127.0.0.1:8500", False)),
        ("localhost:8500", ("localhost:8500", False)),
        ("[::1]:8500", ("[::1]:8500", False)),
        ("unix:/run/s", ("unix:/run/s", False)),
        ("serving.city.svc:8500", ("dns:///serving.city.svc:8500", True)),
        ("127.0.0.1:1, 127.0.0.1:2", ("ipv4:127.0.0.1:1,127.0.0.1:2", True)),
        ("dns:///serving:8500", ("dns:///serving:8500", True)),
    ],
)
def test_an_address_becomes_a_grpc_target(address, expected):
    assert grpc_target(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "",
        "x",
        ":1",
        "host:",
        "host:port",
        "host:70000",
        "a:1,b:2",
        "127.0.0.1:1,[::1]:2",
        "127.0.0.1:1,",
        f"unix:/{'x' * 107}",
    ],
)
def test_an_invalid_address_is_a_value_error(address):
    with pytest.raises(ValueError, match="address"):
        Client(address)


@pytest.mark.parametrize(
    ("code", "retries", "failures", "error", "count"),
    [
        (grpc.StatusCode.UNAVAILABLE, 2, 2, None, 3),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 2, 2, None, 3),
        (grpc.StatusCode.UNAVAILABLE, 1, 9, Unavailable, 2),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1, 9, Overloaded, 2),
        (grpc.StatusCode.UNAVAILABLE, 0, 9, Unavailable, 1),
        (grpc.StatusCode.INVALID_ARGUMENT, 2, 9, BadRequest, 1),
        (grpc.StatusCode.INTERNAL, 2, 9, ServingError, 1),
    ],
)
def test_a_call_that_no_server_has_processed_is_retried(fake, code, retries, failures, error, count):
    calls = []

    def respond(request, context):
        calls.append(request)
        if len(calls) <= failures:
            context.abort(code, "not now")
        return answer()

    fake.answer = respond
    with Client(fake.address, retries=retries) as client:
        if error is None:
            assert client.predict("m", X, timeout_s=10) == {}
        else:
            with pytest.raises(error, match="not now") as failed:
                client.predict("m", X, timeout_s=10)
            assert failed.type is error
    assert len(calls) == count


def test_calls_are_balanced_and_skip_a_server_that_is_down(grid_models):
    config = ServerConfig(grid_models, port=0, poll_s=0)
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(running(config)) for _ in range(2))
        both = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with Client(both) as client:
            for _ in range(20):
                client.predict("SA103", X, timeout_s=10)
            # both connections are ready: from here on calls alternate
            earlier = [requests(server) for server in (first, second)]
            for _ in range(20):
                client.predict("SA103", X, timeout_s=10)
            new = [requests(server) - count for server, count in zip((first, second), earlier, strict=True)]
            assert new == [10, 10]
            first.stop()
            for _ in range(10):
                client.predict("SA103", X, timeout_s=10)


@pytest.fixture(scope="module")
def fleet_server(grid_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "models"
    shutil.copytree(grid_models, folder)
    assert export(["fleet", "city", "--tl", "all", "--models-dir", str(folder)]) == 0
    with running(ServerConfig(folder, port=0, poll_s=0)) as server:
        yield f"127.0.0.1:{server.port}"


def test_the_documented_client_runs(fleet_server):
    page = (ROOT / "docs" / "reference" / "client.md").read_text()
    code = re.search(r"^```python\n(.*?)^```", page, re.M | re.S)[1]
    exec(compile(code.replace("127.0.0.1:8500", fleet_server), "client.md", "exec"), names := {})
    assert set(names["city"].observations) >= {"SA101", "SA102"} and names["result"].outputs["action"].shape == (1,)


def test_a_fleet_answers_as_its_single_models(fleet_server):
    rng = np.random.default_rng(5)
    with Client(fleet_server) as client:
        fleet = client.fleet("city")
        assert len(fleet.observations) > 3
        xs = {
            tl: rng.random(columns.stop - columns.start, dtype=np.float32) for tl, columns in fleet.observations.items()
        }
        actions = client.predict_fleet(fleet, xs, timeout_s=10)
        assert set(actions) == set(xs)
        for tl, x in xs.items():
            single = client.predict(tl, x, timeout_s=10)["action"].reshape(-1)
            np.testing.assert_allclose(actions[tl], single, atol=1e-5)
        some = dict(list(xs.items())[:2])
        assert set(client.predict_fleet(fleet, some)) == set(some)
        assert set(fleet.versions.values()) == {1}


def test_one_tls_nan_is_that_tls_bad_answer_alone(fleet_server):
    with Client(fleet_server) as client:
        fleet = client.fleet("city")
    bad, other, unrequested, *_ = fleet.actions
    row = np.arange(fleet.contract.action.size, dtype=np.float32)[None]
    for value in (np.nan, np.inf, -np.inf):
        action = row.copy()
        action[0, fleet.actions[unrequested]] = value
        assert set(fleet.split(action, [bad, other])) == {bad, other}
        action[0, fleet.actions[bad]] = value
        result = fleet.split(action, [bad, other])
        assert isinstance(result[bad], InvalidResponse) and "not finite" in str(result[bad])
        np.testing.assert_array_equal(result[other], row[0, fleet.actions[other]])


def test_inputs_and_answers_that_do_not_fit_a_fleet_are_refused(fleet_server):
    with Client(fleet_server) as client:
        fleet = client.fleet("city")
        tl = next(iter(fleet.observations))
        for error, match, call in (
            (ContractError, "SA999 is not one of", lambda: client.predict_fleet(fleet, {"SA999": X})),
            (ContractError, r"has shape \(3,\); fleet city takes \(\d+,\)", lambda: fleet.stack({tl: X[:3]})),
            (ContractError, "not a fleet", lambda: client.fleet("SA103")),
            (InvalidResponse, "returned no action", lambda: fleet.split(None, [tl])),
            (InvalidResponse, "returned an action of size 1", lambda: fleet.split(np.zeros((1, 1)), [tl])),
        ):
            with pytest.raises(error, match=match):
                call()


def test_run_takes_any_signature_and_output_filter(non_policy_server):
    with Client(f"127.0.0.1:{non_policy_server.port}") as client:
        sent = {"a": np.float32([[1]]), "b": np.float32([[2]])}
        assert list(client.run("dtypes", sent, "sum", outputs=["difference"])) == ["difference"]
        strings = client.run("dtypes", {"x": np.array([b"a", b"\xff"], object)}, "string")["y"]
        assert strings.tolist() == [b"a", b"\xff"]
        with pytest.raises(BadRequest, match="Unrecognized servable version label"):
            client.run("dtypes", sent, "sum", version="gold")
        with pytest.raises(BadRequest, match=r"input a of dtypes: arrays of datetime64"):
            client.run("dtypes", {"a": np.array(["2020-01-01"], "datetime64[s]")}, "sum")


@pytest.fixture(params=["TCP", "Unix socket"])
def proxy(request, tmp_path, grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0, drain_s=0, socket_path=tmp_path / "s")) as server:
        opened = Proxy(server.port if request.param == "TCP" else tmp_path / "s")
        yield opened
        opened.close()


def test_reconnect_leaves_a_half_open_connection(proxy):
    with Client(proxy.address, retries=0) as client:
        client.predict("SA103", X)
        proxy.fault = Fault.HALF_OPEN
        proxy.fault = Fault.NONE  # only new connections reach the server
        with pytest.raises(DeadlineExceeded):
            client.predict("SA103", X, timeout_s=0.3)
        client.reconnect()
        assert client.predict("SA103", X, timeout_s=5)["action"].shape == (1, 1)


@pytest.mark.parametrize("server", ["grid_server", "grid_unix"])
def test_calls_succeed_after_every_reconnect(server, request):
    with Client(request.getfixturevalue(server)) as client:
        for _ in range(20):
            client.reconnect()
            assert client.predict("SA103", X, timeout_s=5)["action"].shape == (1, 1)


def test_reconnect_connects_before_the_next_call(proxy):
    with Client(proxy.address, retries=0) as client:
        client.predict("SA103", X)
        before = len(proxy.connections)
        client.reconnect()
        wait_until(lambda: len(proxy.connections) > before)


def test_reconnect_without_a_server_is_unavailable(tmp_path, caplog):
    caplog.set_level(logging.WARNING)  # whatever earlier tests have left
    for address in (f"unix:{tmp_path / 's'}", "127.0.0.1:1"):
        with Client(address, retries=0) as client:
            for _ in range(3):
                client.reconnect()
            with pytest.raises(Unavailable):
                client.predict("SA103", X, timeout_s=5)
    assert not caplog.records


def test_reconnects_of_several_threads_leave_one_connection_open(monkeypatch):
    open_channels, lock = [], threading.Lock()

    class Channel:
        def __init__(self):
            with lock:
                open_channels.append(self)
            time.sleep(0.002)  # as long as another thread needs to come in between

        def unary_unary(self, *_):
            return SimpleNamespace(future=lambda *_, **__: None)

        def close(self):
            with lock:
                open_channels.remove(self)  # fails if it is closed twice
            time.sleep(0.002)

    monkeypatch.setattr("serving.client.client.open_channel", lambda *_: Channel())
    client = Client("127.0.0.1:1")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: client.reconnect(), range(24)))
    assert len(open_channels) == 2  # the current one, and the previous one for calls in flight
    client.close()
    client.reconnect()
    assert not open_channels
