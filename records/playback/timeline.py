"""The steps of a run by simulated time: chunks are unpacked when they are needed, and the newest ones are kept."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError
from mcap.opcode import Opcode
from mcap.records import Channel, McapRecord, Message, Schema

from city.errors import InputError, os_errors
from controller.recording.record_writer import NS, STEP, TL, message_type_of
from protos import record_pb2 as record
from records.mcap_file import DamagedRecord, Losses, McapFile, Place, read_record

MAX_CACHED_BYTES = 128 << 20
"""Memory of the messages that are kept, beside those of the newest chunk."""
MESSAGE_BYTES = 250
"""Memory of a message, without its data."""
MAX_LOG_S = 2e10
"""Simulated second after which no message can be."""
Chunk = dict[str, list[Message]]
"""The messages of a chunk by topic, in their order, not parsed yet; log_time is simulated time, publish_time the wall
clock."""
M = TypeVar("M", record.Step, record.TlStep)


class Timeline:
    """Steps and the TLs' parts of them, in simulated seconds. Used by one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Find the chunks of a run's files, and the first and the last step. Raises InputError if there is none."""
        self._paths = tuple(paths)
        self._topics: list[dict[int, str | None]] = [{} for _ in paths]
        """By file and channel, the topic; None for one that is neither of steps nor of a TL."""
        self._schemas: list[dict[int, str]] = [{} for _ in paths]
        self._cache: OrderedDict[tuple[Place, int], tuple[Chunk, int]] = OrderedDict()
        self._cached_bytes = 0
        self.losses = Losses()
        self.reads = 0
        """Chunks that were read from files."""
        self.places = sorted((place, file) for file in range(len(paths)) for place in self._find(file))
        """The chunks by time, each with the number of its file."""
        self._first_ns = [place.first_ns for place, _ in self.places]
        self._reach_ns = list(accumulate((place.last_ns for place, _ in self.places), max))
        """By chunk, the last log_time up to its end."""
        first, last = self.step_since(0.0), self.step_before(MAX_LOG_S)
        if first is None or last is None:
            raise InputError(f"{paths[0]}: has no step that can be read; name another record")
        self.first_s, self.last_s = first.at_s, last[0].at_s

    def steps(self, from_s: float, to_s: float) -> list[record.Step]:
        """The steps with from_s <= at_s <= to_s, in their order."""
        return [step for step, _ in self._messages(record.Step, STEP, from_s, to_s)]

    def steps_back(self, at_s: float, back_s: float) -> Iterator[record.Step]:
        """The steps of the `back_s` seconds up to a second, the newest first; they are read one by one."""
        return (step for step, _ in self._messages(record.Step, STEP, at_s - back_s, at_s, newest_first=True))

    def history_s(self, at_s: float, back_s: float, max_bytes: int) -> float:
        """The second after which a history up to at_s begins: at most `back_s` seconds and `max_bytes` of chunks before
        the newest one."""
        newest = max(bisect_right(self._first_ns, _ns(at_s)) - 1, 0)
        sizes = accumulate(place.end - place.begin for place, _ in reversed(self.places[: newest + 1]))
        following = sum(1 for _ in takewhile(lambda size: size <= max_bytes, islice(sizes, 1, None)))
        return max(at_s - back_s, self._first_ns[newest - following] / NS - 0.001)

    def tl_steps(self, tl: str, from_s: float, to_s: float) -> list[record.TlStep]:
        """A TL's part of the steps with from_s <= at_s <= to_s, in their order."""
        return [step for step, _ in self._messages(record.TlStep, TL + tl, from_s, to_s)]

    def step_since(self, at_s: float) -> record.Step | None:
        """The first step at a second or after it."""
        return next((step for step, _ in self._messages(record.Step, STEP, at_s, MAX_LOG_S)), None)

    def step_before(self, at_s: float) -> tuple[record.Step, int] | None:
        """The newest step at a second or before it, and its wall clock in ns since 1970."""
        return next(self._messages(record.Step, STEP, 0.0, at_s, newest_first=True), None)

    def newest_tl_steps(self, tls: Collection[str], at_s: float, back_s: float) -> dict[str, record.TlStep]:
        """By TL, its newest part of a step in the `back_s` seconds up to a second; TLs without one are left out."""
        found = {}
        for tl in tls:
            for step, _ in islice(self._messages(record.TlStep, TL + tl, at_s - back_s, at_s, newest_first=True), 1):
                found[tl] = step
        return found

    def _messages(
        self, kind: type[M], topic: str, from_s: float, to_s: float, newest_first: bool = False
    ) -> Iterator[tuple[M, int]]:
        """(message, its wall clock in ns since 1970) of a topic in a time, without damaged ones; chunks are read one by
        one."""
        from_ns, to_ns, order = _ns(from_s), _ns(to_s), -1 if newest_first else 1
        for k in range(bisect_left(self._reach_ns, from_ns), bisect_right(self._first_ns, to_ns))[::order]:
            for message in self._chunk(*self.places[k]).get(topic, [])[::order]:
                if from_ns <= message.log_time <= to_ns:
                    try:
                        yield kind.FromString(message.data), message.publish_time
                    except DecodeError:
                        self.losses.add(f"a message of second {message.log_time / NS:g} is damaged")

    def _find(self, file: int) -> list[Place]:
        """The chunks of a file."""
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
                is_read = item.topic == STEP or item.topic.startswith(TL)
                is_read &= schemas.get(item.schema_id) == message_type_of(item.topic).DESCRIPTOR.full_name
                topics[item.id] = item.topic if is_read else None
        return chunk


def _ns(seconds: float) -> int:
    """As the record's log_time."""
    return round(seconds * NS)
