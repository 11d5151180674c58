"""Where and how the embedded server listens: Unix socket, TLS, mTLS, gRPC settings."""

import datetime
import ipaddress

import grpc
import numpy as np
import pytest
from cryptography import x509
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from city.errors import InputError
from serving.embedded.config import ServerConfig
from serving.embedded.flags import parse
from serving.embedded.server import Server
from serving.tensors import to_proto


def pair(name, authority=None):
    """(key, certificate) as PEM, and the objects: signed by itself, or by an authority."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    issuer = authority[3].subject if authority else subject
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .sign(authority[2] if authority else key, hashes.SHA256())
    )
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM), key, certificate


def ask(channel):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "SA103"
    to_proto(np.zeros((1, 17), np.float32), request.inputs["observation"])
    return prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=10).model_spec.version.value


def started(config):
    server = Server(config)
    server.start()
    return server


def test_a_unix_socket_answers_beside_the_port(grid_models, tmp_path):
    server = started(ServerConfig(grid_models, port=0, socket_path=tmp_path / "s"))
    try:
        for address in (f"unix:{tmp_path / 's'}", f"127.0.0.1:{server.port}"):
            with grpc.insecure_channel(address) as channel:
                assert ask(channel) == 1
    finally:
        server.stop()
    assert not (tmp_path / "s").exists()


def test_a_socket_that_cannot_be_made_is_told(grid_models, tmp_path):
    with pytest.raises(InputError, match=r"cannot listen on .*nowhere/s"):
        started(ServerConfig(grid_models, port=0, socket_path=tmp_path / "nowhere" / "s"))


def ssl_file(path, key, certificate, authority=None, verify=False):
    text = f'server_key: "{key.decode().encode("unicode_escape").decode()}"\n'
    text += f'server_cert: "{certificate.decode().encode("unicode_escape").decode()}"\n'
    if authority:
        text += f'custom_ca: "{authority.decode().encode("unicode_escape").decode()}"\n'
    path.write_text(text + (f"client_verify: {str(verify).lower()}\n" if verify else ""))
    return path


@pytest.mark.parametrize("verify", [False, True])
def test_tls_asks_clients_who_they_are_where_it_is_told_to(verify, grid_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    authority = pair("authority")
    key, certificate, *_ = pair("server", authority)
    client_key, client_certificate, *_ = pair("client", authority)
    path = ssl_file(tmp_path / "ssl.config", key, certificate, authority[1], verify)
    server = started(parse(["--models-dir", str(grid_models), "--port=0", f"--ssl_config_file={path}"]))
    try:
        address = f"localhost:{server.port}"
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority[1], client_key, client_certificate)) as channel:
            assert ask(channel) == 1
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority[1])) as channel:
            if verify:
                with pytest.raises(grpc.RpcError) as refused:
                    ask(channel)
                assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            else:
                assert ask(channel) == 1
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            ask(channel)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "cannot be read as SSLConfig"),
        ('server_key: "x"', "needs server_key and server_cert"),
        ('server_key: "x" server_cert: "y" client_verify: true', "client_verify needs custom_ca"),
    ],
)
def test_a_wrong_ssl_config_is_one_line(text, told, grid_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ssl.config").write_text(text)
    with pytest.raises(InputError, match=told):
        parse(["--models-dir", str(grid_models), f"--ssl_config_file={tmp_path / 'ssl.config'}"])


def test_grpc_settings_reach_the_server(grid_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--models-dir", str(grid_models), "--port=0"]
    config = parse([*flags, "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=x"])
    assert config.channel_arguments == (("grpc.max_connection_age_ms", 2000), ("grpc.lb_policy_name", "x"))
    with pytest.raises(InputError, match="must be NAME=VALUE"):
        parse([*flags, "--grpc_channel_arguments=nonsense"])
    server = started(parse([*flags, "--grpc_channel_arguments=grpc.max_receive_message_length=10"]))
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel, pytest.raises(grpc.RpcError) as refused:
            ask(channel)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        server.stop()
