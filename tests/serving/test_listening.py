"""The embedded server's addresses: ports, Unix socket, TLS and replaced certificates, and warnings about what clients may do."""

import argparse
import datetime
import socket
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import text_format

from city.config import Serving
from city.errors import InputError
from protos import model_server_config_pb2 as config_pb
from protos import model_server_config_pb2 as wire
from protos.model_server_config_pb2 import SSLConfig
from serving.client import Client, Tls, tls_files
from serving.client.tls_files import ChangingTls, TlsFiles
from serving.embedded import __main__ as program
from serving.embedded.config import CertificateFile, RestConfig, ServerConfig, exposure_warnings, ssl_from_file
from serving.embedded.flags import parse
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.server import Server
from serving.errors import BadRequest, Unavailable
from tests.end_to_end.programs import free_port
from tests.serving import certificates
from tests.serving.certificates import pair
from tests.serving.conftest import running
from tests.serving.gates import Gate
from tests.serving.saved_models import write_garbage

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


def write_server(path, authority, valid=datetime.timedelta(days=1)):
    key, certificate, *_ = pair("server", authority, valid)
    ssl = wire.SSLConfig(server_key=key, server_cert=certificate, custom_ca=authority[1], client_verify=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text_format.MessageToString(ssl))
    draft.replace(path)


def client_of(server, tls):
    return Client(f"127.0.0.1:{server.port}", tls=tls.newest, retries=0)


def secured(models, ssl_file, **settings):
    ssl = ssl_from_file(ssl_file)
    return running(ServerConfig(models, port=0, poll_s=0, ssl=ssl, ssl_file=ssl_file, **settings))


def test_certificates_of_both_sides_are_replaced_without_a_restart(grid_models, tmp_path):
    first, second = pair("first"), pair("second")
    ssl_file = tmp_path / "ssl.config"
    write_server(ssl_file, first)
    tls = ChangingTls(certificates.write(tmp_path, "client", first))
    socket_path = tmp_path / "grpc"
    with secured(grid_models, ssl_file, socket_path=socket_path) as server, client_of(server, tls) as client:
        client.predict("SA103", X, timeout_s=10)
        assert not tls.has_changed()
        write_server(ssl_file, second)
        client.predict("SA103", X, timeout_s=10)
        client.reconnect()
        with pytest.raises(Unavailable):
            client.predict("SA103", X, timeout_s=10)
        certificates.write(tmp_path, "client", second)
        assert tls.has_changed()
        client.reconnect()
        client.predict("SA103", X, timeout_s=10)
        with Client(f"unix:{socket_path}", tls=tls.newest, retries=0) as local:
            local.predict("SA103", X, timeout_s=10)


def test_key_of_another_certificate_is_refused(tmp_path):
    authority, other = pair("authority"), pair("other")
    files = certificates.write(tmp_path, "client", authority)
    (tmp_path / "key").write_bytes(other[0])
    with pytest.raises(InputError, match=r"certificate and .*key: the key does not belong to the certificate"):
        files.read()
    ssl = wire.SSLConfig(server_key=other[0], server_cert=authority[1])
    (tmp_path / "ssl.config").write_text(text_format.MessageToString(ssl))
    with pytest.raises(InputError, match=r"ssl.config: server_cert and server_key: the key does not belong"):
        ssl_from_file(tmp_path / "ssl.config")


def test_certificate_that_grpc_cannot_use_is_not_reported_as_a_port_in_use(grid_models, tmp_path):
    key, certificate, *_ = pair("server")
    damaged = certificate.replace(b"\nMII", b"\nAAA", 1)
    ssl_file = tmp_path / "ssl.config"
    ssl_file.write_text(text_format.MessageToString(wire.SSLConfig(server_key=key, server_cert=damaged)))
    with (
        pytest.raises(InputError, match=r"ssl.config: gRPC cannot use its key or certificates"),
        secured(grid_models, ssl_file),
    ):
        pass


def test_expired_certificate_is_an_error_until_a_new_one_is_there(grid_models, tmp_path):
    authority, ssl_file = pair("authority"), tmp_path / "ssl.config"
    write_server(ssl_file, authority, valid=datetime.timedelta(days=-1))
    tls = ChangingTls(certificates.write(tmp_path, "client", authority))
    with secured(grid_models, ssl_file) as server, client_of(server, tls) as client:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            client.predict("SA103", X, timeout_s=10)
        write_server(ssl_file, authority)
        client.reconnect()
        client.predict("SA103", X, timeout_s=10)


@pytest.mark.parametrize("content", [None, "server_key: 'x'", "not a config"])
def test_invalid_new_certificates_leave_those_before(tmp_path, content, caplog):
    path = tmp_path / "ssl.config"
    write_server(path, pair("authority"))
    file = CertificateFile(path)
    assert file.newest() is None
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert file.newest() is None
    write_server(path, pair("other"))
    assert isinstance(file.newest(), grpc.ServerCertificateConfiguration) and file.newest() is None


def test_unreadable_client_files_leave_those_before_and_are_logged_once(tmp_path, caplog):
    tls = ChangingTls(certificates.write(tmp_path, "client", pair("authority")))
    before = tls.newest()
    (tmp_path / "key").write_text("half of a")
    assert not tls.has_changed() and not tls.has_changed() and tls.newest() == before
    assert caplog.text.count("is not PEM") == 1


def test_flags_complete_the_files_of_city_toml(tmp_path):
    flags = argparse.Namespace(tls_ca=None, tls_certificate=tmp_path / "c", tls_key=tmp_path / "k")
    serving = Serving(tls_ca=tmp_path / "ca", tls_server_name="tf-serving")
    expected = TlsFiles(tmp_path / "ca", tmp_path / "c", tmp_path / "k", "tf-serving")
    assert tls_files.from_flags(flags, serving) == expected
    flags.tls_key = None
    with pytest.raises(InputError, match="--tls-certificate and --tls-key belong together"):
        tls_files.from_flags(flags, serving)
    flags.tls_certificate = None
    assert tls_files.from_flags(flags, Serving()) is None


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
