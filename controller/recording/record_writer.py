"""Writes one file of a record: MCAP with the messages of protos/record.proto.

log_time is simulated time, publish_time the wall clock, both in ns. The network's files are
attachments, gzipped.

    header | network's files | head | copy of head | steps | ... | copy of head | steps | ... | index

The head has what the steps cannot be read without: schemas, names of channels, the city, and the state of the decision
loop if it is not the run's first file. That state is also among the steps, from time to time: after a damaged part, a
replay goes on from the next one. Its copies are chunks that the index does not list: a viewer sees one head, and
`records.record_reader` reads the next copy if the head is damaged.
"""

import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import Message
from mcap.writer import IndexType, Writer

from city.version import VERSION
from protos import record_pb2 as record
from protos.descriptors import add_file
from protos.loop_state_pb2 import LoopState

SUFFIX = ".mcap"
PROFILE = "greenserve"
CITY, STATE, STEP, TL = "/city", "/state", "/step", "/tl/"
"""Topics; a TL's name follows the last one."""
COPIES_AFTER = (1, 8, 64, 512, 4096)
"""Flushes after which a copy of the head is written: mostly the first seconds, minutes and hours of a file."""
CHUNK_BYTES = 4 << 20
"""Size at which a chunk ends before the next flush, uncompressed."""
NS = 1_000_000_000
MESSAGE_TYPES: dict[str, type[Message]] = {CITY: record.City, STATE: LoopState, STEP: record.Step}
"""Messages of the topics that are not a TL's."""


class RecordWriter:
    """Writes one file of a record."""

    def __init__(
        self,
        stream: IO[bytes],
        city: record.City,
        network_files: Mapping[str, Path | bytes],
        publish_ns: int,
        at_s: float | None = None,
        state: LoopState | None = None,
    ) -> None:
        """Write the header, the network's files and the head. Raises OSError.

        Args:
            stream: the file, at its beginning.
            city: what the run begins with.
            network_files: by name in `city.network_files` a file, or its gzipped content.
            publish_ns: wall clock at the file's first step.
            at_s: simulated second of the file's first step (default: the run's first).
            state: that of the decision loop after the step before, if it is not the run's first file.
        """
        self._stream = stream
        self._writer: Any = Writer(stream, CHUNK_BYTES)  # its methods have no types
        self._writer.start(PROFILE, f"greenserve {VERSION}")
        log_ns = ns_of(city.begin_s if at_s is None else at_s)
        for name, file in network_files.items():
            self._writer.add_attachment(publish_ns, log_ns, name, "application/gzip", gzipped(file))
        self._channels = _write_head(self._writer, city, state, log_ns, publish_ns)
        """By topic."""
        self._flushes = 0
        self._chunk_channels: set[int] = set()
        """Channels of steps with messages since the last flush."""
        self.index_entries = 0
        """Entries of the index for steps, one per chunk and channel, which stay in memory (about 100 bytes each) until
        `finish`."""
        copy = io.BytesIO()
        copy_writer: Any = Writer(copy, CHUNK_BYTES, index_types=IndexType.NONE)
        _write_head(copy_writer, city, state, log_ns, publish_ns)
        copy_writer.flush()
        self._head_chunk = copy.getvalue()

    def add(self, step: record.Step, tl_steps: Mapping[str, record.TlStep], publish_ns: int) -> None:
        """Add a step with its TLs. Raises OSError."""
        self.add_message(STEP, step, publish_ns)
        for tl, tl_step in tl_steps.items():
            self.add_message(TL + tl, tl_step, publish_ns)

    def add_message(self, topic: str, message: record.Step | record.TlStep, publish_ns: int) -> None:
        """Add a step, or a TL's part of the newest step. Raises OSError."""
        channel = self._channels[topic]
        self._chunk_channels.add(channel)
        content = message.SerializeToString()
        self._writer.add_message(channel, ns_of(message.at_s), content, publish_ns, message.number & 0xFFFFFFFF)

    def add_state(self, state: LoopState, publish_ns: int) -> None:
        """Add the state of the decision loop after the newest step. Raises OSError."""
        channel = self._channels[STATE]
        self._chunk_channels.add(channel)
        self._writer.add_message(channel, ns_of(state.now_s), state.SerializeToString(), publish_ns)

    def add_metadata(self, name: str, values: Mapping[str, str]) -> None:
        """Add a note. Raises OSError."""
        self._writer.add_metadata(name, values)

    def flush(self) -> None:
        """Write everything added so far to the stream, as a chunk. Raises OSError."""
        self._writer.flush()
        self.index_entries += len(self._chunk_channels)
        self._chunk_channels.clear()
        self._flushes += 1
        if self._flushes in COPIES_AFTER:
            # the writer asks the stream where it is, so its index stays right
            self._stream.write(self._head_chunk)
            self._stream.flush()

    def finish(self) -> None:
        """Write the index. The stream is not closed. Raises OSError."""
        self._writer.finish()


def _write_head(
    writer: Any, city: record.City, state: LoopState | None, log_ns: int, publish_ns: int
) -> dict[str, int]:
    """Write all that steps cannot be read without; return the channels by topic."""
    messages: dict[str, Message] = {CITY: city} if state is None else {STATE: state, CITY: city}
    schemas: dict[str, int] = {}
    channels: dict[str, int] = {}
    # a TL that needs no commands has no messages, but its name is in every copy of the head
    for topic in (*MESSAGE_TYPES, *(TL + contract.tl for contract in city.contracts)):
        descriptor = message_type_of(topic).DESCRIPTOR
        name = descriptor.full_name
        if name not in schemas:
            files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
            add_file(descriptor.file, files)
            content = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()
            schemas[name] = writer.register_schema(name, "protobuf", content)
        channels[topic] = writer.register_channel(topic, "protobuf", schemas[name])
    for topic, message in messages.items():
        writer.add_message(channels[topic], log_ns, message.SerializeToString(), publish_ns)
    return channels


def gzipped(file: Path | bytes) -> bytes:
    """The content of a file, gzipped; bytes are gzipped already. Raises OSError."""
    if isinstance(file, bytes):
        return file
    content = file.read_bytes()
    return content if file.suffix == ".gz" else gzip.compress(content, mtime=0)


def ns_of(seconds: float) -> int:
    """Nanoseconds of a simulated time, at least 0."""
    return max(round(seconds * NS), 0)


def message_type_of(topic: str) -> type[Message]:
    """The type of the messages of one of our topics."""
    return MESSAGE_TYPES.get(topic, record.TlStep)
