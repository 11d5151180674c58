"""Errors with a gRPC status code, and the HTTP status of each code."""

import grpc


class StatusError(Exception):
    """A request that is answered with a status other than OK; the text is TensorFlow Serving's if it has one."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid_argument(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.NOT_FOUND, message)


def failed_precondition(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.FAILED_PRECONDITION, message)


def aborted(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.ABORTED, message)


def unimplemented(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNIMPLEMENTED, message)


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
