"""Where a model server is, and the gRPC channel there: several servers, TLS, keepalive, retries."""

import ipaddress
import json
import os
from dataclasses import dataclass

import grpc

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # each channel has connections of its own: a new one must not find the one that leads nowhere
    ("grpc.use_local_subchannel_pool", 1),
    # a server that comes back is found again within seconds
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 5000),
    # TensorFlow Serving's side takes a ping every 5 minutes, and none without a call; more draw GOAWAY
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
]
_READING = (
    ("tensorflow.serving.PredictionService", ("Predict", "GetModelMetadata")),
    ("tensorflow.serving.ModelService", ("GetModelStatus",)),
)
"""What changes nothing at the server, and so may be asked twice."""
RETRIED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
"""Statuses of calls that no server has worked on."""

LONGEST_PATH = 107
"""Bytes of a Unix socket's path (sun_path of unix(7), less its end)."""


@dataclass(frozen=True)
class Tls:
    """Certificates and keys as PEM."""

    ca: bytes | None = None
    """Who signs servers. None: whom gRPC trusts by default."""
    certificate: bytes | None = None
    """Of this client, with `key` (mTLS)."""
    key: bytes | None = None
    server_name: str = ""
    """The name in the server's certificate, where it is not the address."""


def channel(address: str, tls: Tls | None = None, retries: int = 0) -> grpc.Channel:
    """A channel to HOST:PORT, to several IP addresses with commas between, or unix:PATH. Raises ValueError."""
    where, is_many = target(address)
    config = _service_config(is_many, retries)
    options = [*_OPTIONS, ("grpc.enable_retries", int(retries > 0))]
    if config:
        options.append(("grpc.service_config", json.dumps(config)))
    if tls is None:
        return grpc.insecure_channel(where, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(where, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate), options=options)


def target(address: str) -> tuple[str, bool]:
    """(gRPC's name of an address, whether it may stand for several servers). Raises ValueError."""
    path = unix_path(address)
    if path is not None and len(os.fsencode(path)) > LONGEST_PATH:
        raise ValueError(f"address {address!r}: the path of a Unix socket may have {LONGEST_PATH} bytes at most")
    if address.startswith(("unix:", "dns:", "ipv4:", "ipv6:")):
        return address, not address.startswith("unix:")
    parts = [_host_and_port(part.strip()) for part in address.split(",")]
    kinds = {_ip_version(host) for host, _ in parts}
    if len(parts) == 1:
        ((host, port),) = parts
        return (address, False) if kinds != {None} or host == "localhost" else (f"dns:///{host}:{port}", True)
    if len(kinds) > 1 or None in kinds:
        raise ValueError(f"address {address!r}: several servers are told by IP addresses of one kind, or by one name for all")
    return f"ipv{kinds.pop()}:" + ",".join(part.strip() for part in address.split(",")), True


def unix_path(address: str) -> str | None:
    """PATH of unix:PATH (or unix:///PATH); None where the address is another."""
    return address.removeprefix("unix:").removeprefix("//") if address.startswith("unix:") else None


def _host_and_port(part: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ValueError(f"address {part!r} must be HOST:PORT, such as 127.0.0.1:8500")
    return host.strip("[]"), int(port)


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _service_config(is_many: bool, retries: int) -> dict[str, object]:
    config: dict[str, object] = {}
    if is_many:
        config["loadBalancingConfig"] = [{"round_robin": {}}]
    if retries > 0:
        names = [{"service": service, "method": method} for service, methods in _READING for method in methods]
        policy = {
            "maxAttempts": min(retries, 4) + 1,
            "initialBackoff": "0.02s",
            "maxBackoff": "0.2s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": RETRIED,
        }
        config["methodConfig"] = [{"name": names, "retryPolicy": policy}]
    return config
