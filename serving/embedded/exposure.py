"""Warnings about settings that let any client of the network do more than necessary: one line each."""

import contextlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path

from serving.embedded.config import ServerConfig


def warnings(config: ServerConfig, models_root: Path | None, rest_port: int) -> Iterator[str]:
    """The warnings to log at the start.

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
