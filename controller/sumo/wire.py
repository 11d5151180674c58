"""Encode and decode TraCI messages of many commands.

A message is its length (int32, itself included) and commands. A command is its
length (one byte, or a zero byte and int32), its id and its content. All values
are big-endian. The answer has a status for every command; the status of a getter
is followed by its value. https://sumo.dlr.de/docs/TraCI/Protocol.html

The size of a numeric getter's answer follows from the name of its object, so the
position of each value is known before the answer arrives, and NumPy decodes all
values at once.
"""

import contextlib
import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from traci import constants as tc

from controller.sumo.connection import CommandRejected, Person

GETVERSION = tc.CMD_GETVERSION
SETORDER = tc.CMD_SETORDER
CLOSE = tc.CMD_CLOSE
HANDOVER = 0xF7
"""Not a TraCI command: a controller registers its handover plans with its guard."""
ENDED = b"\x00SUMO ended: "
"""Begin of a guard's last message to its controller, with SUMO's error text behind it; no answer begins like this."""
GUARDED = "behind a guard"
"""Suffix of SUMO's version text if a guard answers."""
WRONG_LAYOUT = "an answer whose layout does not match its getters"
BLOCK_SIZE = 32
"""Lists that are skipped together if all of them are empty: one comparison, of about 1 kB."""
_STATUS_BYTES = 7  # length, command, result, an empty description's int32
_VALUE_BYTES = {tc.TYPE_INTEGER: 4, tc.TYPE_DOUBLE: 8}
_DOUBLE = struct.pack("!B", tc.TYPE_DOUBLE)
_VEHICLE_VARIABLES = (tc.VAR_LANEPOSITION, tc.VAR_SPEED, tc.VAR_WAITING_TIME)
_PERSON_VARIABLES = (
    (tc.VAR_NEXT_EDGE, tc.TYPE_STRING),
    (tc.VAR_SPEED, tc.TYPE_DOUBLE),
    (tc.VAR_WAITING_TIME, tc.TYPE_DOUBLE),
)

SET_OK = bytes((_STATUS_BYTES, tc.CMD_SET_TL_VARIABLE, 0, 0, 0, 0, 0))
"""SUMO's answer to a signal command that it accepted."""
STEPPED = bytes((_STATUS_BYTES, tc.CMD_SIMSTEP, 0, 0, 0, 0, 0)) + bytes(4)
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


def _string(text: str) -> bytes:
    """A string after its type."""
    return struct.pack("!B", tc.TYPE_STRING) + _name(text)


def get(domain: int, variable: int, name: str) -> bytes:
    """Encode a getter of a variable of the object `name`."""
    return command(domain, struct.pack("!B", variable) + _name(name))


def get_parameter(domain: int, name: str, key: str) -> bytes:
    """Encode a getter of a parameter of the object `name`."""
    return command(domain, struct.pack("!B", tc.VAR_PARAMETER) + _name(name) + _string(key))


# a signal shows the same few states again and again
@functools.lru_cache(maxsize=1 << 14)
def set_string(domain: int, variable: int, name: str, value: str) -> bytes:
    return command(domain, struct.pack("!B", variable) + _name(name) + _string(value))


def set_parameter(key: str, value: str) -> bytes:
    """Encode the setting of a parameter of the simulation."""
    pair = struct.pack("!Bi", tc.TYPE_COMPOUND, 2) + _string(key) + _string(value)
    return command(tc.CMD_SET_SIM_VARIABLE, struct.pack("!B", tc.VAR_PARAMETER) + _name("") + pair)


def set_number(variable: int, signal: str, kind: int, value: float) -> bytes:
    """Encode the setting of an integer or a double of a signal."""
    number = struct.pack("!Bi" if kind == tc.TYPE_INTEGER else "!Bd", kind, value)
    return command(tc.CMD_SET_TL_VARIABLE, struct.pack("!B", variable) + _name(signal) + number)


def step(until_s: float) -> bytes:
    """Encode a step to simulated second `until_s`."""
    return command(tc.CMD_SIMSTEP, struct.pack("!d", until_s))


def value_head(domain: int, size: int) -> bytes:
    """The bytes before the value, of `size` bytes, in the answer to a getter that SUMO accepted."""
    # an answer's length takes the long form from 254 bytes on, a command's from 256
    length = struct.pack("!B", size + 1) if size < 254 else struct.pack("!Bi", 0, size + 5)
    return _accepted(domain) + length


def value_begin(domain: int, variable: int, name: str) -> bytes:
    """The begin of a value in the answer to a getter, up to the value's type."""
    return struct.pack("!BB", domain + 0x10, variable) + _name(name)


@functools.cache
def _accepted(identifier: int) -> bytes:
    return struct.pack("!BBBi", _STATUS_BYTES, identifier, 0, 0)


def message(commands: Sequence[bytes]) -> bytes:
    """Encode a message of commands."""
    body = b"".join(commands)
    return struct.pack("!i", len(body) + 4) + body


def ok(identifier: int) -> bytes:
    """Encode the complete answer to a command without a result."""
    return message([_accepted(identifier)])


def version_answer(number: int, text: str) -> bytes:
    """Encode the complete answer to GETVERSION."""
    return message([_accepted(GETVERSION), command(GETVERSION, struct.pack("!i", number) + _name(text))])


class MessageSplitter:
    """Splits a stream of bytes into complete messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def is_between(self) -> bool:
        """True if every message is complete."""
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
        """`variables`: (domain, variable, object name, integer or double), by traci's constants."""
        self.request = b"".join(get(domain, variable, name) for domain, variable, name, _ in variables)
        template = bytearray()
        ints: list[NDArray[np.intp]] = []
        doubles: list[NDArray[np.intp]] = []
        for domain, variable, name, kind in variables:
            size = _VALUE_BYTES[kind]
            value = value_begin(domain, variable, name) + struct.pack("!B", kind) + bytes(size)
            template += value_head(domain, len(value)) + value
            (ints if kind == tc.TYPE_INTEGER else doubles).append(np.arange(len(template) - size, len(template)))
        self.size = len(template)
        self._template = bytes(template)
        self._int_bytes = 4 * len(ints)
        self._positions = np.concatenate([np.zeros(0, np.intp), *ints, *doubles])

    def decode(self, answer: bytes) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Decode (ints, doubles), big-endian, each in the order of `variables`. Raises CommandRejected or
        MalformedMessage."""
        if len(answer) < self.size:
            _raise_first_rejection(answer)
            raise MalformedMessage(f"an answer of {len(answer)} bytes instead of {self.size}")
        unread = bytearray(answer)
        raw = np.frombuffer(unread, np.uint8)
        values = raw[self._positions]
        raw[self._positions] = 0  # as in the template
        if not unread.startswith(self._template):
            _raise_first_rejection(answer)
            raise MalformedMessage(WRONG_LAYOUT)
        return values[: self._int_bytes].view(">i4"), values[self._int_bytes :].view(">f8")


class StateGetters:
    """Getters of signal states. A state has one character per link, unless another client set one of another length."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        """`lengths`: number of links by signal."""
        self.request = b"".join(get(tc.CMD_GET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, signal) for signal in lengths)
        self._parts: list[tuple[bytes, bytes, int]] = []
        """By signal, the begin of its value; all that precedes a state of the expected length; this length."""
        for signal, length in lengths.items():
            name = value_begin(tc.CMD_GET_TL_VARIABLE, tc.TL_RED_YELLOW_GREEN_STATE, signal)
            begin = name + struct.pack("!B", tc.TYPE_STRING)
            head = value_head(tc.CMD_GET_TL_VARIABLE, len(begin) + 4 + length) + begin + struct.pack("!i", length)
            self._parts.append((begin, head, length))

    def decode(self, answer: bytes) -> tuple[list[str], int]:
        """Decode (state per signal, in order; their end in the answer). Raises CommandRejected or MalformedMessage."""
        states, at = [], 0
        for begin, head, length in self._parts:
            state_at = at + len(head)
            if answer.startswith(head, at) and state_at + length <= len(answer):
                at = state_at + length
                state = answer[state_at:at]
            else:
                size_at, at = value_at(answer, at, begin)
                state, state_end = sized_string(answer, size_at, at)
                if state_end != at:
                    raise MalformedMessage(WRONG_LAYOUT)
            states.append(state.decode("ascii", errors="replace"))
        return states, at


class ListGetters:
    """Getters of lists that are mostly empty; the answer of an empty one is known beforehand."""

    def __init__(self, variables: Sequence[tuple[int, int, str]], empty: bytes) -> None:
        """`variables`: (domain, variable, object name). `empty`: an empty value, from its type on."""
        self.request = b"".join(get(*variable) for variable in variables)
        self._begins = [value_begin(*variable) for variable in variables]
        """By object, the begin of its value, up to the type."""
        values = [begin + empty for begin in self._begins]
        self._empty = [
            value_head(domain, len(value)) + value for (domain, _, _), value in zip(variables, values, strict=True)
        ]
        """By object, its whole answer while it is empty."""
        blocks = range(0, len(variables), BLOCK_SIZE)
        self._blocks = [(first, b"".join(self._empty[first : first + BLOCK_SIZE])) for first in blocks]

    def filled(self, answer: bytes, at: int = 0) -> tuple[list[tuple[int, int, int]], int]:
        """Find the lists that are not empty: ((object's index, begin at its type, end) of each; end of all answers).

        `at`: begin of the first answer. Raises CommandRejected or MalformedMessage.
        """
        filled: list[tuple[int, int, int]] = []
        for first, empty_block in self._blocks:
            if answer.startswith(empty_block, at):
                at += len(empty_block)
                continue
            for k, empty in enumerate(self._empty[first : first + BLOCK_SIZE], first):
                if answer.startswith(empty, at):
                    at += len(empty)
                else:
                    begin, at = value_at(answer, at, self._begins[k])
                    filled.append((k, begin, at))
        return filled, at


class IdGetters(ListGetters):
    """Getters of the ids of the vehicles on lanes, and of the persons on walking areas."""

    def __init__(self, lanes: Sequence[str], walking_areas: Sequence[str] = ()) -> None:
        vehicles = [(tc.CMD_GET_LANE_VARIABLE, tc.LAST_STEP_VEHICLE_ID_LIST, lane) for lane in lanes]
        persons = [(tc.CMD_GET_EDGE_VARIABLE, tc.LAST_STEP_PERSON_ID_LIST, area) for area in walking_areas]
        super().__init__([*vehicles, *persons], struct.pack("!Bi", tc.TYPE_STRINGLIST, 0))
        self._lanes = len(vehicles)

    def decode(self, answer: bytes, at: int = 0) -> tuple[list[bytes], list[int], list[bytes]]:
        """Decode (vehicles' ids; number of vehicles by lane; persons' ids), ids as `VehicleGetters` takes them.

        `at`: begin of the first lane's answer. Raises CommandRejected or MalformedMessage.
        """
        vehicles: list[bytes] = []
        persons: list[bytes] = []
        counts = [0] * self._lanes
        for k, begin, end in self.filled(answer, at)[0]:
            ids = _sized_strings(answer, begin, end)
            if k < self._lanes:
                vehicles += ids
                counts[k] = len(ids)
            else:
                persons += ids
        return vehicles, counts, persons


def _sized_strings(answer: bytes, at: int, end: int) -> list[bytes]:
    """Take a list of strings apart without unpacking them: the strings, each after its size."""
    if answer[at] != tc.TYPE_STRINGLIST or at + 5 > end:
        raise MalformedMessage(WRONG_LAYOUT)
    count = int.from_bytes(answer[at + 1 : at + 5])
    at += 5
    strings = []
    while at < end:
        size = 4 + int.from_bytes(answer[at : at + 4])
        strings.append(answer[at : at + size])
        at += size
    if at != end or len(strings) != count:
        raise MalformedMessage(
            f"a list of {len(strings)} strings that ends at byte {at}, not of {count} that ends at {end}"
        )
    return strings


class _VehicleLayout(NamedTuple):
    """The bytes before a vehicle's id in the getters of `_VEHICLE_VARIABLES` and in their answers, by variable."""

    requests: tuple[bytes, ...]
    answers: tuple[bytes, ...]
    values: struct.Struct
    """By variable, the bytes up to the value, and the value."""


@functools.lru_cache(maxsize=1 << 10)
def _vehicle_layout(size: int) -> _VehicleLayout:
    """The layout for an id that takes `size` bytes, with its own size."""
    requests = [
        command(tc.CMD_GET_VEHICLE_VARIABLE, bytes((variable, *bytes(size))))[:-size] for variable in _VEHICLE_VARIABLES
    ]
    head = value_head(tc.CMD_GET_VEHICLE_VARIABLE, 2 + size + 1 + 8)
    answers = [head + bytes((tc.CMD_GET_VEHICLE_VARIABLE + 0x10, variable)) for variable in _VEHICLE_VARIABLES]
    return _VehicleLayout(
        tuple(requests), tuple(answers), struct.Struct("!" + f"{len(head) + 2 + size + 1}sd" * len(answers))
    )


class VehicleGetters:
    """Getters of the positions, speeds and waiting times of vehicles; made anew for each reading.

    One context subscription around the network would save the request for the ids, but costs SUMO the same, needs a
    radius and sends its results to every client at every step.
    """

    def __init__(self, names: Sequence[bytes]) -> None:
        """`names`: the vehicles' ids, each after its size."""
        self._vehicles = [(name, _vehicle_layout(len(name))) for name in names]
        self.request = b"".join(
            [part for name, layout in self._vehicles for head in layout.requests for part in (head, name)]
        )

    def decode(self, answer: bytes, at: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Decode (float64 [3, known vehicles]: positions in m, speeds in m/s, waiting times in s; bool [vehicles]:
        known).

        `at`: begin of the first vehicle's answer. SUMO does not know a vehicle that another client has removed since
        its id was read. Raises MalformedMessage.
        """
        values: list[tuple[float, float, float]] = []
        known: list[bool] = []
        for name, layout in self._vehicles:
            end = at + layout.values.size
            if end <= len(answer):
                before_position, position, before_speed, speed, before_waiting, waiting = layout.values.unpack_from(
                    answer, at
                )
                heads, rest = layout.answers, name + _DOUBLE
                if (
                    before_position == heads[0] + rest
                    and before_speed == heads[1] + rest
                    and before_waiting == heads[2] + rest
                ):
                    values.append((position, speed, waiting))
                    known.append(True)
                    at = end
                    continue
            at = _skip_rejections(answer, at, len(_VEHICLE_VARIABLES))
            known.append(False)
        return np.array(values, np.float64).reshape(-1, len(_VEHICLE_VARIABLES)).T, np.array(known, np.bool_)


class PersonGetters:
    """Getters of the next edges, speeds and waiting times of persons; made anew for each reading."""

    def __init__(self, names: Sequence[bytes]) -> None:
        """`names`: the persons' ids, each after its size."""
        domain = tc.CMD_GET_PERSON_VARIABLE
        self.request = b"".join(
            command(domain, bytes((variable,)) + name) for name in names for variable, _ in _PERSON_VARIABLES
        )
        self._begins = [
            [bytes((domain + 0x10, variable)) + name + bytes((kind,)) for variable, kind in _PERSON_VARIABLES]
            for name in names
        ]
        """By person and variable, what comes before the value."""

    def decode(self, answer: bytes) -> tuple[list[Person], int]:
        """Decode (the persons that SUMO still knows; end of all answers). Raises MalformedMessage."""
        persons: list[Person] = []
        at = 0
        for before_edge, before_speed, before_waiting in self._begins:
            try:
                size_at, end = value_at(answer, at, before_edge)
            except CommandRejected:
                at = _skip_rejections(answer, at, len(_PERSON_VARIABLES))
                continue
            edge, edge_end = sized_string(answer, size_at, end)
            speed_at, speed_end = value_at(answer, end, before_speed)
            waiting_at, at = value_at(answer, speed_end, before_waiting)
            if (edge_end, speed_at + 8, waiting_at + 8) != (end, speed_end, at):
                raise MalformedMessage(WRONG_LAYOUT)
            numbers = (struct.unpack_from("!d", answer, each)[0] for each in (speed_at, waiting_at))
            persons.append(Person(edge.decode(errors="replace"), *numbers))
        return persons, at


_NEAR_VARIABLES = ((tc.VAR_POSITION, tc.POSITION_2D), (tc.VAR_ANGLE, tc.TYPE_DOUBLE), (tc.VAR_SPEED, tc.TYPE_DOUBLE))
_NEAR_VALUES = struct.Struct("!3sdd3sd3sd")
"""The variables of a vehicle in a subscription's answer: id of the variable, status and type before each value."""
_NEAR_HEADS = tuple(bytes((variable, 0, kind)) for variable, kind in _NEAR_VARIABLES)


def vehicles_near(junction: str, radius_m: float) -> bytes:
    """Encode a request for position, angle and speed of all vehicles around a junction; `decode_vehicles_near` decodes
    it.

    A context subscription that ends in the same message: SUMO answers it at once, and sends nothing at later steps.
    """
    subscription = tc.CMD_SUBSCRIBE_JUNCTION_CONTEXT
    head = struct.pack("!dd", 0.0, 1e9) + _name(junction) + struct.pack("!Bd", tc.CMD_GET_VEHICLE_VARIABLE, radius_m)
    variables = bytes((len(_NEAR_VARIABLES), *(variable for variable, _ in _NEAR_VARIABLES)))
    return command(subscription, head + variables) + command(subscription, head + bytes(1))


def decode_vehicles_near(answer: bytes, junction: str) -> NDArray[np.float64]:
    """float64 [vehicles, 4]: x and y in m, angle in degrees, speed in m/s. Raises CommandRejected or
    MalformedMessage."""
    what = bytes((tc.CMD_GET_VEHICLE_VARIABLE, len(_NEAR_VARIABLES)))
    begin = bytes((tc.CMD_SUBSCRIBE_JUNCTION_CONTEXT + 0x10,)) + _name(junction) + what
    at, end = value_at(answer, 0, begin)
    values = []
    try:
        (count,) = struct.unpack_from("!i", answer, at)
        at += 4
        while at < end:
            at += 4 + int.from_bytes(answer[at : at + 4])
            before_position, x, y, before_angle, deg, before_speed, mps = _NEAR_VALUES.unpack_from(answer, at)
            if (before_position, before_angle, before_speed) != _NEAR_HEADS:
                raise MalformedMessage(WRONG_LAYOUT)
            values.append((x, y, deg, mps))
            at += _NEAR_VALUES.size
    except struct.error:
        raise MalformedMessage(f"an answer that ends at byte {len(answer)}, inside a vehicle") from None
    if at != end or len(values) != count:
        raise MalformedMessage(f"{len(values)} vehicles that end at byte {at}, not {count} that end at {end}")
    if Reader(answer, end).status() != tc.CMD_SUBSCRIBE_JUNCTION_CONTEXT:
        raise MalformedMessage("an answer to a command other than the subscription's end")
    return np.array(values, np.float64).reshape(-1, 4)


def _skip_rejections(answer: bytes, at: int, count: int) -> int:
    """Return the end of the statuses of `count` getters that SUMO has rejected."""
    reader = Reader(answer, at)
    for _ in range(count):
        with contextlib.suppress(CommandRejected):
            reader.status()
            raise MalformedMessage(WRONG_LAYOUT)
    return reader.at


def check_stepped(answer: bytes) -> None:
    """Check the answer to a step. Raises CommandRejected or MalformedMessage.

    Subscription results that follow its status belong to other clients.
    """
    if answer != STEPPED and Reader(answer).status() != tc.CMD_SIMSTEP:
        # eclipse-sumo/sumo issue 8893: SUMO 1.28 drops the answer of the step in which a later client loads
        raise MalformedMessage(
            "an answer to a command other than the step: probably another client has loaded another simulation, after "
            "which SUMO may answer none of its clients; end that SUMO, and start it and the controller again"
        )


def value_at(answer: bytes, at: int, begin: bytes) -> tuple[int, int]:
    """Find the value of a getter whose answer is at `at`: (position behind its begin, its end).

    `begin`: the first bytes of the value, up to what is not known of it. Raises CommandRejected or MalformedMessage.
    """
    accepted = _accepted(begin[0] - 0x10)
    if not answer.startswith(accepted, at):
        Reader(answer, at).status()
        raise MalformedMessage("an answer to a getter of another kind")
    reader = Reader(answer, at + len(accepted))
    end = reader.value_end()
    known_end = reader.at + len(begin)
    if not answer.startswith(begin, reader.at) or known_end >= end:
        raise MalformedMessage(WRONG_LAYOUT)
    return known_end, end


def sized_string(answer: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Decode (a string's bytes, its end). `end`: of the value that contains it. Raises MalformedMessage."""
    size = int.from_bytes(answer[at : at + 4])
    string_at = at + 4
    if string_at + size > end:
        raise MalformedMessage(f"a string of {size} bytes, but {max(end - string_at, 0)} remain")
    return answer[string_at : string_at + size], string_at + size


def _raise_first_rejection(answer: bytes) -> None:
    """Raise CommandRejected with SUMO's text if a status in the answer is an error."""
    reader = Reader(answer)
    while reader.remaining:
        reader.status()
        if reader.remaining and answer[reader.at] != _STATUS_BYTES:
            reader.at = reader.value_end()


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
        raw, self.at = sized_string(self._answer, self.at, len(self._answer))
        return raw.decode(errors="replace")

    def _length(self) -> int:
        (size,) = self._take("!B")
        return size if size else self._take("!i")[0]

    def status(self) -> int:
        """Read a status and return its command id. Raises CommandRejected if it is an error."""
        begin = self.at
        end = begin + self._length()
        identifier, result = self._take("!BB")
        text = self._string()
        if self.at != end:
            raise MalformedMessage(f"a status that ends at byte {self.at}, not {end}")
        if result:
            raise CommandRejected(text or f"command 0x{identifier:02x} failed")
        return identifier

    def value_end(self) -> int:
        """Read the length of a getter's value, and return the end of the value."""
        start = self.at
        end = start + self._length()
        if end <= start or end > len(self._answer):
            raise MalformedMessage("a value whose length exceeds the answer")
        return end

    def value(self) -> str | list[str]:
        """Read a getter's status and its value: a string or a list of strings."""
        self.status()
        end = self.value_end()
        self._take("!BB")
        self._string()
        (kind,) = self._take("!B")
        value: str | list[str]
        if kind == tc.TYPE_STRING:
            value = self._string()
        elif kind == tc.TYPE_STRINGLIST:
            value = [each[4:].decode(errors="replace") for each in _sized_strings(self._answer, self.at - 1, end)]
            self.at = end
        else:
            raise MalformedMessage(f"a value of type 0x{kind:02x} instead of a string")
        if self.at != end:
            raise MalformedMessage(f"a value that ends at byte {self.at}, not {end}")
        return value
