"""One file of a record: MCAP with the messages of protos/record.proto.

log_time is simulated time, publish_time the wall clock, both in ns. The network's files are
attachments, gzipped. Readers take a file as it is: cut off, damaged, or of somebody else.
"""

import gzip
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import zstandard
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message
from mcap.exceptions import McapError
from mcap.records import Attachment, Channel, Chunk, Header
from mcap.records import Message as McapMessage
from mcap.stream_reader import CRCValidationError, StreamReader, breakup_chunk
from mcap.writer import Writer

from city.errors import InputError
from city.version import VERSION
from protos import record_pb2 as record

SUFFIX = ".mcap"
PROFILE = "greenserve"
CITY, STEP, TL = "/city", "/step", "/tl/"
"""Topics; a TL's name follows the last one."""
CHUNK_BYTES = 4 << 20
"""Size at which a chunk ends before the next flush, uncompressed."""
MAX_RECORD_BYTES = 1 << 30
"""Largest record of a file that is read: an attachment of a large network, or a chunk."""
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
        """Read up to the city. Raises InputError if the file is no record, or has no city."""
        self.path = path
        self.missing = ""
        """Why the file ends early, once it has been read; "" if it is whole."""
        self.attachments: dict[str, bytes] = {}
        """By name, gzipped."""
        try:
            self._stream = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        self._messages = self._read()
        try:
            topic, message, _ = next(self._messages)
        except StopIteration:
            topic, message = "", None
        if topic != CITY or not isinstance(message, record.City):
            self.close()
            reason = self.missing or "it has no city"
            raise InputError(f"{path}: is not a record of this program: {reason}; name a file of greenserve control --record")
        self.city: record.City = message

    def steps(self) -> Iterator[RecordedStep]:
        """The steps, once, in their order. The last one may lack TLs if the file is cut off."""
        current: RecordedStep | None = None
        for topic, message, publish_ns in self._messages:
            if isinstance(message, record.Step):
                if current is not None:
                    yield current
                current = RecordedStep(message, publish_ns)
            elif isinstance(message, record.TlStep) and current is not None and message.number == current.step.number:
                current.tls[topic.removeprefix(TL)] = message
        if current is not None:
            yield current

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> "RecordReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[tuple[str, Message, int]]:
        """(topic, message, wall clock in ns) of the file, until it ends or is damaged."""
        channels: dict[int, str] = {}
        position = 0
        try:
            for item in StreamReader(self._stream, emit_chunks=True, record_size_limit=MAX_RECORD_BYTES).records:
                if isinstance(item, Header) and item.profile != PROFILE:
                    self.missing = f"it is an MCAP file of profile {item.profile[:40]!r}, not {PROFILE!r}"
                    return
                if isinstance(item, Attachment):
                    self.attachments[item.name] = item.data
                records: list[Any] = [item]
                if isinstance(item, Chunk):
                    if item.uncompressed_size > MAX_RECORD_BYTES:
                        raise ValueError(f"a chunk of {item.uncompressed_size} bytes")
                    records = breakup_chunk(item, validate_crc=True)
                for each in records:
                    if isinstance(each, Channel):
                        channels[each.id] = each.topic
                    elif isinstance(each, McapMessage):
                        topic = channels[each.channel_id]
                        yield topic, _decoded(topic, each.data), each.publish_time
                position = self._stream.tell()
        except (McapError, CRCValidationError, zstandard.ZstdError, struct.error, DecodeError) as error:
            self.missing = f"damaged after byte {position} ({type(error).__name__}: {error})".rstrip(": )") + ")"
        except (ValueError, KeyError, EOFError, RuntimeError, OSError) as error:
            self.missing = f"damaged after byte {position} ({type(error).__name__}: {error})"


def _decoded(topic: str, data: bytes) -> Message:
    kind: type[Message] = record.City if topic == CITY else record.Step if topic == STEP else record.TlStep
    message = kind()
    message.ParseFromString(data)
    return message
