"""Reads one file of a record, as `controller.recording.record_writer` writes it, or as far as it goes.

The reader accepts any file: cut off, damaged, or written by another program.
"""

import contextlib
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf.message import DecodeError, Message
from mcap.records import Attachment, Channel, Header, Metadata, Schema
from mcap.records import Message as McapMessage

from city import names
from city.errors import InputError, os_errors
from controller.recording.record_writer import CITY, MESSAGE_TYPES, NS, PROFILE, TL, message_type_of, ns_of
from protos import record_pb2 as record
from protos.loop_state_pb2 import LoopState
from records.mcap_file import MAX_RECORD_BYTES, Losses, McapFile

REPAIRED, LOST = "greenserve.repaired", "lost"
"""The metadata of a repaired file, and its key: what the damaged file had lost."""
LACKS_NO_STEPS = "lacks no steps"
"""The key of a repaired file whose damage lost no step."""
MAX_LOST_CHARACTERS = 2000
MAX_NAMES = 5
"""TLs that a text names."""
REMEDY = "name a file that greenserve control --record wrote"


@dataclass
class RecordedStep:
    """A step of a file."""

    step: record.Step
    publish_ns: int
    """Wall clock."""
    tls: dict[str, record.TlStep] = field(default_factory=dict)
    state: LoopState | None = None
    """State of the decision loop before the step, if it is recorded."""


class RecordReader(contextlib.AbstractContextManager["RecordReader"]):
    """Reads one file of a record from its beginning to its end, or as far as it goes."""

    def __init__(self, path: Path) -> None:
        """Read up to the city. Raises InputError if the file is not a record, or has no city."""
        self.path = path
        self.attachments: dict[str, bytes] = {}
        """By name, gzipped; those that follow the city once the file has been read."""
        self._channels: dict[int, str | None] = {}
        """By channel, its topic; None for one of another program."""
        self._tls: Container[str] | None = None
        self.library = ""
        """The program and version that wrote the file."""
        with os_errors(f"{path}: cannot be read", REMEDY):
            self._stream = path.open("rb")
        self.state: LoopState | None = None
        """State of the decision loop before the file's first step; None in the run's first file."""
        try:
            self.city = self._read_city()
        except BaseException:
            self.close()
            raise
        self._due_tls = [contract.tl for contract in self.city.contracts]

    def _read_city(self) -> record.City:
        """Read up to the city. Raises InputError."""
        # the index does not list the copies of the head, which are read if the head is damaged
        for with_copies in (False, True):
            self._begin(with_copies)
            for _, message, _ in self._messages:
                if isinstance(message, LoopState):
                    self.state = message
                elif isinstance(message, record.City):
                    if self._damage:
                        # steps before it may have been left out because names of channels were not known
                        self._begin(with_copies)
                    return message
        raise InputError(f"{self.path}: cannot be read as a record: {self.missing or 'it has no city'}; {REMEDY}")

    def _begin(self, with_copies: bool) -> None:
        """Read from the beginning of the file on."""
        self._damage, self._losses = Losses(), Losses()
        self._mcap = McapFile(self._stream, self._damage, with_copies)
        self._messages = self._read()

    @property
    def missing(self) -> str:
        """All losses of the file, known once it has been read; "" if it is whole."""
        return "; ".join(filter(None, (str(self._damage), str(self._losses))))

    @property
    def damage(self) -> str:
        """Where the file is cut off or damaged, known once it has been read; without damage it may still lack steps."""
        return str(self._damage)

    @property
    def may_lack_steps(self) -> bool:
        """True if steps may be missing, or parts of the last one; known once the file has been read."""
        return self._damage.may_lack_steps or self._losses.may_lack_steps

    def steps(self, tls: Container[str] | None = None, from_s: float = -math.inf) -> Iterator[RecordedStep]:
        """The steps, once, in their order. Steps around a damaged part may lack TLs: `missing` names them.

        Args:
            tls: read these alone.
            from_s: simulated second from which on steps are read. The index, if there is one, says where that is.
        """
        self._tls = tls
        expected: int | None = 0
        if self.city.file_number > 0:
            expected = self.state.next_number if self.state is not None else None
        if from_s > -math.inf and self._mcap.skip_before(ns_of(from_s)):
            expected = None
        current: RecordedStep | None = None
        state = self.state
        for topic, message, publish_ns in self._messages:
            if isinstance(message, record.Step):
                if current is not None:
                    yield self._checked(current)
                if message.at_s < from_s:
                    current, expected = None, None  # the next steps need not follow it
                    continue
                if expected is not None and message.number != expected:
                    self._losses.add(missing_steps(expected, message.number))
                expected = message.number + 1
                current = RecordedStep(message, publish_ns)
                if state is not None and state.next_number == message.number:
                    current.state = state
            elif isinstance(message, LoopState):
                state = message
            elif isinstance(message, record.TlStep) and current is not None and message.number == current.step.number:
                current.tls[topic.removeprefix(TL)] = message
        if current is not None:
            yield self._checked(current)

    def close(self) -> None:
        self._stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, recorded: RecordedStep) -> RecordedStep:
        """The step, after its TLs that decided without a message have been noted."""
        due = [self._due_tls[k] for k in recorded.step.due if k < len(self._due_tls)]
        lacking = [tl for tl in due if tl not in recorded.tls and (self._tls is None or tl in self._tls)]
        if lacking:
            self._losses.add(f"step {recorded.step.number} lacks {names.listed(lacking, MAX_NAMES)}")
        return recorded

    def _read(self) -> Iterator[tuple[str, Message, int]]:
        """(topic, message, wall clock in ns) of the file, as far as it can be read."""
        schemas: dict[int, str] = {}
        attached = 0
        for item in self._mcap.records():
            if isinstance(item, McapMessage):
                if item.channel_id not in self._channels:
                    self._losses.add(f"the name of channel {item.channel_id} is lost, and its messages with it")
                topic = self._channels.get(item.channel_id)
                if topic is None or (
                    self._tls is not None and topic.startswith(TL) and topic[len(TL) :] not in self._tls
                ):
                    continue
                message = message_type_of(topic)()
                try:
                    message.ParseFromString(item.data)
                except DecodeError:
                    self._losses.add(f"a message of {topic} is damaged")
                    continue
                yield topic, message, item.publish_time
            elif isinstance(item, Schema):
                schemas[item.id] = item.name
            elif isinstance(item, Channel):
                self._channels[item.id] = self._topic(item.topic, schemas.get(item.schema_id, ""))
            elif isinstance(item, Attachment):
                attached += len(item.data)
                if attached <= MAX_RECORD_BYTES:
                    self.attachments[item.name] = item.data
                else:
                    self._losses.add(
                        f"attachment {item.name} is not read: all have more than {MAX_RECORD_BYTES:,} bytes"
                    )
            elif isinstance(item, Metadata):
                if item.name == REPAIRED:
                    lost = f"repaired: {item.metadata.get(LOST, '')[:MAX_LOST_CHARACTERS]}"
                    self._losses.add(lost, LACKS_NO_STEPS not in item.metadata)
            elif isinstance(item, Header) and not self._take_header(item):
                return

    def _take_header(self, header: Header) -> bool:
        """Note which program wrote the file; False if it is another one, and the file has no city."""
        if header.profile == PROFILE:
            self.library = header.library
            return True
        # the header may be damaged
        self._damage.add(f"it is an MCAP file of profile {header.profile[:40]!r}, not {PROFILE!r}")
        named = {name.topic for name in self._mcap.names if isinstance(name, Channel)}
        return not named or CITY in named

    def _topic(self, name: str, schema: str) -> str | None:
        """The topic of a channel; None for one of another program. Raises InputError for a city of another version."""
        if name not in MESSAGE_TYPES and not name.startswith(TL):
            return None
        expected = message_type_of(name).DESCRIPTOR.full_name
        if schema == expected:
            return name
        reason = (
            f"{name} has messages of {schema[:80] or 'an unknown kind'}, not {expected}, so it is of another version"
        )
        if name == CITY:
            by = f"; it was written by {self.library[:80]}: read it with that version" if self.library else ""
            raise InputError(f"{self.path}: {reason}{by}")
        self._losses.add(reason)
        return None


def missing_steps(expected: int, number: int) -> str:
    """The loss if a step has another number than expected."""
    if number < expected:
        return f"step {number} comes after step {expected - 1}"
    if number == expected + 1:
        return f"step {expected} is missing"
    return f"steps {expected} to {number - 1} are missing"


def wall_text(ns: int) -> str:
    """RFC 3339, UTC. A time beyond datetime's range is shown as it is."""
    try:
        return datetime.fromtimestamp(ns / NS, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"
