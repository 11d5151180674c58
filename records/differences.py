"""Differences between recorded messages and those of a replay, field by field."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from protos import policy_pb2 as pb
from protos import record_pb2 as record

ABSENT = "absent"
T = TypeVar("T")
_INDEX = re.compile(r"\[[^]]*\]")
_ANSWER = ("action", "scores", "model", "version", "error", "error_text")
"""Fields of a decision that are the policy's answer."""


class Difference(NamedTuple):
    """One field with another value than the recorded one."""

    tl: str
    """"": of the whole step."""
    at_s: float
    path: str
    """Path of the field, such as observation[3]."""
    meaning: str
    """Meaning of the value, such as "density of lane A0_1"; "" if the path names it."""
    recorded: str
    new: str

    @property
    def field(self) -> str:
        """The path without indices."""
        return _INDEX.sub("", self.path)

    def __str__(self) -> str:
        tl = f", {self.tl}" if self.tl else ""
        meaning = f" ({self.meaning})" if self.meaning else ""
        return f"second {self.at_s:g}{tl}: {self.path}{meaning}: recorded {self.recorded}, now {self.new}"


@dataclass
class Differences:
    """The first difference of a replay, and the number of all by TL and field."""

    first: Difference | None = None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (TL, field)."""

    def add(self, difference: Difference) -> None:
        self.first = self.first or difference
        self.counts[difference.tl, difference.field] += 1


class StepComparer:
    """Compares the messages of a step, without its wall times."""

    def __init__(self, contracts: Sequence[pb.PolicyContract], tls: Collection[str]) -> None:
        """`tls`: those that are compared."""
        self._contracts = {contract.tl: contract for contract in contracts if contract.tl in tls}
        self._tls = [contract.tl for contract in contracts]
        signals = [(signal, contract.tl) for contract in contracts for signal in contract.signal_ids]
        self._tl_of = dict(signals)
        self._signals = [signal for signal, _ in signals]

    def compare(
        self,
        recorded: tuple[record.Step, Mapping[str, record.TlStep]],
        new: tuple[record.Step, Mapping[str, record.TlStep]],
    ) -> Iterator[Difference]:
        """The differences of a step, in the order in which they follow from each other."""
        yield from self._step(recorded[0], new[0])
        for tl, contract in self._contracts.items():
            before, after = recorded[1].get(tl), new[1].get(tl)
            if before is None and after is None:
                continue
            if before is None or after is None:
                was, now = (ABSENT if step is None else "present" for step in (before, after))
                yield Difference(tl, recorded[0].at_s, "step", "", was, now)
            elif not _same(before, after):
                yield from _tl_step(contract, before, after)

    def _step(self, recorded: record.Step, new: record.Step) -> Iterator[Difference]:
        for tl in self._contracts:
            was, now = (tl in {self._tls[k] for k in step.due} for step in (recorded, new))
            if was != now:
                yield Difference(tl, recorded.at_s, "due", "", str(was).lower(), str(now).lower())
        skipped = {"times", "due"}
        if list(recorded.due) != list(new.due):
            skipped.add("readings")  # those of other TLs
        for path, before, after in differing_fields(recorded, new, "", skipped):
            signal = _item(r"shown\[\d+\]\.states", path, self._signals)
            tl = self._tl_of.get(signal or "", "")
            if not tl or tl in self._contracts:
                yield Difference(tl, recorded.at_s, path, f"signal {signal}" if signal else "", before, after)


def _same(a: Message, b: Message) -> bool:
    return a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def _tl_step(contract: pb.PolicyContract, recorded: record.TlStep, new: record.TlStep) -> Iterator[Difference]:
    """The differences of a TL in a step: the decision first, then the states, then what follows from both."""
    at_s = recorded.at_s
    if recorded.HasField("decision") != new.HasField("decision"):
        was, now = ("present" if step.HasField("decision") else ABSENT for step in (recorded, new))
        yield Difference(contract.tl, at_s, "decision", "", was, now)
    else:
        for path, before, after in differing_fields(recorded.decision, new.decision):
            feature = _item("observation", path, contract.observation.features)
            meaning = ""
            if feature is not None:
                place = f"lane {feature.lane_id}" if feature.lane_id else f"signal {feature.signal_id}"
                meaning = f"{feature.kind} of {place}"
            whole_path = f"answer.{path}" if _INDEX.sub("", path) in _ANSWER else path
            yield Difference(contract.tl, at_s, whole_path, meaning, before, after)
    states = [{each.at_s: each for each in step.states} for step in (recorded, new)]
    for second in sorted({*states[0], *states[1]}):
        none = record.States(at_s=second)
        for path, before, after in differing_fields(states[0].get(second, none), states[1].get(second, none)):
            signal = _item("requested|permitted", path, contract.signal_ids)
            yield Difference(contract.tl, second, path, f"signal {signal}" if signal else "", before, after)
    for path, before, after in differing_fields(recorded, new, "", {"decision", "states"}):
        yield Difference(contract.tl, at_s, path, "", before, after)


def _item(field_path: str, path: str, items: Sequence[T]) -> T | None:
    """The item whose index follows a field's path, a regular expression; None for another path."""
    match = re.fullmatch(rf"(?:{field_path})\[(\d+)\]", path)
    return items[int(match[1])] if match is not None and int(match[1]) < len(items) else None


def differing_fields(
    recorded: Any, new: Any, path: str = "", skipped: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """(path, recorded, new) of the fields that differ in two messages of one kind.

    Args:
        recorded, new: the messages.
        path: of the messages in the one that they are part of.
        skipped: names of fields that are not compared.
    """
    for descriptor in recorded.DESCRIPTOR.fields:
        if descriptor.name not in skipped:
            field_path = f"{path}.{descriptor.name}" if path else descriptor.name
            before, after = _values(recorded, descriptor, field_path), _values(new, descriptor, field_path)
            for where in before | after:
                yield from _field(descriptor, where, before.get(where), after.get(where))


def _values(message: Any, descriptor: Any, path: str) -> dict[str, Any]:
    """The values of a field by path; none if it is not set."""
    value = getattr(message, descriptor.name)
    if descriptor.is_repeated:
        return {f"{path}[{k}]": each for k, each in enumerate(value)}
    return {} if descriptor.has_presence and not message.HasField(descriptor.name) else {path: value}


def _field(descriptor: Any, path: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    if before is None or after is None:
        yield path, _value_text(descriptor, before), _value_text(descriptor, after)
    elif descriptor.message_type is not None:
        if not _same(before, after):
            yield from differing_fields(before, after, path)
    # bit for bit: two NaN are the same, 0.0 and -0.0 are not
    elif before != after or not before:
        was, now = _value_text(descriptor, before), _value_text(descriptor, after)
        if was != now:
            yield path, was, now


def _value_text(descriptor: Any, value: Any) -> str:
    if value is None:
        return ABSENT
    if descriptor.message_type is not None:
        return " ".join(str(value).split())
    if descriptor.enum_type is not None:
        number = descriptor.enum_type.values_by_number.get(value)
        return str(value) if number is None else number.name
    return repr(value) if isinstance(value, str) else str(value)
