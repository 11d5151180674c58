"""Errors with a gRPC status code, and the HTTP status of each code."""

import grpc

TOO_LARGE = "more than the 2 GiB of a message; send fewer rows, or name the outputs that you need in output_filter"
"""End of an error's text, after what takes the bytes."""


class StatusError(Exception):
    """A request fails with this gRPC status code. The text is TensorFlow Serving's if it has one."""

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


def unavailable(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNAVAILABLE, message)


def cancelled(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.CANCELLED, message)


def unknown(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNKNOWN, message)


HTTP_STATUS: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.DATA_LOSS: 500,
}
"""gRPC status code -> HTTP status, as in tensorflow/serving's http_server.cc."""
