"""Settings of one embedded server, and the files that hold some of them."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from city.errors import InputError
from protos import model_server_config_pb2 as config_pb
from serving.embedded.batching import Batching
from serving.embedded.model_config import ModelConfig
from serving.embedded.model_manager import Loading

METRICS_PATH = "/monitoring/prometheus/metrics"


@dataclass(frozen=True)
class Ssl:
    """Keys and certificates, as PEM."""

    server_key: bytes
    server_cert: bytes
    custom_ca: bytes
    """Whose clients are trusted; empty: nobody is asked who they are."""
    client_verify: bool
    """Whether a client must show a certificate (mTLS)."""


@dataclass(frozen=True)
class RestConfig:
    port: int
    threads: int = 8
    timeout_s: float = 30.0
    metrics_path: str | None = None
    """Where metrics are told. None: nowhere."""


@dataclass(frozen=True)
class ServerConfig:
    models_dir: Path | None = None
    """Folder whose models are all served. None: `models` or `model_config_file` tells them."""
    host: str = "127.0.0.1"
    port: int = 8500
    """0: the system chooses."""
    poll_s: float = 1.0
    """Between looks for new versions; 0: one look only; negative: none at all."""
    threads: int = field(default_factory=lambda: default_threads(batching=False))
    """Calls worked on at once."""
    max_queued_calls: int = 1000
    """Calls that may wait for a thread; more are answered RESOURCE_EXHAUSTED."""
    drain_s: float = 5.0
    """Bound on the wait for calls under way at the end."""
    models: dict[str, ModelConfig] = field(default_factory=dict)
    model_config_file: Path | None = None
    config_poll_s: float = 0.0
    """Between readings of model_config_file; 0: at the start only."""
    loading: Loading = field(default_factory=Loading)
    socket_path: Path | None = None
    """Unix socket to listen on too."""
    channel_arguments: tuple[tuple[str, int | str], ...] = ()
    ssl: Ssl | None = None
    """TLS. None: plain."""
    warm_up: bool = True
    batching: Batching | None = None
    health: bool = True
    """Whether grpc.health.v1.Health is there."""
    rest: RestConfig | None = None


def default_threads(batching: bool) -> int:
    """Threads that answer gRPC calls.

    Python runs one of them at a time, so more than the cores only get into each
    other's way (`python -m benchmarks.concurrent_callers --threads 8`); calls that
    wait for their batch need a thread each.
    """
    return 64 if batching else max(2, os.cpu_count() or 1)


def metrics_path_of_file(file: Path) -> str | None:
    """Read a MonitoringConfig. Raises InputError."""
    config = config_pb.MonitoringConfig()
    try:
        text_format.Parse(file.read_text(encoding="utf-8"), config)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise InputError(f"{file}: cannot be read as MonitoringConfig: {error}") from None
    if not config.prometheus_config.enable:
        return None
    path = config.prometheus_config.path or METRICS_PATH
    if not path.startswith("/"):
        raise InputError(f"{file}: path {path!r} must begin with /, such as {METRICS_PATH}")
    return path


def ssl_of_file(path: Path) -> Ssl:
    """Read an SSLConfig, as tensorflow/serving's ssl_config.proto has it. Raises InputError."""
    config = config_pb.SSLConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise InputError(f"{path}: cannot be read as SSLConfig: {error}") from None
    if not config.server_key or not config.server_cert:
        raise InputError(f"{path}: needs server_key and server_cert, as PEM")
    if config.client_verify and not config.custom_ca:
        raise InputError(f"{path}: client_verify needs custom_ca, the certificates that clients are verified by")
    return Ssl(config.server_key.encode(), config.server_cert.encode(), config.custom_ca.encode(), config.client_verify)
