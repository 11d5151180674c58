"""A gRPC method out of a function of the request: deadline, errors, metrics."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from serving.embedded import deadline
from serving.embedded.logs import log
from serving.embedded.metrics import Metrics
from serving.embedded.pace import Pace
from serving.embedded.status import Answer, StatusError, deadline_exceeded

MAX_WORDS = 1024


class Told(NamedTuple):
    """How a call ended."""

    status: grpc.StatusCode
    words: str = ""
    response: Any = b""


class Method:
    """One RPC: what answers it, and what is counted of it."""

    def __init__(
        self,
        name: str,
        function: Callable[[bytes], Answer],
        metrics: Metrics,
        served: Callable[[str], bool],
        pace: Callable[[bytes], Pace | None] = lambda data: None,
    ) -> None:
        """`function`: of a request's bytes. `served`: whether a model of this name is known here.

        `pace`: how quick requests like one are; None: nobody knows.
        """
        self.pace = pace
        self.experimental_thread_pool: ThreadPoolExecutor | None = None
        """Read by grpc: threads of this method's own."""
        self.name, self._function, self._metrics, self._served = name, function, metrics, served

    def __call__(self, data: bytes, context: grpc.ServicerContext) -> Any:
        told = self.answer(data, context.time_remaining())
        if told.status is not grpc.StatusCode.OK:
            context.abort(told.status, told.words)
        return told.response

    def answer(self, data: bytes, left_s: float | None) -> Told:
        """`left_s`: until nobody waits for it any more; None: somebody always will. Never raises."""
        begin = time.perf_counter()
        model, version, status, words, response = "", 0, grpc.StatusCode.OK, "", b""
        try:
            # what was cancelled while it waited for a thread has been dropped before
            if left_s is not None and left_s <= 0:
                raise deadline_exceeded("the deadline has passed")
            deadline.begin(left_s)
            version, response, model = self._function(data)
        except StatusError as error:
            status, words, model = error.code, str(error), error.model
        except DecodeError:
            # caught here and not by gRPC, which logs a traceback for every garbage request and keeps its memory
            status, words = grpc.StatusCode.INTERNAL, "the request's bytes are none of its message"
        except Exception as error:
            log.exception("%s failed", self.name)
            status, words = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        label = model if self._served(model) else ""
        self._metrics.answered(label, version, self.name, "GRPC", status.name, time.perf_counter() - begin)
        # words are sent as a header, whose size is bounded; tensorflow/serving's grpc_status_util.cc cuts them so
        return Told(status, words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + "...TRUNCATED", response)


def parsed(function: Callable[[Any], Answer], request: Any) -> Callable[[bytes], Answer]:
    """A function of a request's bytes out of one of its message (`request`: which)."""

    def answer(data: bytes) -> Answer:
        message = request.FromString(data)
        try:
            found = function(message)
        except StatusError as error:
            error.model = _model(message)
            raise
        response = found.response if isinstance(found.response, bytes) else found.response.SerializeToString()
        return Answer(found.version, response, _model(message))

    return answer


def handler(method: Method, pool: ThreadPoolExecutor | None = None) -> Any:
    """The handler that a gRPC server takes; `pool`: threads of its own."""
    if pool is not None:
        method.experimental_thread_pool = pool
    return grpc.unary_unary_rpc_method_handler(method)


def _model(request: Any) -> str:
    spec = getattr(request, "model_spec", None)
    if spec is None:
        tasks = getattr(request, "tasks", None)
        spec = tasks[0].model_spec if tasks else None
    return spec.name if spec is not None else ""
