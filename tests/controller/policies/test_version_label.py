"""`--version-label stable`: which versions and which fleet are asked while another version is a canary."""

import shutil

import grpc
import pytest
from google.protobuf import text_format
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from city.errors import InputError
from export.__main__ import main as export
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.tf_serving.__main__ import main as serve_config
from tests.controller.policies.controlled_tls import ControlledTls, failed
from tests.serving.conftest import running

TLS = ("SA101", "SA104")


@pytest.fixture
def models(grid_models, tmp_path):
    folder = tmp_path / "models"
    for tl in TLS:
        shutil.copytree(grid_models / tl / "1", folder / tl / "1")
        shutil.copytree(grid_models / tl / "1", folder / tl / "2")
    return folder


class City:
    """A server with a model config, and a controller's policies."""

    def __init__(self, models, server, client):
        self.models, self.client = models, client
        self.service = model_service_pb2_grpc.ModelServiceStub(grpc.insecure_channel(f"127.0.0.1:{server.port}"))

    def configure(self, *flags):
        out = self.models.parent / "config"
        mounted = ("--models-dir", str(self.models), "--mounted-at", str(self.models), "--out", str(out))
        loaded = [] if "--latest" in flags else ["--loaded"]
        assert serve_config([*mounted, *loaded, *flags]) == 0
        request = model_management_pb2.ReloadConfigRequest()
        text_format.Parse((out / "models.config").read_text(), request.config)
        assert self.service.HandleReloadConfigRequest(request, timeout=60).status.error_code == 0

    def ask(self, version, fleet=""):
        """The model numbers that answer, by TL, and how many TLs the fleet covers."""
        started = ControlledTls(self.client, TLS, version, fleet)
        # the fleet answers for a TL only after the TL's own version has, if that is served
        for _ in range(2):
            started.ask()
            if started.fleet is not None:
                started.fleet.update()
        assert not failed(started.ask())
        coverage = started.fleet.coverage if started.fleet is not None else None
        return started.policies.model_numbers, len(coverage.tls) if coverage else 0


@pytest.fixture
def city(models, tmp_path):
    config = tmp_path / "empty.config"
    config.write_text("model_config_list {}")
    with (
        running(ServerConfig(model_config_file=config, models_root=models, port=0, poll_s=0)) as server,
        Client(f"127.0.0.1:{server.port}", retries=0) as client,
    ):
        yield City(models, server, client)


def test_labelled_version_answers_while_a_canary_is_served(city):
    city.configure("--model", "SA101=1,2", "--model", "SA104=1,2")
    assert city.ask(None)[0] == {"SA101": 2, "SA104": 2}, "the newest"
    assert city.ask("stable")[0] == {"SA101": 1, "SA104": 1}
    assert city.ask("canary")[0] == {"SA101": 2, "SA104": 2}


def test_moved_label_is_followed_by_a_running_controller(city):
    city.configure("--model", "SA101=1,2", "--model", "SA104=1,2")
    started = ControlledTls(city.client, TLS, "stable")
    started.ask()
    city.configure("--model", "SA101=2", "--model", "SA104=1,2")
    assert not failed(started.ask())
    assert started.policies.model_numbers == {"SA101": 2, "SA104": 1}


def test_fleet_of_the_labelled_versions_answers(city):
    """The fleet was made from version 2; `stable` is version 1 of the TLs' own models."""
    assert export(["fleet", "city", "--tl", ",".join(TLS), "--models-dir", str(city.models)]) == 0
    city.configure()  # a server that knows the fleet alone does not know the label of the TLs' models
    assert city.ask("stable", "city") == ({"SA101": 2, "SA104": 2}, 2)
    city.configure("--all-models", "--model", "SA101=1,2", "--model", "SA104=1,2")
    assert city.ask("stable", "city") == ({"SA101": 1, "SA104": 1}, 0), "it is not asked: it holds the canaries"
    city.configure("--all-models")
    fleet_numbers, covered = city.ask("stable", "city")
    assert covered == 2 and fleet_numbers == {"SA101": 2, "SA104": 2}
    city.configure()
    assert city.ask("stable", "city") == (fleet_numbers, 2), "their own models are not served"


def test_label_that_no_version_has_is_refused(city):
    city.configure("--latest")
    with pytest.raises(
        InputError, match=r"model SA101 labelled stable: .*; label a version of it \(greenserve serve config\)"
    ):
        city.ask("stable")
