"""HTTP/2 as unary gRPC calls need it, for both ends of a connection; no socket here.

https://www.rfc-editor.org/rfc/rfc9113; what the frames hold is grpc_wire.py's.
Windows, settings and pings are seen to here; headers, data and ends come out as events.
"""

import struct
from typing import NamedTuple

from serving.grpc_wire import MOST_HEADER_BYTES, Garbled, HeaderReader, Headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
NO_ERROR, PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 0, 1, 7, 8
MOST_NUMBER = (1 << 31) - 1
"""Of a stream, and of a window."""
DEFAULT_WINDOW = 65_535
FRAME_BYTES = 16_384
"""The most that a frame holds where the other end has not asked for more: here it never does."""
MOST_STREAMS = 1000
"""Calls that the other end may have under way at once."""


class Event(NamedTuple):
    """What has come: HEADERS, DATA, RST_STREAM, or GOAWAY, whose stream is the last that will be answered."""

    kind: int
    stream: int
    is_end: bool = False
    """Whether nothing more comes of this stream."""
    headers: Headers = ()
    data: bytes = b""


class _Stream:
    """What one stream still has to send, and how much of it the other end takes now."""

    __slots__ = ("trailer", "unsent", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.unsent = memoryview(b"")
        self.trailer = b""


class Connection:
    """One end of a connection: bytes that came, to events; what is sent, to bytes. For one thread at a time."""

    def __init__(self, is_client: bool) -> None:
        self.outgoing = bytearray(PREFACE if is_client else b"")
        """To be put on the socket, and taken out here."""
        self.most_streams = 100
        """Calls at once that the other end takes; as long as it has not told, what RFC 9113 holds to be sensible."""
        # a client without a table reads the same few blocks again and again; a server's is for clients that use one
        own = (HEADER_TABLE_SIZE, 0, ENABLE_PUSH, 0) if is_client else (MAX_CONCURRENT_STREAMS, MOST_STREAMS)
        self.outgoing += _settings(*own, INITIAL_WINDOW_SIZE, MOST_NUMBER)
        self.outgoing += _window_update(MOST_NUMBER - DEFAULT_WINDOW)
        self._is_client = is_client
        self._preface = b"" if is_client else PREFACE
        """What must come before the first frame."""
        self._incoming = bytearray()
        self._untold = 0
        """Bytes of data that came, and that the other end does not know to be taken."""
        self._begun: tuple[int, bool, bytes] | None = None
        """Headers that go on in another frame: (stream, whether it ends with them, what came)."""
        self._headers = HeaderReader(has_table=not is_client)
        self._window, self._stream_window = DEFAULT_WINDOW, DEFAULT_WINDOW
        """What the other end takes: bytes in all, bytes of a stream to begin with."""
        self._streams: dict[int, _Stream] = {}
        self.newest = -1 if is_client else 0
        """The number of the newest stream."""

    def begin(self) -> int:
        """The number of another stream of this client. Raises Garbled where there are no more."""
        self.newest += 2
        if self.newest > MOST_NUMBER:
            raise Garbled("there are no more numbers for streams")
        self._streams[self.newest] = _Stream(self._stream_window)
        return self.newest

    def send(self, stream: int, block: bytes, data: bytes = b"", trailer: bytes = b"") -> None:
        """All of a stream: headers, data as fast as the other end takes it, headers again where there are some behind it.

        Nothing is sent where the other end has given the stream up.
        """
        sending = self._streams.get(stream)
        if sending is None:
            return
        self.outgoing += _frame(HEADERS, END_HEADERS if data else END_HEADERS | END_STREAM, stream, block)
        sending.unsent, sending.trailer = memoryview(data), trailer
        self._go_on(stream, sending)
        if not data:
            self._is_sent(stream)

    def end(self, stream: int) -> None:
        """Forget a stream of this client whose answer has come."""
        self._streams.pop(stream, None)

    def forget(self) -> None:
        """The other end is gone: nothing is sent any more."""
        self._streams.clear()

    def has(self, stream: int) -> bool:
        """Whether it has not ended."""
        return stream in self._streams

    @property
    def under_way(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    def reset(self, stream: int, code: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self.outgoing += _frame(RST_STREAM, 0, stream, struct.pack("!I", code))

    def go_away(self, code: int) -> None:
        """Tell the other end that no more calls of its are taken."""
        self.outgoing += _frame(GOAWAY, 0, 0, struct.pack("!II", 0 if self._is_client else self.newest, code))

    def feed(self, data: bytes) -> list[Event]:
        """Take what came. Raises Garbled."""
        incoming = self._incoming
        incoming += data
        if self._preface:
            size = len(self._preface)
            if incoming[:size] != self._preface[: len(incoming)]:
                raise Garbled("what came is not HTTP/2")
            if len(incoming) < size:
                return []
            del incoming[:size]
            self._preface = b""
        events: list[Event] = []
        at, have = 0, len(incoming)
        while have - at >= 9:
            size_and_kind, flags, stream = struct.unpack_from("!IBI", incoming, at)
            end = at + 9 + (size_and_kind >> 8)
            if end - at > 9 + FRAME_BYTES:
                raise Garbled(f"a frame of {end - at - 9} bytes where at most {FRAME_BYTES} were agreed on")
            if end > have:
                break
            event = self._take(size_and_kind & 0xFF, flags, stream & MOST_NUMBER, bytes(incoming[at + 9 : end]))
            if event is not None:
                events.append(event)
            at = end
        del incoming[:at]
        return events

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> Event | None:
        if self._begun is not None and (kind != CONTINUATION or stream != self._begun[0]):
            raise Garbled("headers that do not go on")
        if kind == DATA:
            self._untold += len(payload)
            if self._untold > MOST_NUMBER // 2:
                self.outgoing += _window_update(self._untold)
                self._untold = 0
            if stream in self._streams:
                return Event(DATA, stream, bool(flags & END_STREAM), data=_unpadded(kind, flags, payload))
        elif kind == HEADERS:
            return self._take_headers(stream, bool(flags & END_STREAM), _unpadded(kind, flags, payload), flags)
        elif kind == CONTINUATION:
            if self._begun is None:
                raise Garbled("headers that go on without having begun")
            _, is_end, begun = self._begun
            return self._take_headers(stream, is_end, begun + payload, flags)
        elif kind == RST_STREAM:
            if self._streams.pop(stream, None) is not None:
                return Event(RST_STREAM, stream, is_end=True)
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(payload)
        elif kind == WINDOW_UPDATE:
            self._take_window(stream, _number(payload))
        elif kind == PING and not flags & ACK:
            self.outgoing += _frame(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            return Event(GOAWAY, _number(payload[:4]) & MOST_NUMBER)
        elif kind == PUSH_PROMISE:
            raise Garbled("a promise that was ruled out")
        return None  # other kinds are for other ends: RFC 9113, 5.5

    def _take_headers(self, stream: int, is_end: bool, block: bytes, flags: int) -> Event | None:
        if not flags & END_HEADERS:
            if len(block) > MOST_HEADER_BYTES:
                raise Garbled(f"headers of more than {MOST_HEADER_BYTES} bytes")
            self._begun = stream, is_end, block
            return None
        self._begun = None
        headers = self._headers.read(block)
        if not self._is_client and stream > self.newest:
            if not stream % 2:
                raise Garbled(f"a stream of the number {stream}, which is no client's")
            if len(self._streams) >= MOST_STREAMS:
                raise Garbled(f"more than {MOST_STREAMS} calls at once")
            self.newest = stream
            self._streams[stream] = _Stream(self._stream_window)
        # of a call that was given up nobody wants to know, but its headers had to be read: the next may build on them
        return Event(HEADERS, stream, is_end, headers) if stream in self._streams else None

    def _take_settings(self, payload: bytes) -> None:
        if len(payload) % 6:
            raise Garbled(f"settings of {len(payload)} bytes")
        for name, value in struct.iter_unpack("!HI", payload):
            if name == MAX_CONCURRENT_STREAMS:
                self.most_streams = value
            elif name == INITIAL_WINDOW_SIZE:
                if value > MOST_NUMBER:
                    raise Garbled(f"a window of {value} bytes")
                # of the streams under way too: RFC 9113, 6.9.2
                grown, self._stream_window = value - self._stream_window, value
                for stream, each in list(self._streams.items()):
                    each.window += grown
                    self._go_on(stream, each)
        self.outgoing += _frame(SETTINGS, ACK, 0)

    def _take_window(self, stream: int, size: int) -> None:
        size &= MOST_NUMBER
        if stream == 0:
            self._window += size
            for number, each in list(self._streams.items()):
                self._go_on(number, each)
        elif (found := self._streams.get(stream)) is not None:
            found.window += size
            self._go_on(stream, found)

    def _go_on(self, stream: int, sending: _Stream) -> None:
        """Send as much of a stream as the other end takes now."""
        while sending.unsent:
            size = min(len(sending.unsent), FRAME_BYTES, self._window, sending.window)
            if size <= 0:
                return
            part, sending.unsent = sending.unsent[:size], sending.unsent[size:]
            self._window -= size
            sending.window -= size
            is_end = not sending.unsent and not sending.trailer
            self.outgoing += _frame(DATA, END_STREAM if is_end else 0, stream, part)
            if not sending.unsent:
                if sending.trailer:
                    self.outgoing += _frame(HEADERS, END_HEADERS | END_STREAM, stream, sending.trailer)
                self._is_sent(stream)

    def _is_sent(self, stream: int) -> None:
        if not self._is_client:
            del self._streams[stream]  # what still comes of it is of no use


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    return b"".join((struct.pack("!IBI", len(payload) << 8 | kind, flags, stream), payload))


def _settings(*values: int) -> bytes:
    """A SETTINGS frame of names and their values in turn."""
    return _frame(SETTINGS, 0, 0, struct.pack("!" + "HI" * (len(values) // 2), *values))


def _window_update(size: int) -> bytes:
    """Leave for `size` more bytes of the whole connection."""
    return _frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", size))


def _unpadded(kind: int, flags: int, payload: bytes) -> bytes:
    """What a DATA or HEADERS frame holds without its padding and priority. Raises Garbled."""
    if not flags & (PADDED | PRIORITY):
        return payload
    begin, end = 0, len(payload)
    if flags & PADDED:
        begin = 1
        end -= payload[0] if payload else 1
    if kind == HEADERS and flags & PRIORITY:
        begin += 5
    if begin > end:
        raise Garbled("a frame whose padding is longer than it")
    return payload[begin:end]


def _number(payload: bytes) -> int:
    """A payload of one 32-bit number. Raises Garbled."""
    if len(payload) != 4:
        raise Garbled(f"a number of {len(payload)} bytes")
    found: int = struct.unpack("!I", payload)[0]
    return found
