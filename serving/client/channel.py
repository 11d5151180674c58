"""The gRPC channel to a model server: one address or several, TLS, keepalive, retries."""

import ipaddress
import json
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""protobuf's limit of a message."""
_OPTIONS: list[tuple[str, int | str]] = [
    # without this limit gRPC aborts the process on a larger message
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # no connection is shared between channels: a new channel must not get the half-open connection of the old one
    ("grpc.use_local_subchannel_pool", 1),
    # find a restarted server again within seconds
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 5000),
    # TensorFlow Serving accepts one ping per 5 minutes, and none without a call; more draw GOAWAY
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
]
_IDEMPOTENT_METHODS = [
    {"service": "tensorflow.serving.PredictionService", "method": "Predict"},
    {"service": "tensorflow.serving.PredictionService", "method": "GetModelMetadata"},
    {"service": "tensorflow.serving.ModelService", "method": "GetModelStatus"},
]
"""Idempotent methods, safe to retry."""
_RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
"""Status codes of calls that no server has processed."""
MAX_RETRIES = 4
UNIX_SERVER_NAME = "localhost"
"""Expected name in the certificate of a server on a Unix socket."""
MAX_UNIX_PATH_BYTES = 107
"""Length of sun_path in unix(7) without its terminating zero."""


@dataclass(frozen=True)
class Tls:
    """Certificates and keys, PEM."""

    ca: bytes | None = None
    """CA bundle that verifies the server; None: gRPC's default roots."""
    certificate: bytes | None = None
    """Client certificate; needs `key` (mTLS)."""
    key: bytes | None = None
    server_name: str = ""
    """Name in the server's certificate, if it differs from the address; "localhost" by default for a Unix socket."""


def open_channel(address: str, tls: Tls | None = None, retries: int = 0) -> grpc.Channel:
    """Open a channel to HOST:PORT, to several IP addresses separated by commas, or to unix:PATH. Raises ValueError."""
    target, is_balanced = grpc_target(address)
    config = _service_config(is_balanced, retries)
    options = [*_OPTIONS, ("grpc.enable_retries", int(retries > 0))]
    if config:
        options.append(("grpc.service_config", json.dumps(config)))
    if tls is None:
        return grpc.insecure_channel(target, options=options)
    # gRPC would compare the certificate's names with the path of a Unix socket
    server_name = tls.server_name or (UNIX_SERVER_NAME if target.startswith("unix:") else "")
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate), options=options)


def grpc_target(address: str) -> tuple[str, bool]:
    """Translate an address into (gRPC target, whether it can resolve to several servers). Raises ValueError."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
            raise ValueError(
                f"address {address!r}: the path of a Unix socket can have at most {MAX_UNIX_PATH_BYTES} bytes"
            )
        return address, False
    if address.startswith(("dns:", "ipv4:", "ipv6:")):
        return address, True
    servers = [server.strip() for server in address.split(",")]
    endpoints = [_host_and_port(server) for server in servers]
    ip_versions = {_ip_version(host) for host, _ in endpoints}
    if len(endpoints) == 1:
        host, port = endpoints[0]
        return (f"dns:///{host}:{port}", True) if ip_versions == {None} and host != "localhost" else (address, False)
    if len(ip_versions) > 1 or None in ip_versions:
        raise ValueError(
            f"address {address!r}: several servers must be IP addresses of one version; or pass one name that resolves "
            "to all"
        )
    return f"ipv{ip_versions.pop()}:{','.join(servers)}", True


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parsed = urlsplit(f"//{text}")
        if parsed.hostname and parsed.port and parsed.netloc == text:
            return parsed.hostname, parsed.port
    except ValueError:
        pass  # an invalid port or IPv6 address
    raise ValueError(f"address {text!r} must be HOST:PORT with a port below 65536, such as 127.0.0.1:8500")


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _service_config(is_balanced: bool, retries: int) -> dict[str, object]:
    config: dict[str, object] = {}
    if is_balanced:
        config["loadBalancingConfig"] = [{"round_robin": {}}]
    if retries > 0:
        policy = {
            "maxAttempts": min(retries, MAX_RETRIES) + 1,
            "initialBackoff": "0.02s",
            "maxBackoff": "0.2s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": _RETRYABLE,
        }
        config["methodConfig"] = [{"name": _IDEMPOTENT_METHODS, "retryPolicy": policy}]
    return config
