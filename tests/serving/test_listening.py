"""The embedded server's addresses: ports, Unix socket, TLS, mTLS, gRPC settings."""

import socket
import threading

import numpy as np
import pytest
from google.protobuf import text_format

from city.errors import InputError
from protos import model_server_config_pb2 as config_pb
from serving.client import Client, Tls
from serving.embedded import __main__ as program
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.flags import parse
from serving.embedded.server import Server
from serving.errors import BadRequest, Unavailable
from tests.end_to_end.programs import free_port
from tests.serving.certificates import pair
from tests.serving.conftest import running
from tests.serving.gates import Gate

X = np.zeros(17, np.float32)


def answers(address, tls=None):
    """Tell whether a server answers a Predict; False: it cannot be reached."""
    with Client(address, tls=tls, retries=0) as client:
        try:
            return client.predict("SA103", X, timeout_s=10)["action"].shape == (1, 1)
        except Unavailable:
            return False


def certified():
    """(CA, its server's SSLConfig, its client's Tls)."""
    authority = pair("authority")
    key, certificate, *_ = pair("server", authority)
    client_key, client_certificate, *_ = pair("client", authority)
    ssl = config_pb.SSLConfig(server_key=key, server_cert=certificate, custom_ca=authority[1])
    return authority[1], ssl, Tls(authority[1], client_certificate, client_key)


def test_the_server_listens_on_a_unix_socket_that_no_other_one_takes_over(grid_models, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket(), "left by a server that was killed"
    with running(ServerConfig(grid_models, port=0, socket_path=path)) as server:
        assert answers(f"unix:{path}") and answers(f"127.0.0.1:{server.port}")
        with pytest.raises(InputError, match="it is in use; choose another --grpc_socket_path"):
            Server(ServerConfig(grid_models, port=0, socket_path=path)).start()
        assert answers(f"unix:{path}")
    assert not path.exists()


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
    message = rf"^cannot listen on unix:{tmp_path / path}: .*{reason}; choose another --grpc_socket_path$"
    with pytest.raises(InputError, match=message):
        server.start()


def test_the_unix_socket_uses_tls_if_it_is_configured(grid_models, tmp_path):
    ca, ssl, _ = certified()
    address = f"unix:{tmp_path / 's'}"
    with running(ServerConfig(grid_models, port=0, socket_path=tmp_path / "s", ssl=ssl)):
        assert answers(address, Tls(ca=ca))
        for tls in (Tls(ca=ca, server_name="other.example"), Tls(ca=pair("other")[1]), None):
            assert not answers(address, tls)


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
        assert answers(f"127.0.0.1:{port}")
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


@pytest.mark.parametrize("verify", [False, True])
def test_client_verify_decides_whether_clients_need_a_certificate(verify, grid_models, tmp_path, in_tmp_path):
    ca, ssl, client = certified()
    ssl.client_verify = verify
    (tmp_path / "ssl.config").write_text(text_format.MessageToString(ssl))
    with running(parse(["--models-dir", str(grid_models), "--port=0", "--ssl_config_file=ssl.config"])) as server:
        address = f"localhost:{server.port}"
        assert answers(address, client) and answers(address, Tls(ca)) is not verify and not answers(address)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not a tensorflow.serving.SSLConfig: "),
        ('server_key: "x"', "server_key or server_cert is missing"),
        ('server_key: "x" server_cert: "y" client_verify: true', "custom_ca is missing; add the CA bundle"),
    ],
)
def test_an_invalid_ssl_config_is_an_input_error(text, message, grid_models, tmp_path, in_tmp_path):
    (tmp_path / "ssl.config").write_text(text)
    with pytest.raises(InputError, match=message):
        parse(["--models-dir", str(grid_models), f"--ssl_config_file={tmp_path / 'ssl.config'}"])


def test_grpc_channel_arguments_reach_the_server(grid_models, in_tmp_path):
    flags = ["--models-dir", str(grid_models), "--port=0"]
    config = parse([*flags, "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=x"])
    assert config.channel_arguments == (("grpc.max_connection_age_ms", 2000), ("grpc.lb_policy_name", "x"))
    with pytest.raises(InputError, match="must be NAME=VALUE"):
        parse([*flags, "--grpc_channel_arguments=nonsense"])
    with (
        running(parse([*flags, "--grpc_channel_arguments=grpc.max_receive_message_length=10"])) as server,
        pytest.raises(BadRequest, match="larger than max"),
    ):
        answers(f"127.0.0.1:{server.port}")


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
