"""The embedded server's addresses: ports, Unix socket, TLS, mTLS, gRPC settings."""

import socket
import threading

import grpc
import numpy as np
import pytest
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from city.errors import InputError
from protos import model_server_config_pb2 as config_pb
from serving.client import Client, Tls
from serving.embedded import __main__ as program
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.flags import parse
from serving.embedded.server import Server
from serving.errors import Unavailable
from serving.tensors import to_proto
from tests.end_to_end.programs import free_port
from tests.serving.certificates import pair
from tests.serving.conftest import running
from tests.serving.gates import Gate

X = np.zeros(17, np.float32)


def version_of(channel):
    """The version that answers a Predict."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "SA103"
    to_proto(np.zeros((1, 17), np.float32), request.inputs["observation"])
    return (
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=10).model_spec.version.value
    )


def test_the_server_listens_on_a_unix_socket_beside_the_port(grid_models, tmp_path):
    with running(ServerConfig(grid_models, port=0, socket_path=tmp_path / "s")) as server:
        for address in (f"unix:{tmp_path / 's'}", f"127.0.0.1:{server.port}"):
            with grpc.insecure_channel(address) as channel:
                assert version_of(channel) == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/s", "missing is not a writable folder"),
        ("file", "it exists and is not a socket"),
        ("folder", "it exists and is not a socket"),
        ("x" * 108, "it is longer than 107 bytes"),
    ],
)
def test_a_socket_path_that_cannot_be_bound_gives_one_line_before_loading(
    path, reason, grid_models, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    server = Server(ServerConfig(grid_models, port=0, socket_path=tmp_path / path))
    monkeypatch.setattr(server, "poll_once", lambda: pytest.fail("loaded before the check"))
    with pytest.raises(InputError) as error:
        server.start()
    message = str(error.value)
    assert message.startswith(f"cannot listen on unix:{tmp_path / path}: ") and reason in message
    assert message.endswith("choose another --grpc_socket_path") and "\n" not in message


def test_a_socket_left_by_a_killed_server_is_taken_over(grid_models, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket()
    with running(ServerConfig(grid_models, port=0, socket_path=path)), grpc.insecure_channel(f"unix:{path}") as channel:
        assert version_of(channel) == 1


def test_a_socket_of_a_running_server_is_not_taken_over(grid_models, tmp_path):
    path = tmp_path / "s"
    with running(ServerConfig(grid_models, port=0, socket_path=path)), grpc.insecure_channel(f"unix:{path}") as channel:
        with pytest.raises(InputError, match="it is in use; choose another --grpc_socket_path"):
            Server(ServerConfig(grid_models, port=0, socket_path=path)).start()
        assert version_of(channel) == 1


def test_the_unix_socket_uses_tls_if_it_is_configured(grid_models, tmp_path):
    authority = pair("authority")
    key, certificate, *_ = pair("server", authority)
    address = f"unix:{tmp_path / 's'}"
    ssl = config_pb.SSLConfig(server_key=key, server_cert=certificate)
    with running(ServerConfig(grid_models, port=0, socket_path=tmp_path / "s", ssl=ssl)):
        with Client(address, tls=Tls(ca=authority[1])) as client:
            assert client.predict("SA103", X, timeout_s=10)["action"].shape == (1, 1)
        wrong_name = Tls(ca=authority[1], server_name="other.example")
        for tls in (wrong_name, Tls(ca=pair("other")[1]), None):
            with Client(address, tls=tls, retries=0) as client, pytest.raises(Unavailable):
                client.predict("SA103", X, timeout_s=10)


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_ports_are_closed_until_the_models_are_loaded(grid_models, tmp_path, monkeypatch):
    port, rest_port = free_port(), free_port()
    server = Server(ServerConfig(grid_models, port=port, rest=RestConfig(rest_port), socket_path=tmp_path / "s"))
    gate = Gate(monkeypatch, server.manager, "load")
    starter = threading.Thread(target=server.start)
    starter.start()
    try:
        assert gate.began.wait(60)
        assert not is_open(port) and not is_open(rest_port) and not (tmp_path / "s").exists()
        gate.go.set()
        starter.join(60)
        assert is_open(rest_port) and (tmp_path / "s").is_socket()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert version_of(channel) == 1
    finally:
        gate.go.set()
        starter.join(60)
        server.stop()


@pytest.mark.parametrize("flag", ["--port", "--rest_api_port"])
def test_a_port_in_use_is_reported_before_anything_is_loaded(flag, grid_models, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"port": port} if flag == "--port" else {"port": 0, "rest": RestConfig(port)}
        server = Server(ServerConfig(grid_models, **ports))
        monkeypatch.setattr(server, "poll_once", lambda: pytest.fail("loaded before the check"))
        with pytest.raises(
            InputError, match=f"cannot listen on 127.0.0.1:{port}: it is in use .*; choose another {flag}"
        ):
            server.start()


def ssl_file(path, **fields):
    path.write_text(text_format.MessageToString(config_pb.SSLConfig(**fields)))
    return path


@pytest.mark.parametrize("verify", [False, True])
def test_client_verify_decides_whether_clients_need_a_certificate(verify, grid_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    authority = pair("authority")
    key, certificate, *_ = pair("server", authority)
    client_key, client_certificate, *_ = pair("client", authority)
    fields = {"server_key": key, "server_cert": certificate, "custom_ca": authority[1], "client_verify": verify}
    path = ssl_file(tmp_path / "ssl.config", **fields)
    with running(parse(["--models-dir", str(grid_models), "--port=0", f"--ssl_config_file={path}"])) as server:
        address = f"localhost:{server.port}"
        with grpc.secure_channel(
            address, grpc.ssl_channel_credentials(authority[1], client_key, client_certificate)
        ) as channel:
            assert version_of(channel) == 1
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority[1])) as channel:
            if verify:
                with pytest.raises(grpc.RpcError) as refused:
                    version_of(channel)
                assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            else:
                assert version_of(channel) == 1
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            version_of(channel)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not a tensorflow.serving.SSLConfig: "),
        ('server_key: "x"', "server_key or server_cert is missing"),
        ('server_key: "x" server_cert: "y" client_verify: true', "custom_ca is missing; add the CA bundle"),
    ],
)
def test_an_invalid_ssl_config_is_an_input_error(text, message, grid_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ssl.config").write_text(text)
    with pytest.raises(InputError, match=message):
        parse(["--models-dir", str(grid_models), f"--ssl_config_file={tmp_path / 'ssl.config'}"])


def test_grpc_channel_arguments_reach_the_server(grid_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--models-dir", str(grid_models), "--port=0"]
    config = parse([*flags, "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=x"])
    assert config.channel_arguments == (("grpc.max_connection_age_ms", 2000), ("grpc.lb_policy_name", "x"))
    with pytest.raises(InputError, match="must be NAME=VALUE"):
        parse([*flags, "--grpc_channel_arguments=nonsense"])
    with running(parse([*flags, "--grpc_channel_arguments=grpc.max_receive_message_length=10"])) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel, pytest.raises(grpc.RpcError) as refused:
            version_of(channel)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 20), (1 << 16, 1 << 20)),
        ((1 << 18, 1 << 20), None),
        ((4096, 4096), None),
    ],
)
def test_soft_limit_of_open_files_is_only_ever_raised(limits, expected, monkeypatch):
    set_to = []
    monkeypatch.setattr(program.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(program.resource, "setrlimit", lambda _, values: set_to.append(values))
    program.allow_open_files()
    assert set_to == ([] if expected is None else [expected])
