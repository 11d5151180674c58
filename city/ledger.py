"""The rules of the ledger: which model number drove which TL from when to when, who released it, on what evidence.

A pure state machine: no file, no clock. The ledger is a list of lines. `Ledger().after(line)` is the state after a
line, or raises RuleBroken. A reader that applies all lines in order has verified the whole ledger. This docstring is
the specification:

1.  Chain. Lines are numbered 0, 1, 2, ... `before` is the SHA-256 of the bytes of the line before (empty in line 0).
    Times are UTC with milliseconds and never fall.
2.  Head. `head` is the digest of {TL: number, digest of the model's files} of all TLs after the line. The state of a
    whole city is bound by the last line, and so are all lines before it.
3.  A number means one set of files for ever: a TL's number never has another digest.
4.  `adopt` names TLs and the models that drive them, without evidence: TLs that the ledger does not know, or higher
    numbers that were released outside of a rollout.
5.  `begin` opens a rollout of known TLs to higher numbers than their stable ones, with an owner (its author) and the
    end of its lease. A TL has one rollout: another one is refused as long as the first has a lease, or has the TL in
    canary.
6.  `lease` extends the lease. Its owner may do so at any time; another author only after its end, or to end a rollout
    that was aborted, and owns it then.
7.  `stage`, `canary`, `promote`, `rollback`, `drives` and `end` of a rollout are written by its owner within its lease.
8.  `stage` is the verdict on a stage of TLs. A TL passes the stages in the order of STAGES, each once; only the
    stages in SKIPPABLE may be skipped.
9.  `canary` puts a TL onto its target's number. It has passed shadow, and the rollout is neither paused nor aborted.
10. `drives` says that a TL now asks the model that the ledger wants for it: its canary, else its stable one.
    All lines but this one and `adopt` say what is wanted; this one says what the street does.
11. A TL passes stage canary only while its canary drives it.
12. `promote` makes a TL's canary its stable model. It has passed canary; the rollout is neither paused nor aborted.
13. `rollback` ends a TL's canary: its stable model is wanted again. Without a rollout it makes a model stable that was
    so before, of a lower number. Numbers fall by this line alone.
14. `pause`, `resume` and `abort` of a rollout may be written by anyone. An abort is final, and its text "OUTCOME:
    REASON"; a rollout that ends without a promotion begins its end with one.
15. `end` closes a rollout: no TL is in canary, and every TL is driven by what is wanted.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

EVALUATE, LOAD, SHADOW, CANARY, PROMOTE = STAGES = ("evaluate", "load", "shadow", "canary", "promote")
SKIPPABLE = (EVALUATE, SHADOW)
"""Stages that an operator may leave out."""
BETTER, WORSE, UNDECIDED = "better", "worse", "not enough evidence"
DONE, SKIPPED = "done", "skipped"
PASSED = (BETTER, DONE, SKIPPED)
"""Verdicts after which the next stage begins."""
VERDICTS = (*PASSED, WORSE, UNDECIDED)
BY_OWNER = ("stage", "canary", "drives", "promote", "rollback", "end")
KINDS = ("adopt", "begin", "lease", "pause", "resume", "abort", *BY_OWNER)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
MAX_NUMBER = (1 << 63) - 1
"""Largest version of TensorFlow Serving."""


class RuleBroken(Exception):
    """A line breaks a rule of the ledger; the text says which, and what to do."""


@dataclass(frozen=True)
class Model:
    """A model number, and the digest of its files."""

    number: int
    sha256: str


@dataclass(frozen=True)
class Line:
    """A line of the ledger."""

    number: int
    at: str
    """UTC, such as 2026-11-24T08:15:00.000Z."""
    kind: str
    """One of KINDS."""
    author: str
    models: Mapping[str, Model] = field(default_factory=dict)
    """By TL: the models that the line is about."""
    rollout: str = ""
    """Id of its rollout; empty: the line belongs to none."""
    until: str = ""
    """End of the lease."""
    stage: str = ""
    verdict: str = ""
    text: str = ""
    """The verdict or the reason as a sentence."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """Name of a file -> its SHA-256."""
    before: str = ""
    """SHA-256 of the bytes of the line before."""
    head: str = ""
    """Digest of the whole set of models after this line."""


@dataclass(frozen=True)
class TlState:
    """A TL in the ledger."""

    stable: Model
    drives: Model
    """The model that answers for it."""
    since: str
    """Since when."""
    canary: Model | None = None
    were_stable: tuple[Model, ...] = ()
    """Earlier stable models, the newest last."""

    @property
    def wanted(self) -> Model:
        """The model that shall drive the TL."""
        return self.canary or self.stable

    def with_stable(self, model: Model) -> "TlState":
        """The TL without a canary, and with another stable model."""
        return replace(self, stable=model, canary=None, were_stable=(*self.were_stable, self.stable))


@dataclass(frozen=True)
class Rollout:
    """A rollout that has not ended."""

    id: str
    owner: str
    until: str
    """End of the lease."""
    targets: Mapping[str, Model]
    passed: Mapping[str, int]
    """TL -> number of stages that it has passed."""
    is_paused: bool = False
    is_aborted: bool = False

    def has_passed(self, tl: str, stage: str) -> bool:
        return self.passed[tl] > STAGES.index(stage)


@dataclass(frozen=True)
class Ledger:
    """The state after some lines."""

    count: int = 0
    digest: str = ""
    """SHA-256 of the last line."""
    at: str = ""
    tls: Mapping[str, TlState] = field(default_factory=dict)
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    """Those that have not ended, by id."""
    ids: frozenset[str] = frozenset()
    """Ids of all rollouts."""
    digests: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(TL, number) -> digest of the model's files."""

    def after(self, line: Line) -> "Ledger":
        """The state after the next line. Raises RuleBroken."""
        _check(line.number == self.count, f"is numbered {line.number}, but is line {self.count}; lines are missing")
        _check(line.before == self.digest, "does not follow the line before: one of them was changed by hand")
        _check(bool(_TIME.fullmatch(line.at)), f"time {line.at!r} must be like 2026-11-24T08:15:00.000Z")
        _check(line.at >= self.at, f"its time {line.at} is before {self.at}, that of the line before")
        _check(line.kind in KINDS, f"kind {line.kind!r} is unknown; use a newer version of greenserve")
        _check(bool(line.author), "has no author")
        for tl, model in line.models.items():
            _check(0 < model.number <= MAX_NUMBER, f"{tl}: {model.number} is not a model number")
            _check(bool(_SHA256.fullmatch(model.sha256)), f"{tl}: {model.sha256!r} is not a SHA-256")
            known = self.digests.get((tl, model.number), model.sha256)
            _check(
                known == model.sha256,
                f"{tl}/{model.number} has other files than when the ledger first named it (SHA-256 "
                f"{model.sha256[:12]}, was {known[:12]}); export them under a new number",
            )
        state = self._changed(line)
        digests = {**self.digests, **{(tl, model.number): model.sha256 for tl, model in line.models.items()}}
        state = replace(state, count=self.count + 1, digest=digest_of(encode(line)), at=line.at, digests=digests)
        _check(line.head == state.head, "its head is not that of the models after it: it was changed by hand")
        return state

    @property
    def head(self) -> str:
        """Digest of the whole set {TL: number, digest of the model's files} that is wanted."""
        wanted = {tl: [state.wanted.number, state.wanted.sha256] for tl, state in self.tls.items()}
        return digest_of(_json(wanted))

    def rollout_of(self, tl: str) -> Rollout | None:
        """The rollout of a TL that has not ended."""
        return next((rollout for rollout in self.rollouts.values() if tl in rollout.targets), None)

    def followed_by(self, line: Line) -> Line:
        """The line with its number, the digest of the line before and its head. Raises RuleBroken."""
        line = replace(line, number=self.count, before=self.digest)
        return replace(line, head=self._changed(line).head)

    def _changed(self, line: Line) -> "Ledger":
        """The state with a line's models and rollouts. Raises RuleBroken."""
        rollout = self._rollout(line)
        if line.kind == "begin":
            is_new = bool(line.rollout) and line.rollout not in self.ids
            _check(is_new, f"rollout id {line.rollout!r} must be a new one")
            _check(bool(line.models), "a rollout needs a TL")
        if line.kind in ("begin", "lease"):
            _check(line.until > line.at, "the lease must end after its line")
        tls = {**self.tls, **{tl: self._tl(tl, model, line, rollout) for tl, model in line.models.items()}}
        rollouts, ids = dict(self.rollouts), self.ids
        match line.kind:
            case "begin":
                # those of its TLs are abandoned: `_tl` has checked that
                replaced = {other.id for tl in line.models if (other := self.rollout_of(tl)) is not None}
                rollouts = {id: each for id, each in rollouts.items() if id not in replaced}
                passed = dict.fromkeys(line.models, 0)
                rollout, ids = Rollout(line.rollout, line.author, line.until, line.models, passed), ids | {line.rollout}
            case "lease" if rollout is not None:
                rollout = replace(rollout, owner=line.author, until=line.until)
            case "stage" if rollout is not None:
                is_passed = line.verdict in PASSED
                passed = {tl: count + (is_passed and tl in line.models) for tl, count in rollout.passed.items()}
                rollout = replace(rollout, passed=passed)
            case "pause" | "resume" if rollout is not None:
                rollout = replace(rollout, is_paused=line.kind == "pause")
            case "abort" if rollout is not None:
                rollout = replace(rollout, is_aborted=True)
            case "end" if rollout is not None:
                for tl in rollout.targets:
                    _check(tls[tl].canary is None, f"{tl} is still in canary; roll it back or promote it first")
                    _check(tls[tl].drives == tls[tl].wanted, f"{tl} is not yet driven by {tls[tl].wanted.number}")
                del rollouts[rollout.id]
                rollout = None
        if rollout is not None:
            rollouts[rollout.id] = rollout
        return replace(self, tls=tls, rollouts=rollouts, ids=ids)

    def _rollout(self, line: Line) -> Rollout | None:
        """The rollout that a line continues; None for one that belongs to none. Raises RuleBroken."""
        if line.kind in ("adopt", "begin") or (line.kind in ("drives", "rollback") and not line.rollout):
            return None
        rollout = self.rollouts.get(line.rollout)
        if rollout is None:
            raise RuleBroken(f"there is no open rollout {line.rollout!r}")
        if line.kind in BY_OWNER:
            _check(line.author == rollout.owner, f"rollout {rollout.id}, {_leased(rollout)}: not {line.author}'s")
            _check(line.at <= rollout.until, f"the lease of {rollout.owner} ended {rollout.until}; extend it first")
        if line.kind == "lease":
            mine = line.author == rollout.owner or line.at > rollout.until or rollout.is_aborted
            _check(mine, f"rollout {rollout.id}, {_leased(rollout)}; wait, or continue as {rollout.owner} (--author)")
        if line.kind in ("canary", "promote"):
            _check(not rollout.is_paused, f"rollout {rollout.id} is paused; resume it first")
        if line.kind in ("canary", "promote", "pause", "resume", "abort"):
            _check(not rollout.is_aborted, f"rollout {rollout.id} was aborted")
        if line.kind == "stage":
            _check(line.stage in STAGES, f"stage {line.stage!r} is unknown")
            _check(line.verdict in VERDICTS, f"verdict {line.verdict!r} is unknown")
            _check(line.verdict != SKIPPED or line.stage in SKIPPABLE, f"stage {line.stage} cannot be skipped")
        return rollout

    def _tl(self, tl: str, model: Model, line: Line, rollout: Rollout | None) -> TlState:
        """A TL after a line that names it. Raises RuleBroken."""
        if line.kind == "adopt" and tl not in self.tls:
            return TlState(model, model, line.at)
        _check(tl in self.tls, f"{tl} is not in the ledger; adopt its model first")
        state = self.tls[tl]
        stable, is_canary_driving = state.stable.number, state.canary is not None and state.canary == state.drives
        if rollout is None:
            self._check_free(tl, line.at)
        else:
            _check(tl in rollout.targets, f"{tl} is not in rollout {rollout.id}")
            if line.kind in ("canary", "promote"):
                _check(model == rollout.targets[tl], f"{tl}: {model.number} is not the rollout's target")
        match line.kind:
            case "adopt" | "begin":
                rule = "only a rollback lowers a number"
                _check(model.number > stable, f"{tl}: {model.number} does not rise above {stable}; {rule}")
                if line.kind == "adopt":
                    return replace(state.with_stable(model), drives=model, since=line.at)
            case "stage" if rollout is not None:
                is_next = rollout.passed[tl] == STAGES.index(line.stage)
                _check(is_next, f"{tl}: {line.stage} is not its next stage")
                if line.verdict in PASSED:
                    _check(line.stage != CANARY or is_canary_driving, f"{tl} is not driven by its canary")
                    _check(line.stage != PROMOTE or state.stable == rollout.targets[tl], f"{tl} is not promoted")
            case "canary" if rollout is not None:
                _check(rollout.has_passed(tl, SHADOW), f"{tl} has not passed {SHADOW}")
                return replace(state, canary=model)
            case "drives":
                _check(model == state.wanted, f"{tl}: {model.number} is not wanted, but {state.wanted.number}")
                return replace(state, drives=model, since=line.at)
            case "promote" if rollout is not None:
                _check(rollout.has_passed(tl, CANARY), f"{tl} has not passed {CANARY}")
                _check(is_canary_driving, f"{tl} is not driven by its canary")
                return state.with_stable(model)
            case "rollback" if rollout is not None:
                _check(state.canary is not None, f"{tl} is not in canary")
                return replace(state, canary=None)
            case "rollback":
                _check(model in state.were_stable, f"{tl}: {model.number} was never stable; roll it out instead")
                _check(model.number < stable, f"{tl}: {model.number} is not lower than {stable}")
                return state.with_stable(model)
        return state

    def _check_free(self, tl: str, at: str) -> None:
        """Raise RuleBroken if a TL is in a rollout that is not abandoned."""
        rollout = self.rollout_of(tl)
        if rollout is None:
            return
        to = rollout.targets[tl].number
        _check(
            at > rollout.until,
            f"{tl} is in rollout {rollout.id} to {to}, {_leased(rollout)}; wait for its end, or abort it "
            f"(greenserve rollout abort {tl})",
        )
        for other in rollout.targets:
            is_settled = self.tls[other].canary is None and self.tls[other].drives == self.tls[other].wanted
            _check(
                is_settled,
                f"{other} is in canary of rollout {rollout.id} to {to}, whose lease ended {rollout.until}; continue it "
                f"(greenserve rollout {','.join(rollout.targets)} --to {to}), or abort it (greenserve rollout abort "
                f"{tl})",
            )


@dataclass(frozen=True)
class Drive:
    """A time in which one model drove a TL."""

    model: Model
    begin: str
    line: Line
    """The line that says so."""


def drives_by_tl(lines: Iterable[Line]) -> dict[str, list[Drive]]:
    """By TL, the models that drove it, in order; each up to the begin of the next one."""
    drives: dict[str, list[Drive]] = {}
    for line in lines:
        if line.kind in ("adopt", "drives"):
            for tl, model in line.models.items():
                drives.setdefault(tl, []).append(Drive(model, line.at, line))
    return drives


def encode(line: Line) -> bytes:
    """The bytes of a line, without its end. Fields with their defaults are left out."""
    values = {name: value for name, value in vars(line).items() if value or name == "number"}
    if line.models:
        values["models"] = {tl: [model.number, model.sha256] for tl, model in line.models.items()}
    return _json(values)


def decode(data: bytes) -> Line:
    """The line of bytes. Raises RuleBroken if they are not exactly those of a line."""
    try:
        values = json.loads(data)
        models = {tl: Model(number, sha256) for tl, (number, sha256) in values.pop("models", {}).items()}
        line = Line(**values, models=models)
        is_typed = all(isinstance(getattr(line, name), type(default)) for name, default in _TYPES.items())
        is_typed &= all(type(model.number) is int and isinstance(model.sha256, str) for model in models.values())
        is_typed &= all(isinstance(value, str) for value in line.evidence.values())
        if is_typed and type(line.number) is int and encode(line) == data:
            return line
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        pass  # reported below, like any other change
    raise RuleBroken("is not a line that greenserve wrote: it was changed by hand, or is damaged")


_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("at", "kind", "author", "rollout", "until", "stage", "verdict", "text", "before", "head"), ""),
    "evidence": {},
}


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _leased(rollout: Rollout) -> str:
    return f"whose lease is that of {rollout.owner} until {rollout.until}"


def _check(is_valid: bool, reason: str) -> None:
    if not is_valid:
        raise RuleBroken(reason)
