"""The one error of a request, and the HTTP status of each gRPC status code.

rpc/grpc_method turns it into a gRPC status, rest/server into an HTTP status.
"""

from grpc import StatusCode

TOO_LARGE = "more than the 2 GiB of a message; send fewer rows, or name the outputs that you need in output_filter"
"""End of an error's text, after what takes the bytes."""


class StatusError(Exception):
    """A request fails with this gRPC status code and these details."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


def refuse(*cases: tuple[object, str]) -> None:
    """Raise StatusError (INVALID_ARGUMENT) with the details of the first case, (condition, details), that is true."""
    for is_wrong, details in cases:
        if is_wrong:
            raise StatusError(StatusCode.INVALID_ARGUMENT, details)


HTTP_STATUS: dict[StatusCode, int] = {
    StatusCode.OK: 200,
    StatusCode.CANCELLED: 499,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.ABORTED: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.UNKNOWN: 500,
    StatusCode.INTERNAL: 500,
    StatusCode.DATA_LOSS: 500,
}
"""gRPC status code -> HTTP status, as in tensorflow/serving's http_server.cc."""
