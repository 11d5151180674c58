"""Certificates that are replaced while server and client run."""

import argparse
import datetime

import grpc
import numpy as np
import pytest
from google.protobuf import text_format

from city.config import Serving
from city.errors import InputError
from protos import model_server_config_pb2 as wire
from serving.client import Client, tls_files
from serving.client.tls_files import ChangingTls, TlsFiles
from serving.embedded.config import CertificateFile, ServerConfig, ssl_from_file
from serving.errors import Unavailable
from tests.serving import certificates
from tests.serving.certificates import pair
from tests.serving.conftest import running

X = np.zeros(17, np.float32)


def write_server(path, authority, valid=datetime.timedelta(days=1)):
    key, certificate, *_ = pair("server", authority, valid)
    ssl = wire.SSLConfig(server_key=key, server_cert=certificate, custom_ca=authority[1], client_verify=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text_format.MessageToString(ssl))
    draft.replace(path)


def secured(models, ssl_file, **settings):
    ssl = ssl_from_file(ssl_file)
    return running(ServerConfig(models, port=0, poll_s=0, ssl=ssl, ssl_file=ssl_file, **settings))


def test_certificates_of_both_sides_are_replaced_without_a_restart(grid_models, tmp_path):
    first, second = pair("first"), pair("second")
    ssl_file = tmp_path / "ssl.config"
    write_server(ssl_file, first)
    tls = ChangingTls(certificates.write(tmp_path, "client", first))
    socket_path = tmp_path / "grpc"
    with (
        secured(grid_models, ssl_file, socket_path=socket_path) as server,
        Client(f"127.0.0.1:{server.port}", tls=tls.newest, retries=0) as client,
    ):
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
    with (
        secured(grid_models, ssl_file) as server,
        Client(f"127.0.0.1:{server.port}", tls=tls.newest, retries=0) as client,
    ):
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
