"""The one place where an error becomes a gRPC status."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import grpc

log = logging.getLogger("serving")


class StatusError(Exception):
    """A request that is answered with a status; the text is TensorFlow Serving's."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid_argument(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.NOT_FOUND, message)


def failed_precondition(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.FAILED_PRECONDITION, message)


def unknown(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.UNKNOWN, message)


def answered(rpc: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    """A gRPC method out of a function of the request; errors become statuses."""

    @functools.wraps(rpc)
    def method(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return rpc(request)
        except StatusError as error:
            context.abort(error.code, str(error))
        except Exception as error:
            log.exception("%s failed", rpc.__name__)
            context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    return method
