"""Warnings of a server at its start: what clients may do, and which models are missing."""

from pathlib import Path

import pytest

from city.errors import InputError
from protos.model_server_config_pb2 import SSLConfig
from serving.embedded.config import RestConfig, ServerConfig, exposure_warnings
from serving.embedded.flags import parse
from serving.embedded.models.model_config import ModelConfig
from tests.serving.conftest import running
from tests.serving.saved_models import write_garbage


def lines(rest_port=0, root=None, **settings):
    return list(exposure_warnings(ServerConfig(**settings), root, rest_port))


MTLS, TLS = SSLConfig(client_verify=True), SSLConfig()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (
            {"host": "0.0.0.0"},
            "listening on 0.0.0.0 without TLS: any client that reaches the port can run models and replace",
        ),
        ({"host": "0.0.0.0", "reload_rpc": False}, "can run models; pass"),
        ({"host": "::"}, "listening on :: without TLS"),
        ({"host": "model-server"}, "listening on model-server without TLS"),
        ({"host": "127.0.0.1"}, None),
        ({"host": "[::1]"}, None),
        ({"host": "localhost"}, None),
        ({"host": "0.0.0.0", "ssl": MTLS}, None),
        (
            {"host": "0.0.0.0", "ssl": MTLS, "rest_port": 8501},
            "8501 is plain HTTP and answers any client, metrics included, although gRPC requires client certificates",
        ),
        ({"host": "0.0.0.0", "ssl": TLS, "rest_port": 8501}, "although gRPC has TLS"),
        ({"root": Path("/")}, "--models_root"),
        ({"root": Path("/srv")}, None),
        ({"allow_any_operation": True}, "serve only models that you trust"),
    ],
)
def test_what_any_client_may_do_is_named_in_one_line(settings, part):
    found = lines(**settings)
    assert len(found) == (part is not None) and all(part in line and "\n" not in line for line in found)


@pytest.mark.parametrize("client_verify", ["true", "false"])
def test_rest_beside_client_certificates_needs_its_own_flag(tmp_path, client_verify):
    ssl = tmp_path / "ssl.config"
    ssl.write_text(f'server_key: "k" server_cert: "c" custom_ca: "a" client_verify: {client_verify}')
    arguments = [f"--models_dir={tmp_path}", f"--ssl_config_file={ssl}", "--rest_api_port=8501"]
    if client_verify == "true":
        with pytest.raises(InputError, match=r"plain HTTP and would answer any client.*--allow_rest_api_without_tls"):
            parse(arguments)
        arguments.append("--allow_rest_api_without_tls")
    assert parse(arguments).rest == RestConfig(8501)


def warned(caplog, **settings):
    with running(ServerConfig(port=0, poll_s=3600, **settings)):
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(("count", "more"), [(2, "; export the models"), (1000, " and 995 more; export the models")])
def test_missing_folders_of_models_are_named_with_how_to_fix_it(tmp_path, caplog, count, more):
    models = {f"SA{n}": ModelConfig(f"SA{n}", tmp_path / f"SA{n}") for n in range(count)}
    (line,) = warned(caplog, models=models, model_config_file=tmp_path / "models.config")
    begin = f"models.config: the folders of {count} of {count} models are missing: SA0 ({tmp_path / 'SA0'}), SA1 ("
    assert begin in line and more in line and "--mounted-at" in line and "\n" not in line and len(line) < 1500


def test_models_that_cannot_be_loaded_are_not_reported_as_missing(tmp_path, caplog):
    write_garbage(tmp_path / "SA101" / "1")
    assert any("no model could be loaded" in line for line in warned(caplog, models_dir=tmp_path))
    assert not any("has no models yet" in record.getMessage() for record in caplog.records)
