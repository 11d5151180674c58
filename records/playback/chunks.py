"""Random access to the messages of a run: chunks are unpacked when they are needed, and the newest ones are kept."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from pathlib import Path

from mcap.opcode import Opcode
from mcap.records import Channel, McapRecord, Message, Schema

from city.errors import os_errors
from controller.recording.record_writer import STEP, TL
from protos import record_pb2 as record
from records.mcap_file import DamagedRecord, Losses, McapFile, Place, read_record

MAX_CACHED_BYTES = 128 << 20
"""Memory of the messages that are kept, beside those of the newest chunk."""
MESSAGE_BYTES = 250
"""Memory of a message, without its data."""
_STEP_SCHEMA, _TL_SCHEMA = record.Step.DESCRIPTOR.full_name, record.TlStep.DESCRIPTOR.full_name
Chunk = dict[str, list[Message]]
"""The messages of a chunk by topic, in their order, not parsed yet; log_time is simulated time, publish_time the wall
clock."""


class Chunks:
    """The chunks of a run's files. Used by one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Find the chunks. Raises InputError if a file cannot be read."""
        self._paths = tuple(paths)
        self._topics: list[dict[int, str | None]] = [{} for _ in paths]
        """By file and channel, the topic; None for one that is neither of steps nor of a TL."""
        self._schemas: list[dict[int, str]] = [{} for _ in paths]
        self._cache: OrderedDict[tuple[Place, int], tuple[Chunk, int]] = OrderedDict()
        self._cached_bytes = 0
        self.losses = Losses()
        """Losses of what has been read so far."""
        self.reads = 0
        """Chunks that were read from files."""
        self._places = sorted((place, file) for file in range(len(paths)) for place in self._find(file))
        """The chunks by time, each with the number of its file."""
        self._first_ns = [place.first_ns for place, _ in self._places]
        self._reach_ns = list(accumulate((place.last_ns for place, _ in self._places), max))
        """By chunk, the last log_time up to its end."""

    def __len__(self) -> int:
        return len(self._places)

    def messages(self, topic: str, from_ns: int, to_ns: int) -> Iterator[Message]:
        """The messages of a topic with from_ns <= log_time <= to_ns, in their order; chunks are read one by one."""
        for k in self._numbers(from_ns, to_ns):
            messages = self._chunk(*self._places[k]).get(topic, ())
            yield from (message for message in messages if from_ns <= message.log_time <= to_ns)

    def messages_back(self, topic: str, from_ns: int, to_ns: int) -> Iterator[Message]:
        """Those of `messages`, the newest first."""
        for k in reversed(self._numbers(from_ns, to_ns)):
            messages = reversed(self._chunk(*self._places[k]).get(topic, ()))
            yield from (message for message in messages if from_ns <= message.log_time <= to_ns)

    def _numbers(self, from_ns: int, to_ns: int) -> range:
        """The chunks that begin before the end of a time and end after its begin."""
        return range(bisect_left(self._reach_ns, from_ns), bisect_right(self._first_ns, to_ns))

    def time_before(self, at_ns: int, max_bytes: int) -> int:
        """The first log_time of the oldest chunk of those that begin before a time and have `max_bytes` together."""
        newest = max(bisect_right(self._first_ns, at_ns) - 1, 0)
        places = (self._places[k][0] for k in range(newest, -1, -1))
        sizes = accumulate(place.end - place.begin for place in places)
        following = sum(1 for _ in takewhile(lambda size: size <= max_bytes, islice(sizes, 1, None)))
        return self._first_ns[newest - following]

    def _find(self, file: int) -> list[Place]:
        path, losses = self._paths[file], Losses()
        with os_errors(f"{path}: cannot be read", "name a file that can be read"), path.open("rb") as stream:
            mcap = McapFile(stream, losses)
            places = [place for place in mcap.places() if place.opcode == Opcode.CHUNK]
        if losses:
            self.losses.add(f"{path.name}: {losses}")
        self._take(file, mcap.names)
        # without an index, the first chunk that can be read has the names of channels
        for place in places:
            if self._topics[file]:
                break
            self._chunk(place, file)
        return places

    def _chunk(self, place: Place, file: int) -> Chunk:
        """The messages of a chunk; none, and a loss, if it is damaged."""
        key = place, file
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key][0]
        path = self._paths[file]
        self.reads += 1
        chunk: Chunk = {}
        try:
            with path.open("rb") as stream:
                chunk = self._take(file, read_record(stream, place))
        except DamagedRecord as damage:
            self.losses.add(f"{path.name}: {damage}")
        except OSError as error:
            self.losses.add(f"{path.name}: cannot be read: {error.strerror}")
        size = sum(MESSAGE_BYTES + len(message.data) for messages in chunk.values() for message in messages)
        self._cache[key] = chunk, size
        self._cached_bytes += size
        while self._cached_bytes > MAX_CACHED_BYTES and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1][1]
        return chunk

    def _take(self, file: int, records: Iterable[McapRecord]) -> Chunk:
        """Take the names of channels; return the messages."""
        topics, schemas = self._topics[file], self._schemas[file]
        chunk: Chunk = {}
        for item in records:
            if isinstance(item, Message):
                if item.channel_id not in topics:
                    self.losses.add(f"{self._paths[file].name}: the name of channel {item.channel_id} is lost")
                topic = topics.get(item.channel_id)
                if topic is not None:
                    chunk.setdefault(topic, []).append(item)
            elif isinstance(item, Schema):
                schemas[item.id] = item.name
            elif isinstance(item, Channel):
                schema = schemas.get(item.schema_id)
                is_step = item.topic == STEP and schema == _STEP_SCHEMA
                is_tl = item.topic.startswith(TL) and schema == _TL_SCHEMA
                topics[item.id] = item.topic if is_step or is_tl else None
        return chunk
