"""Models that are not policies, and a server of them with REST and metrics."""

import contextlib

import pytest

from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.server import Server
from tests.serving import saved_models


@pytest.fixture(scope="session")
def non_policy_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    saved_models.write_dtypes(folder / "dtypes" / "1")
    return folder


@contextlib.contextmanager
def running(config):
    server = Server(config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def connected(config):
    """(embedded server in this process, client of it without retries), stopped at the end."""
    with running(config) as server, Client(f"127.0.0.1:{server.port}", retries=0) as client:
        yield server, client


def requests(server):
    labels = {"model_name": "SA103", "status": "OK"}
    return server.metrics.registry.get_sample_value(":tensorflow:serving:request_count", labels) or 0


def non_policy_config(folder, **settings):
    return ServerConfig(folder, allow_any_operation=True, port=0, poll_s=0, **{"rest": RestConfig(0), **settings})


@pytest.fixture(scope="session")
def non_policy_server(non_policy_models):
    rest = RestConfig(0, threads=2, metrics_path="/monitoring/prometheus/metrics")
    with running(non_policy_config(non_policy_models, rest=rest)) as server:
        yield server
