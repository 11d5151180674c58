"""A gRPC method that calls a function of the request message, with deadline, errors and metrics."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError, EncodeError, Message
from grpc import StatusCode

from serving.embedded.status import TOO_LARGE, StatusError
from serving.embedded.telemetry import ServerMetrics, log

MAX_DETAILS_CHARS = 1024


class GrpcMethod:
    """One RPC: its function, and the metrics that count it."""

    def __init__(
        self,
        name: str,
        function: Callable[[Any], Message],
        request_type: Any,
        metrics: ServerMetrics | None,
        is_known: Callable[[str], bool],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Wrap a function for a gRPC handler without (de)serializers: see DecodeError below.

        Args:
            name: name of the RPC, a label of its metrics.
            function: returns the response to a request message. Raises StatusError.
            request_type: class of the request message.
            metrics: counts every call; None: calls are not counted.
            is_known: whether a model of this name is or was configured; other names do not become metric labels.
            pool: the RPC's own threads; None: the server's.
        """
        self.name = name
        self._function = function
        self._request_type = request_type
        self._metrics, self._is_known = metrics, is_known
        self.experimental_thread_pool = pool  # grpc reads this attribute

    def __call__(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        begin = time.perf_counter()
        model = ""
        code = StatusCode.OK
        details = ""
        response = b""
        try:
            time_left_s = context.time_remaining()
            if time_left_s is not None and time_left_s <= 0:
                raise StatusError(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")
            request = self._request_type.FromString(data)
            model = request.model_spec.name if hasattr(request, "model_spec") else ""
            response = _serialized(self._function(request))
        except StatusError as error:
            code, details = error.code, str(error)
        except DecodeError:
            # parsed and caught here, because gRPC would log a traceback for every malformed request and keep its memory
            code, details = StatusCode.INTERNAL, "the request cannot be parsed as its message"
        except Exception as error:
            log.exception("%s failed", self.name)
            code, details = StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        if self._metrics is not None:
            label = model if self._is_known(model) else ""
            self._metrics.count_request(label, code.name)
            if code is StatusCode.OK:
                self._metrics.count_latency(label, self.name, "GRPC", time.perf_counter() - begin)
        if code is not StatusCode.OK:
            # HTTP/2 permits no blanks at a header's ends: Node.js would drop the whole header
            details = details.strip()
            # its size is limited; truncated as in tensorflow/serving's grpc_status_util.cc
            context.abort(
                code, details if len(details) <= MAX_DETAILS_CHARS else details[:MAX_DETAILS_CHARS] + "...TRUNCATED"
            )
        return response


def _serialized(response: Message) -> bytes:
    try:
        return response.SerializeToString()
    except (EncodeError, SystemError):  # protobuf's errors for a message beyond its limit
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the response takes {TOO_LARGE}") from None
