"""Errors of calls to a model server, without a dependency on gRPC.

`code` is the name of the gRPC status, or INVALID_RESPONSE if the response itself is invalid.
"""

from city.printable import printable


class ServingError(Exception):
    """A call to the model server failed."""

    code = "UNKNOWN"


class Unavailable(ServingError):
    """The server cannot be reached, is shutting down, or is at work on another reload; transient."""

    code = "UNAVAILABLE"


class DeadlineExceeded(ServingError):
    """The deadline passed before the response arrived."""

    code = "DEADLINE_EXCEEDED"


class Overloaded(ServingError):
    """The server is overloaded (RESOURCE_EXHAUSTED); transient."""

    code = "RESOURCE_EXHAUSTED"


class ModelNotFound(ServingError):
    """The server has no such model or version."""

    code = "NOT_FOUND"


class BadRequest(ServingError):
    """The request is invalid: wrong signature, input key, dtype or shape, or larger than the server accepts."""

    code = "INVALID_ARGUMENT"


class InvalidResponse(ServingError):
    """The response is invalid: it cannot be parsed, or its tensors do not fit the request."""

    code = "INVALID_RESPONSE"


_TOO_LARGE = "larger than max"
"""Part of gRPC's own text about a message beyond the receiver's limit, which has the status of an overload."""
ERROR_BY_STATUS: dict[str, type[ServingError]] = {
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Unavailable,
    "ABORTED": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "RESOURCE_EXHAUSTED": Overloaded,
    "NOT_FOUND": ModelNotFound,
    "INVALID_ARGUMENT": BadRequest,
    "FAILED_PRECONDITION": BadRequest,
    "OUT_OF_RANGE": BadRequest,
}


def from_status(code: str, details: str) -> ServingError:
    """The error of a gRPC status, by the status's name."""
    details = printable(details)
    error_type = BadRequest if code == Overloaded.code and _TOO_LARGE in details else ERROR_BY_STATUS.get(code)
    if error_type is None:
        return ServingError(f"{code}: {details}")
    return error_type(details or code)
