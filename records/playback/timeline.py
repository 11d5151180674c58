"""The steps of a run by simulated time. Only the chunks of the asked time are read."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from mcap.records import Message as McapMessage

from city.errors import InputError
from controller.recording.record_writer import NS, STEP, TL
from protos import record_pb2 as record
from records.playback.chunks import Chunk, Chunks

MAX_LOG_S = 2e10
"""Simulated second after which no message can be."""
M = TypeVar("M", bound=Message)


class Timeline:
    """Steps and the TLs' parts of them, in simulated seconds. Used by one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Find the first and the last step of a run's files. Raises InputError if there is none."""
        self.chunks = Chunks(paths)
        first, last = self.step_since(0.0), self.step_before(MAX_LOG_S)
        if first is None or last is None:
            raise InputError(f"{paths[0]}: has no step that can be read; name another record")
        self.first_s, self.last_s = first.at_s, last[0].at_s
        """The simulated time of the record."""

    def steps(self, from_s: float, to_s: float) -> list[record.Step]:
        """The steps with from_s <= at_s <= to_s, in their order."""
        return list(self._parsed(self.chunks.between(STEP, _ns(from_s), _ns(to_s)), record.Step))

    def steps_back(self, at_s: float, back_s: float) -> Iterator[record.Step]:
        """The steps of the `back_s` seconds up to a second, the newest first; they are read one by one."""
        at_ns, from_ns = _ns(at_s), _ns(at_s - back_s)
        for chunk in self.chunks.before(at_ns):
            newest_first = reversed(chunk.get(STEP, ()))
            yield from self._parsed((each for each in newest_first if from_ns <= each.log_time <= at_ns), record.Step)
            if _is_before(chunk, from_ns):
                return

    def history_s(self, at_s: float, back_s: float, max_bytes: int) -> float:
        """The second after which a history up to at_s begins: at most `back_s` seconds and `max_bytes` of chunks before
        it."""
        return max(at_s - back_s, self.chunks.time_before(_ns(at_s), max_bytes) / NS - 0.001)

    def tl_steps(self, tl: str, from_s: float, to_s: float) -> list[record.TlStep]:
        """A TL's part of the steps with from_s <= at_s <= to_s, in their order."""
        return list(self._parsed(self.chunks.between(TL + tl, _ns(from_s), _ns(to_s)), record.TlStep))

    def step_since(self, at_s: float) -> record.Step | None:
        """The first step at a second or after it."""
        at_ns = _ns(at_s)
        for chunk in self.chunks.since(at_ns):
            found = (each for each in chunk.get(STEP, ()) if each.log_time >= at_ns)
            if (step := next(self._parsed(found, record.Step), None)) is not None:
                return step
        return None

    def step_before(self, at_s: float) -> tuple[record.Step, int] | None:
        """The newest step at a second or before it, and its wall clock in ns since 1970."""
        at_ns = _ns(at_s)
        for chunk in self.chunks.before(at_ns):
            for each in reversed(chunk.get(STEP, ())):
                if each.log_time <= at_ns and (step := next(self._parsed([each], record.Step), None)) is not None:
                    return step, each.publish_time
        return None

    def newest_tl_steps(self, tls: Collection[str], at_s: float, back_s: float) -> dict[str, record.TlStep]:
        """By TL, its newest part of a step in the `back_s` seconds up to a second; TLs without one are left out."""
        at_ns, from_ns = _ns(at_s), _ns(at_s - back_s)
        found: dict[str, record.TlStep] = {}
        lacking = set(tls)
        for chunk in self.chunks.before(at_ns):
            for tl in [tl for tl in lacking if TL + tl in chunk]:
                found_at = (each for each in reversed(chunk[TL + tl]) if from_ns <= each.log_time <= at_ns)
                if (step := next(self._parsed(found_at, record.TlStep), None)) is not None:
                    found[tl] = step
                    lacking.discard(tl)
            if not lacking or _is_before(chunk, from_ns):
                break
        return found

    def _parsed(self, messages: Iterable[McapMessage], kind: type[M]) -> Iterator[M]:
        for each in messages:
            message = kind()
            try:
                message.ParseFromString(each.data)
            except DecodeError:
                self.chunks.losses.add(f"a message of second {each.log_time / NS:g} is damaged")
                continue
            yield message


def _is_before(chunk: Chunk, at_ns: int) -> bool:
    """True if a chunk begins before a time, so that the chunks before it end before it."""
    return any(messages[0].log_time < at_ns for messages in chunk.values())


def _ns(seconds: float) -> int:
    """As the record's log_time."""
    return round(seconds * NS)
