"""The steps of a run by simulated time. Only the chunks of the asked time are read."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from mcap.records import Message as McapMessage

from city.errors import InputError
from controller.recording.record_writer import NS, STEP, TL
from protos import record_pb2 as record
from records.playback.chunks import Chunks

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
        return [step for step, _ in self._parsed(self.chunks.messages(STEP, _ns(from_s), _ns(to_s)), record.Step)]

    def steps_back(self, at_s: float, back_s: float) -> Iterator[record.Step]:
        """The steps of the `back_s` seconds up to a second, the newest first; they are read one by one."""
        messages = self.chunks.messages_back(STEP, _ns(at_s - back_s), _ns(at_s))
        return (step for step, _ in self._parsed(messages, record.Step))

    def history_s(self, at_s: float, back_s: float, max_bytes: int) -> float:
        """The second after which a history up to at_s begins: at most `back_s` seconds and `max_bytes` of chunks before
        it."""
        return max(at_s - back_s, self.chunks.time_before(_ns(at_s), max_bytes) / NS - 0.001)

    def tl_steps(self, tl: str, from_s: float, to_s: float) -> list[record.TlStep]:
        """A TL's part of the steps with from_s <= at_s <= to_s, in their order."""
        messages = self.chunks.messages(TL + tl, _ns(from_s), _ns(to_s))
        return [step for step, _ in self._parsed(messages, record.TlStep)]

    def step_since(self, at_s: float) -> record.Step | None:
        """The first step at a second or after it."""
        steps = self._parsed(self.chunks.messages(STEP, _ns(at_s), _ns(MAX_LOG_S)), record.Step)
        return next((step for step, _ in steps), None)

    def step_before(self, at_s: float) -> tuple[record.Step, int] | None:
        """The newest step at a second or before it, and its wall clock in ns since 1970."""
        return next(self._parsed(self.chunks.messages_back(STEP, 0, _ns(at_s)), record.Step), None)

    def newest_tl_steps(self, tls: Collection[str], at_s: float, back_s: float) -> dict[str, record.TlStep]:
        """By TL, its newest part of a step in the `back_s` seconds up to a second; TLs without one are left out."""
        found = {}
        for tl in tls:
            messages = self.chunks.messages_back(TL + tl, _ns(at_s - back_s), _ns(at_s))
            for step, _ in islice(self._parsed(messages, record.TlStep), 1):
                found[tl] = step
        return found

    def _parsed(self, messages: Iterable[McapMessage], kind: type[M]) -> Iterator[tuple[M, int]]:
        """(message, its wall clock in ns since 1970) of those that are not damaged."""
        for each in messages:
            try:
                yield kind.FromString(each.data), each.publish_time
            except DecodeError:
                self.chunks.losses.add(f"a message of second {each.log_time / NS:g} is damaged")


def _ns(seconds: float) -> int:
    """As the record's log_time."""
    return round(seconds * NS)
