"""Bodies of REST requests: limits for the size of each, before and after gzip is unpacked, and for all together."""

import threading
import zlib

from grpc import StatusCode

from serving.embedded.status import StatusError

MAX_BODY_BYTES = 1 << 21
"""Default of the maximum size of a body, also after gzip is unpacked: a fleet of 1,000 TLs with 40 lanes needs 0.5
MB."""
BODIES_IN_FLIGHT = 8
"""Bodies of maximum size that fit in memory at once; a request that exceeds this is answered 503."""
BLOCK_BYTES = 1 << 16
"""Bytes that are unpacked or parsed in one call, during which Python runs no other thread."""
_GZIP = 31
"""zlib's number of the gzip format."""


class Budget:
    """Bytes of the bodies in memory, over all requests. Thread-safe."""

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._limit = BODIES_IN_FLIGHT * max_body_bytes
        self._used = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Reserve bytes. Raises StatusError (UNAVAILABLE) if they would exceed the limit."""
        with self._lock:
            if self._used + size > self._limit:
                raise StatusError(
                    StatusCode.UNAVAILABLE, f"the bodies of all requests exceed {self._limit} bytes; try again later"
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Return reserved bytes."""
        with self._lock:
            self._used -= size


class Body:
    """The body of one request, and whether its client still waits for an answer."""

    def __init__(self, budget: Budget, content_encoding: str, content_length: int = 0) -> None:
        """Start empty.

        Args:
            budget: bytes of all requests' bodies.
            content_encoding: the request's header; empty without it.
            content_length: the request's header; 0 without it.

        Raises:
            StatusError: the encoding is not supported, or the length exceeds the limit.
        """
        self._budget, self._is_gzip = budget, content_encoding.lower() == "gzip"
        self._data, self._taken = bytearray(), 0
        self._gone = threading.Event()
        if not self._is_gzip and content_encoding.lower() not in ("", "identity"):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"Content-Encoding {content_encoding} is not supported; send gzip, or leave it out",
            )
        self._check_size(content_length)

    def append(self, part: bytes) -> None:
        """Add bytes as received. Raises StatusError beyond a limit."""
        self._add(self._data, part)

    def _add(self, data: bytearray, part: bytes) -> None:
        self._check_size(len(data) + len(part))
        self._budget.take(len(part))
        self._taken += len(part)
        data += part

    def _check_size(self, size: int) -> None:
        if size > self._budget.max_body_bytes:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"the body is larger than {self._budget.max_body_bytes} bytes, also after gzip is unpacked "
                "(--rest_api_max_body_bytes)",
            )

    def content(self) -> bytes:
        """The unpacked body. Raises StatusError if it cannot be unpacked or exceeds a limit."""
        self.check_client()
        if not self._is_gzip:
            return bytes(self._data)
        stream = zlib.decompressobj(_GZIP)
        packed = bytes(self._data)
        unpacked = bytearray()
        try:
            while packed and not stream.eof:
                self.check_client()
                self._add(unpacked, stream.decompress(packed, BLOCK_BYTES))
                packed = stream.unconsumed_tail
        except zlib.error as error:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"the body cannot be unpacked: {error}") from None
        if not stream.eof or stream.unused_data:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, "the body cannot be unpacked: it is not one whole gzip member"
            )
        return bytes(unpacked)

    def abandon(self) -> None:
        """Record that no client waits for an answer any more: `check_client` raises from now on."""
        self._gone.set()

    def check_client(self) -> None:
        """Raise StatusError (CANCELLED) if no client waits for an answer any more."""
        if self._gone.is_set():
            raise StatusError(StatusCode.CANCELLED, "the client no longer waits for the answer")

    def release(self) -> None:
        """Free the body; call it once nothing uses the body any more."""
        self._data.clear()
        self._budget.give_back(self._taken)
        self._taken = 0
