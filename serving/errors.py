"""Errors of a model server as its clients meet them; nothing here knows gRPC's classes.

`code` is the name of the gRPC status that led here, for logs and metrics.
"""


class ServingError(Exception):
    """An answer could not be had from the model server."""

    code = "UNKNOWN"


class Unavailable(ServingError):
    """The server cannot be reached, or is going away. May pass."""

    code = "UNAVAILABLE"


class DeadlineExceeded(ServingError):
    """The answer did not come in time."""

    code = "DEADLINE_EXCEEDED"


class Overloaded(ServingError):
    """The server refuses more work for now (RESOURCE_EXHAUSTED)."""

    code = "RESOURCE_EXHAUSTED"


class ModelNotFound(ServingError):
    """The server has no such model or version."""

    code = "NOT_FOUND"


class BadRequest(ServingError):
    """The server refuses the request: signature, key, dtype or shape is wrong."""

    code = "INVALID_ARGUMENT"


class BadAnswer(ServingError):
    """The server answered something that is no answer to the question."""

    code = "BAD_ANSWER"


FAMILY: dict[str, type[ServingError]] = {
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "RESOURCE_EXHAUSTED": Overloaded,
    "NOT_FOUND": ModelNotFound,
    "INVALID_ARGUMENT": BadRequest,
    "FAILED_PRECONDITION": BadRequest,
    "OUT_OF_RANGE": BadRequest,
}


def from_status(code: str, details: str) -> ServingError:
    """The error of our family for a gRPC status name."""
    kind = FAMILY.get(code)
    if kind is None:
        return ServingError(f"{code}: {details}")
    return kind(details or code)
