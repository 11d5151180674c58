"""The one place where an error becomes a status: of gRPC, of HTTP."""

from typing import Any, NamedTuple

import grpc


class StatusError(Exception):
    """A request that is answered with a status; the text is TensorFlow Serving's."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.model = ""
        """Who was asked, once that is known."""


class Answer(NamedTuple):
    """What an RPC gave."""

    version: int
    """Of the model that answered."""
    response: Any
    """A message, or its bytes."""
    model: str = ""


def invalid_argument(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.NOT_FOUND, message)


def failed_precondition(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.FAILED_PRECONDITION, message)


def unimplemented(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNIMPLEMENTED, message)


def unavailable(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNAVAILABLE, message)


def deadline_exceeded(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, message)


def unknown(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNKNOWN, message)


HTTP_STATUS: dict[grpc.StatusCode, str] = {
    grpc.StatusCode.OK: "200 OK",
    grpc.StatusCode.CANCELLED: "499 Client Closed Request",
    grpc.StatusCode.INVALID_ARGUMENT: "400 Bad Request",
    grpc.StatusCode.FAILED_PRECONDITION: "400 Bad Request",
    grpc.StatusCode.OUT_OF_RANGE: "400 Bad Request",
    grpc.StatusCode.UNAUTHENTICATED: "401 Unauthorized",
    grpc.StatusCode.PERMISSION_DENIED: "403 Forbidden",
    grpc.StatusCode.NOT_FOUND: "404 Not Found",
    grpc.StatusCode.ALREADY_EXISTS: "409 Conflict",
    grpc.StatusCode.ABORTED: "409 Conflict",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "429 Too Many Requests",
    grpc.StatusCode.UNIMPLEMENTED: "501 Not Implemented",
    grpc.StatusCode.UNAVAILABLE: "503 Service Unavailable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "504 Gateway Timeout",
    grpc.StatusCode.UNKNOWN: "500 Internal Server Error",
    grpc.StatusCode.INTERNAL: "500 Internal Server Error",
    grpc.StatusCode.DATA_LOSS: "500 Internal Server Error",
}
"""As tensorflow/serving's http_server.cc."""
