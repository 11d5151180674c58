"""Reload requests: the folders that they may name, and the flag that switches them off."""

import shutil

import grpc
import pytest

from protos import model_server_config_pb2 as pb
from serving.embedded.config import ServerConfig
from serving.embedded.flags import parse
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.rpc.handle_reload_config_request import common_folder
from tests.serving.conftest import running


@pytest.fixture
def models(grid_models, tmp_path):
    """The models first and second in one folder, and another one outside of it."""
    for path in ("m/first", "m/second", "elsewhere/other"):
        shutil.copytree(grid_models / "SA103", tmp_path / path)
    return tmp_path / "m"


def reload(server, **base_paths):
    """The status and details of a reload; None: it succeeded."""
    request = pb.ReloadConfigRequest()
    for name, base_path in base_paths.items():
        request.config.model_config_list.config.add(name=name, base_path=str(base_path), model_platform="tensorflow")
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        try:
            call = channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
            call(request.SerializeToString(), timeout=20)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return None


@pytest.mark.parametrize("source", ["models_dir", "models", "models_root"])
def test_reload_request_names_folders_of_the_models_only(models, source):
    settings = {
        "models_dir": {"models_dir": models},
        "models": {"models": {"a": ModelConfig("a", models / "first")}},
        "models_root": {"models_dir": models.parent / "elsewhere", "models_root": models},
    }[source]
    (models / "link").symlink_to(models.parent / "elsewhere" / "other")
    with running(ServerConfig(port=0, poll_s=3600, **settings)) as server:
        served = server.manager.served()
        for path in (
            models.parent / "elsewhere" / "other",
            models / ".." / "elsewhere" / "other",
            models / "link",
            "/",
        ):
            code, details = reload(server, b=path)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert f"lies outside of {models}" in details and "--models_root" in details
        assert server.manager.served() == served, "a refused request changes nothing"
        assert reload(server, b=models / "second") is None
        assert server.manager.served() == {"b": [1]}


def test_root_of_several_models_is_the_folder_that_holds_them_all(tmp_path):
    paths = {"a": tmp_path / "north" / "a", "b": tmp_path / "south" / "b"}
    assert common_folder({name: ModelConfig(name, path) for name, path in paths.items()}) == tmp_path.resolve()


def test_server_that_started_without_models_accepts_no_folder_of_a_request(models):
    with running(ServerConfig(port=0, poll_s=3600, models={}, model_config_file=models / "none")) as server:
        code, details = reload(server, b=models / "second")
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "started without models" in details


def test_reload_requests_can_be_switched_off(models, monkeypatch):
    monkeypatch.chdir(models)
    config = parse([f"--models_dir={models}", "--enable_reload_config_request=false", "--port=0"])
    with running(config) as server:
        code, details = reload(server, b=models / "second")
        assert code is grpc.StatusCode.UNIMPLEMENTED and "--enable_reload_config_request=false" in details
        assert server.manager.served().keys() == {"first", "second"}
