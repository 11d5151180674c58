"""The control API over gRPC, on loopback with a token, or with TLS and client certificates."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from city.errors import InputError
from controller.control_address import listen
from controller.operator import operator_token
from controller.operator.control_messages import ANSWERED, METHODS, SERVICE, WATCH, OperatorError, Status
from controller.operator.service import APPLY_TIMEOUT_S, OperatorService
from protos import control_pb2 as pb
from serving.client import Tls
from serving.client.tls_files import ChangingTls

MAX_WATCHERS = 128
"""Concurrent WatchDecisions; each holds a thread."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0
"""Wall time between two messages to a watcher."""
WAKE_INTERVAL_S = 1.0
"""Wall time after which a watcher without news looks whether its client is still there."""
NO_TOKEN = (
    f"calls need the token of the controller's user (uid {os.getuid()}): run greenserve ctl on its machine as that "
    "user, with its TMPDIR, or give the control API TLS: --control-tls-ca, --control-tls-certificate, --control-tls-key"
)
ANSWER_MARGIN_S = 0.2
"""Part of a call's deadline that remains for its answer."""
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
        self._pool = futures.ThreadPoolExecutor(MAX_WATCHERS + COMMAND_THREADS, thread_name_prefix="control")
        self._server = grpc.server(
            self._pool, options=_OPTIONS, maximum_concurrent_rpcs=MAX_WATCHERS + 2 * COMMAND_THREADS
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host, port = address
        listen(host, port, "--control-address").close()  # gRPC would not tell the reason, and log a line of its own
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
            raise InputError(
                f"--control-address {target}: its certificates cannot be used, or the address has been taken; write "
                "the certificates as PEM, the key without a passphrase"
            ) from None

    def start(self, service: OperatorService) -> None:
        self._server.add_generic_rpc_handlers((_handler(service, self._token),))
        self._server.start()
        self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Report NOT_SERVING, refuse new calls, and end those in flight."""
        self._health.enter_graceful_shutdown()
        self._server.stop(STOP_TIMEOUT_S).wait()
        self._pool.shutdown(wait=False)


def _certificates(tls: Tls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.ca)


def _handler(service: OperatorService, token: str | None) -> grpc.GenericRpcHandler:
    """The gRPC handler of all methods. `token`: that each call needs; None: TLS has verified the client."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _parsed(request_type, partial(_call, service, name), token),
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, (request_type, _) in METHODS.items()
    }
    # without a serializer the bytes are sent as they are: all watchers get the same ones
    watch = _parsed(pb.WatchDecisionsRequest, _DecisionStreams(service).watch, token)
    handlers[WATCH] = grpc.unary_stream_rpc_method_handler(watch)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


Method = Callable[[Any, grpc.ServicerContext], Any]


def _call(service: OperatorService, name: str, request: Any, context: grpc.ServicerContext) -> Any:
    remaining_s = context.time_remaining()
    timeout_s = APPLY_TIMEOUT_S if remaining_s is None else max(remaining_s - ANSWER_MARGIN_S, 0.0)
    return service.call(name, request, _author(request, context), timeout_s)


def _parsed(request_type: type[Any], method: Method, token: str | None) -> Callable[[bytes, grpc.ServicerContext], Any]:
    """A method as gRPC calls it, with the request's bytes; an error becomes its status."""

    def call(request: bytes, context: grpc.ServicerContext) -> Any:
        if token is not None:
            sent = dict(context.invocation_metadata()).get(operator_token.HEADER, "")
            if not operator_token.is_permitted(str(sent), token):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
        try:
            return method(request_type.FromString(request), context)
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {request_type.DESCRIPTOR.full_name}")
        except OperatorError as error:
            context.set_trailing_metadata(((ANSWERED, "1"),))
            context.abort(grpc.StatusCode[error.status.name], str(error))

    return call


def _author(request: Any, context: grpc.ServicerContext) -> str:
    """Who commands: the name in the client's certificate, else the request's author."""
    certified = context.auth_context()
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        if certified.get(key):
            return str(certified[key][0], errors="replace")
    return str(getattr(request, "author", ""))


class _DecisionStreams:
    """Sends the newest step to each watcher, which skips the steps that it had no time for."""

    def __init__(self, service: OperatorService) -> None:
        self._service, self._watchers = service, service.state.watchers
        self._free = threading.BoundedSemaphore(MAX_WATCHERS)
        self._encoded: tuple[int, bytes] = (-1, b"")
        """(sequence, message) of the newest step, the same for all watchers."""
        self._encoding = threading.Lock()

    def watch(self, request: pb.WatchDecisionsRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        if not 0 <= request.min_interval_s <= MAX_INTERVAL_S:  # NaN is not between them either
            raise OperatorError(
                Status.INVALID_ARGUMENT,
                f"min_interval_s {request.min_interval_s:g} must lie between 0 and {MAX_INTERVAL_S:g}",
            )
        if not self._free.acquire(blocking=False):
            raise OperatorError(Status.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watchers are connected; close one")
        ended = threading.Event()

        def end() -> None:
            ended.set()
            self._free.release()

        if not context.add_callback(end):
            end()
            return iter(())
        return self._messages(max(request.min_interval_s, MIN_INTERVAL_S), ended)

    def _messages(self, interval_s: float, ended: threading.Event) -> Iterator[bytes]:
        """The newest step, each time that there is a new one. gRPC asks for the next message when the one before is
        sent."""
        sequence = -1
        while not ended.is_set():
            newest = self._watchers.wait_after(sequence, WAKE_INTERVAL_S)
            if newest > sequence:
                sequence = newest
                yield self._newest(sequence)
                ended.wait(0.0 if self._watchers.is_closed else interval_s)
            elif self._watchers.is_closed:
                return

    def _newest(self, sequence: int) -> bytes:
        """The message of the newest step, at least that of a sequence; built once for all watchers."""
        with self._encoding:
            if self._encoded[0] < sequence:
                sequence = self._watchers.sequence  # before the step is read, which may be newer, never older
                self._encoded = sequence, self._service.newest_decisions(sequence).SerializeToString()
            return self._encoded[1]
