"""One file of a record: MCAP with the messages of protos/record.proto.

log_time is simulated time, publish_time the wall clock, both in ns. The network's files are
attachments, gzipped. The reader accepts any file: cut off, damaged, or written by another program.
"""

import gzip
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message
from mcap.records import Attachment, Channel, Header, Metadata, Schema
from mcap.records import Message as McapMessage
from mcap.writer import Writer

from city import names
from city.errors import InputError
from city.version import VERSION
from controller.recording.mcap_stream import MAX_RECORD_BYTES, Losses, McapStream
from protos import record_pb2 as record

SUFFIX = ".mcap"
PROFILE = "greenserve"
CITY, STEP, TL = "/city", "/step", "/tl/"
"""Topics; a TL's name follows the last one."""
REPAIRED, LOST = "greenserve.repaired", "lost"
"""The metadata of a repaired file, and its key: what the damaged file had lost."""
MAX_LOST_CHARACTERS = 2000
MAX_NAMES = 5
"""TLs that a text names."""
REMEDY = "name a file that greenserve control --record wrote"
CHUNK_BYTES = 4 << 20
"""Size at which a chunk ends before the next flush, uncompressed."""
NS = 1_000_000_000


class RecordWriter:
    """Writes one file of a record."""

    def __init__(
        self,
        stream: IO[bytes],
        city: record.City,
        network_files: Mapping[str, Path | bytes],
        publish_ns: int,
        at_s: float | None = None,
    ) -> None:
        """Write the header, the network's files and the city. Raises OSError.

        Args:
            stream: the file, at its beginning.
            city: what the run begins with.
            network_files: by name in `city.network_files` a file, or its gzipped content.
            publish_ns: wall clock at the file's first step.
            at_s: simulated second of the file's first step (default: the run's first).
        """
        self._writer: Any = Writer(stream, CHUNK_BYTES)  # its methods have no types
        self._writer.start(PROFILE, f"greenserve {VERSION}")
        log_ns = _ns(city.begin_s if at_s is None else at_s)
        for name, file in network_files.items():
            self._writer.add_attachment(publish_ns, log_ns, name, "application/gzip", gzipped(file))
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._chunk_channels: set[int] = set()
        """Channels with messages since the last flush."""
        self.index_entries = 0
        """Entries of the index, one per chunk and channel, which stay in memory (about 100 bytes each) until `finish`."""
        self._add(CITY, city, log_ns, publish_ns, 0)

    def add(self, step: record.Step, tl_steps: Mapping[str, record.TlStep], publish_ns: int) -> None:
        """Add a step with its TLs. Raises OSError."""
        self.add_step(step, publish_ns)
        for tl, tl_step in tl_steps.items():
            self.add_tl_step(tl, tl_step, publish_ns)

    def add_step(self, step: record.Step, publish_ns: int) -> None:
        """Add a step; those of its TLs follow. Raises OSError."""
        self._add(STEP, step, _ns(step.at_s), publish_ns, step.number)

    def add_tl_step(self, tl: str, tl_step: record.TlStep, publish_ns: int) -> None:
        """Add a TL of the newest step. Raises OSError."""
        self._add(TL + tl, tl_step, _ns(tl_step.at_s), publish_ns, tl_step.number)

    def flush(self) -> None:
        """Write everything added so far to the stream, as a chunk. Raises OSError."""
        self._writer.flush()
        self.index_entries += len(self._chunk_channels)
        self._chunk_channels.clear()

    def finish(self) -> None:
        """Write the index. The stream is not closed. Raises OSError."""
        self._writer.finish()

    def _add(self, topic: str, message: Message, log_ns: int, publish_ns: int, sequence: int) -> None:
        channel = self._channels.get(topic)
        if channel is None:
            channel = self._channels[topic] = self._writer.register_channel(topic, "protobuf", self._schema(message))
        self._chunk_channels.add(channel)
        self._writer.add_message(channel, log_ns, message.SerializeToString(), publish_ns, sequence & 0xFFFFFFFF)

    def _schema(self, message: Message) -> int:
        name = message.DESCRIPTOR.full_name
        if name not in self._schemas:
            files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
            _add_file(message.DESCRIPTOR.file, files)
            data = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()
            self._schemas[name] = self._writer.register_schema(name, "protobuf", data)
        return self._schemas[name]


def gzipped(file: Path | bytes) -> bytes:
    """The content of a file, gzipped; bytes are gzipped already. Raises OSError."""
    if isinstance(file, bytes):
        return file
    content = file.read_bytes()
    return content if file.suffix == ".gz" else gzip.compress(content, mtime=0)


def _add_file(file: Any, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    """Add a file's descriptor after those of its imports."""
    for dependency in file.dependencies:
        _add_file(dependency, files)
    if file.name not in files:
        files[file.name] = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(files[file.name])


def _ns(seconds: float) -> int:
    return max(round(seconds * NS), 0)


@dataclass
class RecordedStep:
    """A step of a file."""

    step: record.Step
    publish_ns: int
    """Wall clock."""
    tls: dict[str, record.TlStep] = field(default_factory=dict)


class RecordReader:
    """Reads one file of a record from its beginning to its end, or as far as it goes."""

    def __init__(self, path: Path) -> None:
        """Read up to the city. Raises InputError if the file is not a record, or has no city."""
        self.path = path
        self.attachments: dict[str, bytes] = {}
        """By name, gzipped; those that follow the city once the file has been read."""
        self._damage = Losses()
        self._losses = Losses()
        self._channels: dict[int, _Topic | None] = {}
        self._tls: Container[str] | None = None
        self.library = ""
        """The program and version that wrote the file."""
        try:
            self._stream = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            self._mcap = McapStream(self._stream, self._damage)
            self._messages = self._read()
            _, message, _ = next(self._messages, ("", None, 0))
            if not isinstance(message, record.City):
                raise InputError(f"{path}: cannot be read as a record: {self.missing or 'it has no city'}; {REMEDY}")
        except BaseException:
            self.close()
            raise
        self.city: record.City = message

    @property
    def missing(self) -> str:
        """What is missing of the file, known once it has been read; "" if it is whole."""
        return "; ".join(filter(None, (str(self._damage), str(self._losses))))

    @property
    def is_damaged(self) -> bool:
        """Whether the file is cut off or damaged, known once it has been read; without that it may still lack steps."""
        return bool(self._damage)

    def steps(self, tls: Container[str] | None = None) -> Iterator[RecordedStep]:
        """The steps, once, in their order. Steps around a damaged part may lack TLs: `missing` names them.

        `tls`: read these alone.
        """
        self._tls = tls
        due_tls = [contract.tl for contract in self.city.contracts]
        expected = 0 if self.city.file_number == 0 else None
        current: RecordedStep | None = None
        for topic, message, publish_ns in self._messages:
            if isinstance(message, record.Step):
                if current is not None:
                    self._check_tls(current, due_tls)
                    yield current
                if expected is not None and message.number != expected:
                    self._losses.add(missing_steps(expected, message.number))
                expected = message.number + 1
                current = RecordedStep(message, publish_ns)
            elif isinstance(message, record.TlStep) and current is not None and message.number == current.step.number:
                current.tls[topic.removeprefix(TL)] = message
        if current is not None:
            self._check_tls(current, due_tls)
            yield current

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> "RecordReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_tls(self, recorded: RecordedStep, due_tls: Sequence[str]) -> None:
        """Note TLs that decided, without their messages."""
        due = [due_tls[k] for k in recorded.step.due if k < len(due_tls)]
        lacking = [tl for tl in due if tl not in recorded.tls and (self._tls is None or tl in self._tls)]
        if lacking:
            self._losses.add(f"step {recorded.step.number} lacks {names.listed(lacking, MAX_NAMES)}")

    def _read(self) -> Iterator[tuple[str, Message, int]]:
        """(topic, message, wall clock in ns) of the file, as far as it can be read."""
        schemas: dict[int, str] = {}
        unknown: set[int] = set()
        attached = 0
        for item in self._mcap.records():
            if isinstance(item, McapMessage):
                if item.channel_id not in self._channels and item.channel_id not in unknown:
                    unknown.add(item.channel_id)
                    self._losses.add(f"the name of channel {item.channel_id} is lost, and its messages with it")
                topic = self._channels.get(item.channel_id)
                if topic is not None and (self._tls is None or topic.tl is None or topic.tl in self._tls):
                    message = topic.kind()
                    try:
                        message.ParseFromString(item.data)
                    except DecodeError:
                        self._losses.add(f"a message of {topic.name} is damaged")
                        continue
                    yield topic.name, message, item.publish_time
            elif isinstance(item, Schema):
                schemas[item.id] = item.name
            elif isinstance(item, Channel):
                self._channels[item.id] = self._topic(item.topic, schemas.get(item.schema_id, ""))
            elif isinstance(item, Attachment):
                attached += len(item.data)
                if attached <= MAX_RECORD_BYTES:
                    self.attachments[item.name] = item.data
                else:
                    self._losses.add(f"attachment {item.name} is not read: all have more than {MAX_RECORD_BYTES:,} bytes")
            elif isinstance(item, Metadata):
                if item.name == REPAIRED:
                    self._losses.add(f"repaired: {item.metadata.get(LOST, '')[:MAX_LOST_CHARACTERS]}")
            elif isinstance(item, Header):
                self.library = item.library
                if item.profile != PROFILE:
                    self._losses.add(f"it is an MCAP file of profile {item.profile[:40]!r}, not {PROFILE!r}")
                    return

    def _topic(self, name: str, schema: str) -> "_Topic | None":
        """What a channel has; None for one of another program. Raises InputError if the city is of another version."""
        kind: type[Message] | None = _KINDS.get(name)
        tl = name.removeprefix(TL) if name.startswith(TL) else None
        if tl is not None:
            kind = record.TlStep
        if kind is None:
            return None
        expected = kind.DESCRIPTOR.full_name
        if schema != expected:
            reason = f"{name} has messages of {schema[:80] or 'an unknown kind'}, not {expected}, so it is of another version"
            if name == CITY:
                by = f"; it was written by {self.library[:80]}: read it with that version" if self.library else ""
                raise InputError(f"{self.path}: {reason}{by}")
            self._losses.add(reason)
            return None
        return _Topic(name, kind, tl)


class _Topic(NamedTuple):
    name: str
    kind: type[Message]
    tl: str | None
    """None: not the channel of a TL."""


_KINDS: dict[str, type[Message]] = {CITY: record.City, STEP: record.Step}


def missing_steps(expected: int, number: int) -> str:
    """What is wrong if a step has another number than expected."""
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
