"""Why the operator interface refuses a call."""

from enum import Enum


class Status(Enum):
    """A reason by the name of its gRPC status; the value is its HTTP status."""

    INVALID_ARGUMENT = 400
    NOT_FOUND = 404
    FAILED_PRECONDITION = 409
    RESOURCE_EXHAUSTED = 429
    UNAVAILABLE = 503
    DEADLINE_EXCEEDED = 504


class OperatorError(Exception):
    """A call that is refused, or was not applied in time; the text is for its caller."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
