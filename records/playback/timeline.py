"""The steps of a run by simulated time. Only the chunks of the asked time are read."""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from city.errors import InputError
from controller.recording.record_writer import NS, STEP, TL
from protos import record_pb2 as record
from records.playback.chunks import Chunk, Chunks, Entry

M = TypeVar("M", bound=Message)


class Timeline:
    """Steps and the TLs' parts of them, in simulated seconds. Used by one thread at a time."""

    def __init__(self, chunks: Chunks) -> None:
        """Find the first and the last step. Raises InputError if there is none."""
        self.chunks = chunks
        first_ns, last_ns = chunks.span_ns
        first, last = self.step_since(first_ns / NS), self.step_before(last_ns / NS)
        if first is None or last is None:
            raise InputError(f"{chunks.path}: has no step that can be read; name another record")
        self.first_s, self.last_s = first.at_s, last[0].at_s
        """The simulated time of the record."""

    def steps(self, from_s: float, to_s: float) -> list[record.Step]:
        """The steps with from_s <= at_s <= to_s, in their order."""
        return list(self._parsed(self.chunks.between(STEP, _ns(from_s), _ns(to_s)), record.Step))

    def steps_back(self, at_s: float, back_s: float) -> Iterator[record.Step]:
        """The steps of the `back_s` seconds up to a second, the newest first; they are read one by one."""
        at_ns, from_ns = _ns(at_s), _ns(at_s - back_s)
        for chunk in self.chunks.before(at_ns):
            entries = [entry for entry in reversed(chunk.get(STEP, ())) if from_ns <= entry.log_ns <= at_ns]
            yield from self._parsed(entries, record.Step)
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
            found = (entry for entry in chunk.get(STEP, ()) if entry.log_ns >= at_ns)
            if (step := next(self._parsed(found, record.Step), None)) is not None:
                return step
        return None

    def step_before(self, at_s: float) -> tuple[record.Step, int] | None:
        """The newest step at a second or before it, and its wall clock in ns since 1970."""
        at_ns = _ns(at_s)
        for chunk in self.chunks.before(at_ns):
            for entry in reversed(chunk.get(STEP, ())):
                if entry.log_ns <= at_ns and (step := next(self._parsed([entry], record.Step), None)) is not None:
                    return step, entry.publish_ns
        return None

    def newest_tl_steps(self, tls: Collection[str], at_s: float, back_s: float) -> dict[str, record.TlStep]:
        """By TL, its newest part of a step in the `back_s` seconds up to a second; TLs without one are left out."""
        at_ns, from_ns = _ns(at_s), _ns(at_s - back_s)
        found: dict[str, record.TlStep] = {}
        lacking = set(tls)
        for chunk in self.chunks.before(at_ns):
            for tl in [tl for tl in lacking if TL + tl in chunk]:
                entry = _newest(chunk[TL + tl], from_ns, at_ns)
                if entry is not None and (step := next(self._parsed([entry], record.TlStep), None)) is not None:
                    found[tl] = step
                    lacking.discard(tl)
            if not lacking or _is_before(chunk, from_ns):
                break
        return found

    def _parsed(self, entries: "Sequence[Entry] | Iterator[Entry]", kind: type[M]) -> Iterator[M]:
        for entry in entries:
            message = kind()
            try:
                message.ParseFromString(entry.data)
            except DecodeError:
                self.chunks.lose(f"a message of second {entry.log_ns / NS:g} is damaged")
                continue
            yield message


def _newest(entries: Sequence[Entry], from_ns: int, at_ns: int) -> Entry | None:
    return next((entry for entry in reversed(entries) if from_ns <= entry.log_ns <= at_ns), None)


def _is_before(chunk: Chunk, at_ns: int) -> bool:
    """True if a chunk begins before a time, so that the chunks before it end before it."""
    return any(entries[0].log_ns < at_ns for entries in chunk.values())


def _ns(seconds: float) -> int:
    """As the record's log_time."""
    return round(seconds * NS)
