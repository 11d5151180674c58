"""A client of the control API."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import grpc

from city.errors import InputError, ProgramFailed
from city.interrupts import interruptible
from controller.control_address import is_loopback
from controller.operator import operator_token
from controller.operator.control_messages import ANSWERED, METHODS, SERVICE, WATCH
from protos import control_pb2 as pb
from serving.client import Tls
from serving.client.channel import open_channel

_INPUT_ERRORS = (
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
)  # fmt: skip
MAX_DETAILS_CHARS = 300
"""Limit of gRPC's own error texts."""


class ControlClient(AbstractContextManager["ControlClient"]):
    """Calls the control API of one controller.

    Errors are InputError (a wrong request, or a controller that has never answered) or ProgramFailed (no answer any
    more).
    """

    def __init__(self, address: str, tls: Tls | None = None, timeout_s: float = 15.0) -> None:
        """Open a channel; on loopback without TLS its calls carry this user's token. Raises InputError, OSError.

        `address`: HOST:PORT.
        """
        self.address, self._timeout_s = address, timeout_s
        self._metadata: tuple[tuple[str, str], ...] = ()
        # to another machine, the token would travel in plain text
        if tls is None and is_loopback(address.rpartition(":")[0]):
            self._metadata = ((operator_token.HEADER, operator_token.credentials(operator_token.kept().value)),)
        self._has_answered = False
        try:
            self._channel = open_channel(address, tls)
        except ValueError as error:
            raise InputError(str(error)) from None

    def call(self, method: str, request: Any) -> Any:
        """Call a method with one answer. Raises InputError, ProgramFailed."""
        request_type, answer_type = METHODS[method]
        stub = self._channel.unary_unary(f"/{SERVICE}/{method}", request_type.SerializeToString, answer_type.FromString)
        try:
            answer = interruptible(partial(stub, request, timeout=self._timeout_s, metadata=self._metadata))
            self._has_answered = True
            return answer
        except grpc.RpcError as error:
            raise self._error(error) from None

    def watch(self, min_interval_s: float = 0.0) -> Iterator[pb.Decisions]:
        """Yield the newest step until the run ends. Raises InputError, ProgramFailed."""
        stub = self._channel.unary_stream(
            f"/{SERVICE}/{WATCH}", pb.WatchDecisionsRequest.SerializeToString, pb.Decisions.FromString
        )
        stream = stub(pb.WatchDecisionsRequest(min_interval_s=min_interval_s), metadata=self._metadata)
        try:
            while (decisions := interruptible(partial(next, stream, None))) is not None:
                self._has_answered = True
                yield decisions
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            stream.cancel()

    def _error(self, error: grpc.RpcError) -> Exception:
        code, details = error.code(), str(error.details())
        if code in _INPUT_ERRORS:
            return InputError(details)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return InputError(f"{self.address} is not the control API of a controller; pass its --control-address")
        details = details[:MAX_DETAILS_CHARS]
        has_answered = self._has_answered or any(key == ANSWERED for key, _ in error.trailing_metadata() or ())
        if code is grpc.StatusCode.UNAVAILABLE and not has_answered:
            return InputError(
                f"no controller answers at {self.address} ({details}); start one with --control-address, or check "
                "its address and the TLS files"
            )
        return ProgramFailed(f"{self.address}: {code.name}: {details}")

    def __exit__(self, *_: object) -> None:
        self._channel.close()
