"""Settings of an embedded server, and its MonitoringConfig and SSLConfig files."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from city import pem
from city.errors import InputError
from city.signatures import Signers
from protos import model_server_config_pb2 as config_pb
from serving.embedded import text_proto
from serving.embedded.models.manager import LoadOptions
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.rest.request_body import MAX_BODY_BYTES

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
    config = text_proto.read(file, config_pb.MonitoringConfig())
    if not config.prometheus_config.enable:
        return None
    path = config.prometheus_config.path or METRICS_PATH
    if not path.startswith("/"):
        raise InputError(f"{file}: path {path!r} must begin with /, such as {METRICS_PATH}")
    return path


def ssl_from_file(path: Path) -> config_pb.SSLConfig:
    """Read an SSLConfig, as tensorflow/serving's ssl_config.proto. Raises InputError."""
    config = text_proto.read(path, config_pb.SSLConfig())
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
