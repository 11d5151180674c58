"""Encode and decode TraCI messages of many commands.

A message is its length (int32, itself included) and commands. A command is its
length (one byte, or a zero byte and int32), its id and its content. All values
are big-endian. The answer has a status for every command; the status of a getter
is followed by its value. https://sumo.dlr.de/docs/TraCI/Protocol.html

The size of a numeric getter's answer follows from the name of its object, so the
position of each value is known before the answer arrives, and NumPy decodes all
values at once.
"""

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from controller.sumo.connection import CommandRejected

# equal to traci.constants
GETVERSION, SETORDER = 0x00, 0x03
HANDOVER = 0xF7
"""Not a TraCI command: a controller registers its handover plans with its guard."""
GUARDED = "behind a guard"
"""Suffix of SUMO's version text if a guard answers."""
GET_LANE, GET_SIM, GET_TL = 0xA3, 0xAB, 0xA2
SET_TL, SET_SIM, SIMSTEP, CLOSE = 0xC2, 0xCB, 0x02, 0x7F
LAST_STEP_VEHICLE_NUMBER, LAST_STEP_VEHICLE_IDS = 0x10, 0x12
LAST_STEP_HALTING, LAST_STEP_LENGTH = 0x14, 0x15
TIME, STATE, PROGRAM, PHASE, PHASE_DURATION = 0x66, 0x20, 0x23, 0x22, 0x24
CURRENT_PROGRAM = 0x29
"""Getter of the program; PROGRAM is its setter."""
PARAMETER = 0x7E
TYPE_INT, TYPE_DOUBLE, TYPE_STRING, TYPE_STRING_LIST, TYPE_COMPOUND = 0x09, 0x0B, 0x0C, 0x0E, 0x0F

_STATUS_BYTES = 7  # length, command, result, an empty description's int32
_VALUE_BYTES = {TYPE_INT: 4, TYPE_DOUBLE: 8}

SET_OK = bytes((_STATUS_BYTES, SET_TL, 0, 0, 0, 0, 0))
"""SUMO's answer to a signal command that it accepted."""
STEPPED = bytes((_STATUS_BYTES, SIMSTEP, 0, 0, 0, 0, 0)) + bytes(4)
"""SUMO's answer to a step if no client has subscriptions."""


class MalformedMessage(Exception):
    """Bytes that are not a valid TraCI message; the connection cannot be used any more."""


def command(identifier: int, content: bytes) -> bytes:
    """Encode a command."""
    size = len(content) + 2
    head = struct.pack("!BB", size, identifier) if size <= 255 else struct.pack("!BiB", 0, size + 4, identifier)
    return head + content


def _name(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("!i", len(raw)) + raw


def get(domain: int, variable: int, name: str) -> bytes:
    """Encode a getter of a variable of the object `name`."""
    return command(domain, struct.pack("!B", variable) + _name(name))


@functools.lru_cache(maxsize=1 << 14)
def set_string(domain: int, variable: int, name: str, value: str) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + struct.pack("!B", TYPE_STRING) + _name(value))


def set_parameter(key: str, value: str) -> bytes:
    """Encode the setting of a parameter of the simulation."""
    strings = b"".join(struct.pack("!B", TYPE_STRING) + _name(text) for text in (key, value))
    return command(SET_SIM, struct.pack("!B", PARAMETER) + _name("") + struct.pack("!Bi", TYPE_COMPOUND, 2) + strings)


def set_int(domain: int, variable: int, name: str, value: int) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + struct.pack("!Bi", TYPE_INT, value))


def set_double(domain: int, variable: int, name: str, value: float) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + struct.pack("!Bd", TYPE_DOUBLE, value))


def step(until_s: float) -> bytes:
    """Encode a step to simulated second `until_s`."""
    return command(SIMSTEP, struct.pack("!d", until_s))


def message(commands: Sequence[bytes]) -> bytes:
    """Encode a message of commands."""
    body = b"".join(commands)
    return struct.pack("!i", len(body) + 4) + body


def ok(identifier: int) -> bytes:
    """Encode the complete answer to a command without a result."""
    return message([struct.pack("!BBBi", _STATUS_BYTES, identifier, 0, 0)])


def version_answer(number: int, text: str) -> bytes:
    """Encode the complete answer to GETVERSION."""
    status = struct.pack("!BBBi", _STATUS_BYTES, GETVERSION, 0, 0)
    return message([status, command(GETVERSION, struct.pack("!i", number) + _name(text))])


class MessageSplitter:
    """Splits a stream of bytes into complete messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether every message is complete."""
        return not self._data

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that this data completes, lengths included. Raises MalformedMessage."""
        self._data += data
        while len(self._data) >= 4:
            (size,) = struct.unpack_from("!i", self._data)
            if size < 4:
                raise MalformedMessage(f"a message of {size} bytes")
            if len(self._data) < size:
                return
            message = bytes(self._data[:size])
            del self._data[:size]
            yield message


class NumericGetters:
    """Getters of ints and doubles; the answer is decoded in bulk.

    Its layout is known beforehand: one indexing operation takes the values, one
    comparison with a template checks every other byte.
    """

    def __init__(self, variables: Sequence[tuple[int, int, str, int]]) -> None:
        """`variables`: (domain, variable, object name, TYPE_INT or TYPE_DOUBLE)."""
        self.request = b"".join(get(domain, variable, name) for domain, variable, name, _ in variables)
        template = bytearray()
        ints: list[NDArray[np.intp]] = []
        doubles: list[NDArray[np.intp]] = []
        for domain, variable, name, kind in variables:
            size = _VALUE_BYTES[kind]
            value = struct.pack("!BB", domain + 0x10, variable) + _name(name) + struct.pack("!B", kind) + bytes(size)
            # an answer's length takes the long form from 254 bytes on, a command's from 256
            head = struct.pack("!B", len(value) + 1) if len(value) < 254 else struct.pack("!Bi", 0, len(value) + 5)
            template += struct.pack("!BBBi", _STATUS_BYTES, domain, 0, 0) + head + value
            (ints if kind == TYPE_INT else doubles).append(np.arange(len(template) - size, len(template)))
        self.size = len(template)
        self._template = bytes(template)
        self._int_bytes = 4 * len(ints)
        self._positions = np.concatenate([np.zeros(0, np.intp), *ints, *doubles])

    def decode(self, answer: bytes) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Decode (ints, doubles), big-endian, each in the order of `variables`. Raises CommandRejected or MalformedMessage."""
        if len(answer) < self.size:
            _raise_first_rejection(answer)
            raise MalformedMessage(f"an answer of {len(answer)} bytes instead of {self.size}")
        unread = bytearray(answer)
        raw = np.frombuffer(unread, np.uint8)
        values = raw[self._positions]
        raw[self._positions] = 0  # as in the template
        if not unread.startswith(self._template):
            _raise_first_rejection(answer)
            raise MalformedMessage("an answer whose layout does not match its getters")
        return values[: self._int_bytes].view(">i4"), values[self._int_bytes :].view(">f8")


class StateGetters:
    """Getters of signal states. A state has one character per link, unless another client set one of another length."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        """`lengths`: number of links by signal."""
        self.request = b"".join(get(GET_TL, STATE, signal) for signal in lengths)
        self._parts: list[tuple[bytes, bytes, int]] = []
        for signal, length in lengths.items():
            value = struct.pack("!BB", GET_TL + 0x10, STATE) + _name(signal) + struct.pack("!Bi", TYPE_STRING, length)
            size = len(value) + length
            head = struct.pack("!B", size + 1) if size < 254 else struct.pack("!Bi", 0, size + 5)
            self._parts.append((_name(signal), struct.pack("!BBBi", _STATUS_BYTES, GET_TL, 0, 0) + head + value, length))

    def decode(self, answer: bytes) -> tuple[list[str], int]:
        """Decode (state per signal, in order; their end in the answer). Raises CommandRejected or MalformedMessage."""
        states, at = [], 0
        for name, head, length in self._parts:
            begin = at + len(head)
            if answer.startswith(head, at) and begin + length <= len(answer):
                at = begin + length
                states.append(answer[begin:at].decode("ascii", errors="replace"))
            else:
                reader = Reader(answer, at)
                state = reader.value()
                if not isinstance(state, str) or name not in answer[at : reader.at]:
                    raise MalformedMessage("an answer whose layout does not match its getters")
                states.append(state)
                at = reader.at
        return states, at


def _raise_first_rejection(answer: bytes) -> None:
    """Raise CommandRejected with SUMO's text if a status in the answer is an error."""
    reader = Reader(answer)
    while reader.remaining:
        reader.status()
        if reader.remaining and answer[reader.at] != _STATUS_BYTES:
            reader.skip()


class Reader:
    """Reads an answer value by value, for values of variable size."""

    def __init__(self, answer: bytes, at: int = 0) -> None:
        self._answer = answer
        self.at = at

    @property
    def remaining(self) -> int:
        return len(self._answer) - self.at

    def _take(self, form: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(form, self._answer, self.at)
        except struct.error:
            raise MalformedMessage(f"an answer that ends at byte {len(self._answer)}, inside a value") from None
        self.at += struct.calcsize(form)
        return values

    def _string(self) -> str:
        (size,) = self._take("!i")
        if not 0 <= size <= self.remaining:
            raise MalformedMessage(f"a string of {size} bytes, but {self.remaining} remain")
        raw = self._answer[self.at : self.at + size]
        self.at += size
        return raw.decode(errors="replace")

    def _length(self) -> int:
        (size,) = self._take("!B")
        return size if size else self._take("!i")[0]

    def status(self) -> int:
        """Read a status and return its command id. Raises CommandRejected if it is an error."""
        self._length()
        identifier, result = self._take("!BB")
        text = self._string()
        if result:
            raise CommandRejected(text or f"command 0x{identifier:02x} failed")
        return identifier

    def skip(self) -> None:
        """Skip a getter's value."""
        start = self.at
        end = start + self._length()
        if end <= start or end > len(self._answer):
            raise MalformedMessage("a value whose length exceeds the answer")
        self.at = end

    def value(self) -> str | list[str]:
        """Read a getter's status and its value: a string or a list of strings."""
        self.status()
        begin = self.at
        end = begin + self._length()
        self._take("!BB")
        self._string()
        (kind,) = self._take("!B")
        value: str | list[str]
        if kind == TYPE_STRING:
            value = self._string()
        elif kind == TYPE_STRING_LIST:
            (count,) = self._take("!i")
            if not 0 <= count <= self.remaining:
                raise MalformedMessage(f"a list of {count} strings in {self.remaining} bytes")
            value = [self._string() for _ in range(count)]
        else:
            raise MalformedMessage(f"a value of type 0x{kind:02x} instead of a string")
        if self.at != end:
            raise MalformedMessage(f"a value that ends at byte {self.at}, not {end}")
        return value

    def stepped(self) -> None:
        """Check the status of a step. Subscription results that follow belong to other clients."""
        if self.status() != SIMSTEP:
            raise MalformedMessage("an answer to a command other than the step")
