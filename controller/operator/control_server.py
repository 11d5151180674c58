"""The gRPC server of the control API: loopback and a token, or TLS with client certificates."""

import socket
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from city.errors import InputError
from controller.operator.control_messages import SERVICE
from controller.operator.control_rpcs import MAX_WATCHERS, handler
from controller.operator.service import OperatorService
from serving.client import Tls
from serving.client.tls_files import ChangingTls

COMMAND_THREADS = 8
STOP_TIMEOUT_S = 1.0
"""Wall time in which calls in flight may end."""
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    # commands are small
    ("grpc.max_receive_message_length", 1 << 20),
    # a client that has vanished must not hold a watcher's thread
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class ControlServer:
    """A gRPC server of the control API and of gRPC's health service."""

    def __init__(self, address: tuple[str, int], tls: ChangingTls | None, token: str) -> None:
        """Bind the port; calls are answered after `start`. Raises InputError.

        Args:
            address: (host, port); port 0: the system chooses.
            tls: the server's certificate, and the CA bundle that verifies clients; None: plain text.
            token: that every call needs without TLS.
        """
        self._token = token if tls is None else None
        self._health = health.HealthServicer()
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._pool = futures.ThreadPoolExecutor(MAX_WATCHERS + COMMAND_THREADS, thread_name_prefix="control")
        self._server = grpc.server(
            self._pool, options=_OPTIONS, maximum_concurrent_rpcs=MAX_WATCHERS + 2 * COMMAND_THREADS
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host, port = address
        where = f"cannot serve the control API at {host}:{port}"
        if reason := _bind_error(host, port):
            raise InputError(f"{where} ({reason}); choose another --control-address")
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self.port = int(self._server.add_insecure_port(target))
            else:
                credentials = grpc.dynamic_ssl_server_credentials(
                    _certificates(tls.newest()),
                    lambda: _certificates(tls.newest()) if tls.has_changed() else None,
                    True,
                )
                self.port = int(self._server.add_secure_port(target, credentials))
        except RuntimeError:
            remedy = (
                "its certificates cannot be used; write them as PEM, the key without a passphrase"
                if tls is not None
                else "the address is in use; choose another --control-address"
            )
            raise InputError(f"{where}: {remedy}") from None

    def start(self, service: OperatorService) -> None:
        self._server.add_generic_rpc_handlers((handler(service, self._token),))
        self._server.start()
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Report NOT_SERVING, refuse new calls, and end those in flight."""
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._server.stop(STOP_TIMEOUT_S).wait()
        self._pool.shutdown(wait=False)

    def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", SERVICE):
            self._health.set(service, status)


def _bind_error(host: str, port: int) -> str:
    """Why a port cannot be bound, or "". gRPC would raise without a reason, and log a line of its own."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return str(error.strerror)
    reason = ""
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
            return ""
        except OSError as error:
            reason = str(error.strerror)
    return reason


def _certificates(tls: Tls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.ca)
