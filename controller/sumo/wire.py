"""TraCI messages, many commands in each: building and bulk decoding.

A message is its length (int32, itself included) and commands; a command is its
length (one byte, or a zero byte and int32), its id and its content; all numbers
are big-endian. The answer has a status for every command, and behind the
status of a getter its value. https://sumo.dlr.de/docs/TraCI/Protocol.html

The size of a numeric getter's answer follows from the name of its object, so
where each value of an answer lies is known before it comes: NumPy picks all of
them at once.
"""

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# the same numbers as in traci.constants; the codec needs nothing else of traci
GETVERSION, SETORDER = 0x00, 0x03
WILL = 0xF7
"""Not TraCI's: what a controller leaves with its guard."""
GUARDED = "behind a guard"
"""Stands behind SUMO's version where a guard answers."""
GET_LANE, GET_SIM, GET_TL = 0xA3, 0xAB, 0xA2
SET_TL, SIMSTEP, CLOSE = 0xC2, 0x02, 0x7F
LAST_STEP_VEHICLE_NUMBER, LAST_STEP_VEHICLE_IDS = 0x10, 0x12
LAST_STEP_HALTING, LAST_STEP_LENGTH = 0x14, 0x15
TIME, STATE, PROGRAM, PHASE, PHASE_DURATION = 0x66, 0x20, 0x23, 0x22, 0x24
TYPE_INT, TYPE_DOUBLE, TYPE_STRING, TYPE_STRING_LIST = 0x09, 0x0B, 0x0C, 0x0E

_STATUS_BYTES = 7  # length, command, result, an empty description's int32
_VALUE_BYTES = {TYPE_INT: 4, TYPE_DOUBLE: 8}

Bytes = NDArray[np.uint8]


SET_OK = bytes((_STATUS_BYTES, SET_TL, 0, 0, 0, 0, 0))
"""SUMO's answer to a command that sets something of a signal."""


STEPPED = bytes((_STATUS_BYTES, SIMSTEP, 0, 0, 0, 0, 0)) + bytes(4)
"""SUMO's answer to a step, where nobody has subscribed to anything."""


class Refused(Exception):
    """SUMO refused a command; the connection goes on."""


class Garbled(Exception):
    """The answer is not TraCI as we know it; the connection cannot go on."""


def command(identifier: int, content: bytes) -> bytes:
    size = len(content) + 2
    head = struct.pack("!BB", size, identifier) if size <= 255 else struct.pack("!BiB", 0, size + 4, identifier)
    return head + content


def _name(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("!i", len(raw)) + raw


def get(domain: int, variable: int, name: str) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name))


@functools.lru_cache(maxsize=1 << 14)
def set_text(domain: int, variable: int, name: str, value: str) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + struct.pack("!B", TYPE_STRING) + _name(value))


def set_int(domain: int, variable: int, name: str, value: int) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + struct.pack("!Bi", TYPE_INT, value))


def set_double(domain: int, variable: int, name: str, value: float) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + struct.pack("!Bd", TYPE_DOUBLE, value))


def step(until_s: float) -> bytes:
    return command(SIMSTEP, struct.pack("!d", until_s))


def message(commands: Sequence[bytes]) -> bytes:
    body = b"".join(commands)
    return struct.pack("!i", len(body) + 4) + body


def ok(identifier: int) -> bytes:
    """The whole answer to a command that gives nothing back."""
    return message([struct.pack("!BBBi", _STATUS_BYTES, identifier, 0, 0)])


def version_answer(number: int, words: str) -> bytes:
    """The whole answer to GETVERSION."""
    status = struct.pack("!BBBi", _STATUS_BYTES, GETVERSION, 0, 0)
    return message([status, command(GETVERSION, struct.pack("!i", number) + _name(words))])


class Frames:
    """Whole messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no message has begun without having ended."""
        return not self._data

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that end with this data, lengths included. Raises Garbled."""
        self._data += data
        while len(self._data) >= 4:
            (size,) = struct.unpack_from("!i", self._data)
            if size < 4:
                raise Garbled(f"a message of {size} bytes")
            if len(self._data) < size:
                return
            message = bytes(self._data[:size])
            del self._data[:size]
            yield message


class NumberGetters:
    """Getters of numbers whose answers are decoded in bulk.

    `wanted`: (domain, variable, object name, TYPE_INT or TYPE_DOUBLE). Where
    every byte of the answer belongs is known, and what it must be unless it is
    of a number: one look-up takes the numbers, one comparison checks the rest.
    """

    def __init__(self, wanted: Sequence[tuple[int, int, str, int]]) -> None:
        self.request = b"".join(get(domain, variable, name) for domain, variable, name, _ in wanted)
        template = bytearray()
        ints: list[NDArray[np.intp]] = []
        doubles: list[NDArray[np.intp]] = []
        for domain, variable, name, kind in wanted:
            size = _VALUE_BYTES[kind]
            told = struct.pack("!BB", domain + 0x10, variable) + _name(name) + struct.pack("!B", kind) + bytes(size)
            # of an answer the length is long from 254 bytes on, of a command from 256
            head = struct.pack("!B", len(told) + 1) if len(told) < 254 else struct.pack("!Bi", 0, len(told) + 5)
            template += struct.pack("!BBBi", _STATUS_BYTES, domain, 0, 0) + head + told
            (ints if kind == TYPE_INT else doubles).append(np.arange(len(template) - size, len(template)))
        self.size = len(template)
        self._template = bytes(template)
        self._int_bytes = 4 * len(ints)
        self._places = np.concatenate([np.zeros(0, np.intp), *ints, *doubles])

    def decode(self, answer: bytes) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """(ints, doubles), big-endian, each in the order they are wanted in. Raises Refused or Garbled."""
        if len(answer) < self.size:
            _first_refusal(answer)
            raise Garbled(f"an answer of {len(answer)} bytes where {self.size} were due")
        rest = bytearray(answer)
        raw = np.frombuffer(rest, np.uint8)
        numbers = raw[self._places]
        raw[self._places] = 0  # as in the template
        if not rest.startswith(self._template):
            _first_refusal(answer)
            raise Garbled("an answer in another layout than its getters have")
        return numbers[: self._int_bytes].view(">i4"), numbers[self._int_bytes :].view(">f8")


class StateGetters:
    """Getters of signal states, whose lengths are known: where each begins follows from those before it.

    `lengths`: links by signal.
    """

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.request = b"".join(get(GET_TL, STATE, signal) for signal in lengths)
        self._parts: list[tuple[bytes, int]] = []
        for signal, length in lengths.items():
            told = struct.pack("!BB", GET_TL + 0x10, STATE) + _name(signal) + struct.pack("!Bi", TYPE_STRING, length)
            size = len(told) + length
            head = struct.pack("!B", size + 1) if size < 254 else struct.pack("!Bi", 0, size + 5)
            self._parts.append((struct.pack("!BBBi", _STATUS_BYTES, GET_TL, 0, 0) + head + told, length))
        self.size = sum(len(head) + length for head, length in self._parts)

    def decode(self, answer: bytes, at: int = 0) -> list[str]:
        """A state by signal, in order. Raises Refused or Garbled."""
        states = []
        for head, length in self._parts:
            begin = at + len(head)
            if not answer.startswith(head, at) or begin + length > len(answer):
                Reader(answer, at).value()  # SUMO's words, where it has refused
                raise Garbled("an answer in another layout than its getters have")
            at = begin + length
            states.append(answer[begin:at].decode("ascii", errors="replace"))
        return states


def _first_refusal(answer: bytes) -> None:
    """Raise Refused with SUMO's words, where a status in the answer refuses."""
    reader = Reader(answer)
    while reader.left:
        reader.status()
        if reader.left and answer[reader.at] != _STATUS_BYTES:
            reader.skip()


class Reader:
    """Reads an answer part by part, for what has no fixed size."""

    def __init__(self, answer: bytes, at: int = 0) -> None:
        self._answer = answer
        self.at = at

    @property
    def left(self) -> int:
        return len(self._answer) - self.at

    def _take(self, form: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(form, self._answer, self.at)
        except struct.error:
            raise Garbled(f"an answer that ends at byte {len(self._answer)}, in the middle of a value") from None
        self.at += struct.calcsize(form)
        return values

    def _text(self) -> str:
        (size,) = self._take("!i")
        if not 0 <= size <= self.left:
            raise Garbled(f"a text of {size} bytes where {self.left} are left")
        raw = self._answer[self.at : self.at + size]
        self.at += size
        return raw.decode(errors="replace")

    def _length(self) -> int:
        (size,) = self._take("!B")
        return size if size else self._take("!i")[0]

    def status(self) -> int:
        """The command id of a status. Raises Refused where it is not OK."""
        self._length()
        identifier, result = self._take("!BB")
        text = self._text()
        if result:
            raise Refused(text or f"command 0x{identifier:02x} failed")
        return identifier

    def skip(self) -> None:
        """Pass over a getter's value."""
        start = self.at
        end = start + self._length()
        if end <= start or end > len(self._answer):
            raise Garbled("a value whose length points outside of the answer")
        self.at = end

    def value(self) -> str | list[str]:
        """A getter's status and its value: a text or a list of texts."""
        self.status()
        self._length()
        self._take("!BB")
        self._text()
        (kind,) = self._take("!B")
        if kind == TYPE_STRING:
            return self._text()
        if kind != TYPE_STRING_LIST:
            raise Garbled(f"a value of type 0x{kind:02x} where a text was due")
        (count,) = self._take("!i")
        if not 0 <= count <= self.left:
            raise Garbled(f"a list of {count} texts in {self.left} bytes")
        return [self._text() for _ in range(count)]

    def stepped(self) -> None:
        """The status of a step. Subscriptions that follow are other people's."""
        if self.status() != SIMSTEP:
            raise Garbled("an answer to another command than the step")
