"""Settings of an embedded server, warnings about them, and its MonitoringConfig and SSLConfig files."""

import contextlib
import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from city import pem
from city.errors import InputError
from city.signatures import Signers
from protos import model_server_config_pb2 as config_pb
from serving.embedded.models.manager import LoadOptions
from serving.embedded.models.model_config import ModelConfig, read_text
from serving.embedded.rest.request_body import MAX_BODY_BYTES
from serving.embedded.telemetry import event, log

METRICS_PATH = "/monitoring/prometheus/metrics"
MAX_MESSAGE_MB = 64
"""Default limit of a request over gRPC, in MiB: 400 times that of a fleet of 1,000 TLs with 40 numbers each."""


def default_threads() -> int:
    """One thread a core, at least two: Python runs one at a time, so more only add context switches.

    (`python -m benchmarks.concurrent_callers --threads 8`)
    """
    return max(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class RestConfig:
    port: int
    threads: int = 8
    timeout_s: float = 30.0
    metrics_path: str | None = None
    """Path of the Prometheus metrics on the REST port; None: no metrics."""
    max_body_bytes: int = MAX_BODY_BYTES
    """Maximum size of a request's body, also after gzip is unpacked."""


@dataclass(frozen=True)
class ServerConfig:
    models_dir: Path | None = None
    """Folder of models, all of which are served; None: `models` lists them."""
    host: str = "127.0.0.1"
    port: int = 8500
    """gRPC port; 0: the system chooses."""
    poll_s: float = 1.0
    """Wall time between polls of the file system for new versions; 0: poll once; negative: never."""
    threads: int = field(default_factory=default_threads)
    """Concurrent calls."""
    max_queued_calls: int = 1000
    """Calls that may wait for a thread; further ones are answered RESOURCE_EXHAUSTED."""
    drain_s: float = 5.0
    """Wall time within which calls in flight may finish at the end."""
    models: dict[str, ModelConfig] = field(default_factory=dict)
    model_config_file: Path | None = None
    config_poll_s: float = 0.0
    """Wall time between readings of model_config_file; 0: only at the start."""
    loading: LoadOptions = field(default_factory=LoadOptions)
    socket_path: Path | None = None
    """Unix socket to listen on, beside the port."""
    channel_arguments: tuple[tuple[str, int | str], ...] = ()
    ssl: config_pb.SSLConfig | None = None
    """TLS of the port and the Unix socket, with `custom_ca` if clients are asked for certificates; None: plain text."""
    ssl_file: Path | None = None
    """File that `ssl` was read from; it may be replaced while the server runs."""
    warm_up: bool = True
    health: bool = True
    """Serve grpc.health.v1.Health."""
    rest: RestConfig | None = None
    allow_any_operation: bool = False
    """Load models with operations that are not in `serving.graph_operations`, such as reading files, too."""
    signers: Signers | None = None
    """Load only versions that one of them has signed; None: any."""
    reload_rpc: bool = True
    """Answer HandleReloadConfigRequest."""
    models_root: Path | None = None
    """Folder in which the models of reload requests must lie; None: the folder of the models at the start."""
    max_message_bytes: int = MAX_MESSAGE_MB << 20
    """Maximum size of a request over gRPC."""


def metrics_path_from_file(file: Path) -> str | None:
    """Read the path of the metrics from a MonitoringConfig; None if they are off. Raises InputError."""
    config = read_text(file, config_pb.MonitoringConfig())
    if not config.prometheus_config.enable:
        return None
    path = config.prometheus_config.path or METRICS_PATH
    if not path.startswith("/"):
        raise InputError(f"{file}: path {path!r} must begin with /, such as {METRICS_PATH}")
    return path


def ssl_from_file(path: Path) -> config_pb.SSLConfig:
    """Read an SSLConfig, as tensorflow/serving's ssl_config.proto. Raises InputError."""
    config = read_text(path, config_pb.SSLConfig())
    if not config.server_key or not config.server_cert:
        raise InputError(f"{path}: server_key or server_cert is missing; add both as PEM")
    if config.client_verify and not config.custom_ca:
        raise InputError(
            f"{path}: custom_ca is missing; add the CA bundle (PEM) of clients, or leave client_verify out"
        )
    pem.check_pair(config.server_cert.encode(), config.server_key.encode(), f"{path}: server_cert and server_key")
    return config


def port_error(host: str, port: int, flag: str) -> str:
    """The error line for an address that cannot be bound."""
    return f"cannot listen on {host}:{port}: it is in use or not on this machine; choose another {flag}"


def certificates(ssl: config_pb.SSLConfig) -> grpc.ServerCertificateConfiguration:
    key, certificate, ca = (text.encode() for text in (ssl.server_key, ssl.server_cert, ssl.custom_ca))
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca or None)


class CertificateFile:
    """An --ssl_config_file that may be replaced while a port uses it."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the file; without one, the certificates never change."""
        self._path = path
        self._identity = _identity(path) if path is not None else None

    def newest(self) -> grpc.ServerCertificateConfiguration | None:
        """The file's certificates if it was replaced; None (keep the current ones) if not, or if the new ones are
        invalid."""
        if self._path is None:
            return None
        try:
            identity = _identity(self._path)
            if identity == self._identity:
                return None
            self._identity = identity
            replaced = certificates(ssl_from_file(self._path))
        except (OSError, InputError) as error:
            log.warning("%s: %s; the previous certificates stay in use", self._path, error)
            return None
        event("certificates_replaced", file=self._path)
        return replaced


def _identity(path: Path) -> tuple[int, int]:
    """(modification time in ns, inode); both change when a file is replaced."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ino


def exposure_warnings(config: ServerConfig, models_root: Path | None, rest_port: int) -> Iterator[str]:
    """Warnings, to log at the start, about settings that let any client of the network do more than necessary.

    Args:
        config: the server's settings.
        models_root: folder in which the models of reload requests must lie.
        rest_port: port of the REST API; 0 without one.
    """
    if config.ssl is None and not _is_loopback(config.host):
        rights = "run models and replace them" if config.reload_rpc else "run models"
        yield (
            f"listening on {config.host} without TLS: any client that reaches the port can {rights}; pass "
            "--ssl_config_file with client_verify, or restrict the network"
        )
    if config.ssl is not None and rest_port:
        what = "requires client certificates" if config.ssl.client_verify else "has TLS"
        yield f"REST port {rest_port} is plain HTTP and answers any client, metrics included, although gRPC {what}"
    if config.allow_any_operation:
        yield (
            "--allow_any_operation: models may read and write files and open connections; serve only models that you "
            "trust"
        )
    if config.reload_rpc and models_root is not None and models_root == Path(models_root.anchor):
        yield f"reload requests may name any folder below {models_root}; pass --models_root DIR"


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"
