"""Desired numbers: a file says which model number each TL shall have, and the ledger what is left to do.

The same file is read again and again, by a Job that is restarted or a GitOps tool that applies it. So a number that was
refused once is not tried again: the ledger's line that ended it is the reason, until `--again` names that line.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from city import names
from city.config import City
from city.errors import InputError, os_errors
from city.ledger import MAX_NUMBER, UNDECIDED, WORSE, Ledger, Line, Rollout

REFUSED = (WORSE, UNDECIDED, "aborted")
"""Outcomes of a rollout after which its number is not tried again."""
MAX_FAILURES = 3
"""Rollouts of a number that fail before it is not tried again: each of them evaluates and loads it."""
REPLACED = "replaced"
"""Outcome of a rollout whose number is no longer desired; that number may be desired again."""


@dataclass(frozen=True)
class Step:
    """TLs that a run takes to one number together."""

    tls: tuple[str, ...]
    number: int
    is_back: bool = False
    """True: the number is lower than the stable one."""
    refused: Line | None = None
    """The line of the ledger because of which the number is not tried."""


def read(path: Path, city: City) -> dict[str, int]:
    """The desired number of each TL: TOML with lines `TL = number`, or `all = number`. Raises InputError."""
    try:
        with os_errors(f"--desired {path}: cannot be read", "name a file with lines such as SA101 = 4"):
            lines = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as TOML ({error}); write lines such as SA101 = 4") from None
    numbers: dict[str, int] = {}
    for name, number in lines.items():
        if type(number) is not int or not 1 <= number <= MAX_NUMBER:
            raise InputError(f"{path}: {name} = {number!r} must be a model number, such as {name} = 4")
        for tl in names.select([name], list(city.tls), str(path), city.tl_of_signal):
            if tl in numbers:
                raise InputError(f"{path}: {tl} stands there twice; leave one of its lines")
            numbers[tl] = number
    return numbers


def replaced(ledger: Ledger, numbers: Mapping[str, int], author: str, now: str) -> list[Rollout]:
    """The open rollouts of these TLs, or of this author, to other numbers. Raises InputError if another author has one.

    Args:
        ledger: the state of the ledger.
        numbers: TL -> desired number.
        author: of this run.
        now: as lines of the ledger have it.
    """
    found: list[Rollout] = []
    for rollout in ledger.rollouts.values():
        targets = {tl: model.number for tl, model in rollout.targets.items()}
        is_own = rollout.owner == author
        if targets.items() <= numbers.items() or not (is_own or targets.keys() & numbers.keys()):
            continue
        if not is_own and now <= rollout.until:
            tl, number = next(iter(targets.items()))
            raise InputError(
                f"rollout {rollout.id} of {rollout.owner} takes {', '.join(targets)} to {number}, another number than "
                f"the desired one; wait for its end, or abort it (greenserve rollout abort {tl})"
            )
        found.append(rollout)
    return found


def steps(ledger: Ledger, lines: Iterable[Line], numbers: Mapping[str, int], author: str, again: int) -> list[Step]:
    """The steps of a run for TLs that the ledger knows; an open rollout goes on as it began.

    Args:
        ledger: the state after the lines.
        lines: of the ledger.
        numbers: TL -> desired number.
        author: of this run.
        again: lines up to this number refuse nothing.
    """
    refused = _refusals(lines, author, again)
    groups: dict[tuple[str, int, int, int], list[str]] = {}
    line_of: dict[int, Line] = {}
    for tl, number in numbers.items():
        rollout, stable = ledger.rollout_of(tl), ledger.tls[tl].stable.number
        direction = (number > stable) - (number < stable) if rollout is None else 0
        line = refused.get((tl, number)) if direction > 0 else None
        key = ("" if rollout is None else rollout.id, number, direction, -1 if line is None else line.number)
        groups.setdefault(key, []).append(tl)
        if line is not None:
            line_of[line.number] = line
    return [
        Step(tuple(tls), number, direction < 0, line_of.get(refusal))
        for (_, number, direction, refusal), tls in groups.items()
    ]


def _refusals(lines: Iterable[Line], author: str, again: int) -> dict[tuple[str, int], Line]:
    """(TL, number) -> the line that refuses it: the end of its rollout, or that somebody else took it back."""
    found: dict[tuple[str, int], Line] = {}
    targets: dict[str, list[tuple[str, int]]] = {}
    failures: Counter[tuple[str, int]] = Counter()
    stable: dict[str, int] = {}
    for line in lines:
        numbers = {tl: model.number for tl, model in line.models.items()}
        ended: list[tuple[str, int]] = []
        if line.kind == "begin":
            targets[line.rollout] = list(numbers.items())
        elif line.kind == "end" and line.number > again:
            outcome = line.text.partition(":")[0]
            failures.update(targets[line.rollout] if outcome == "failed" else ())
            ended = [t for t in targets[line.rollout] if outcome in REFUSED or failures[t] >= MAX_FAILURES]
        elif line.kind == "rollback" and not line.rollout:
            ended = [(tl, stable[tl]) for tl in numbers if line.author != author and line.number > again]
        if line.kind in ("adopt", "promote") or (line.kind == "rollback" and not line.rollout):
            stable |= numbers
        found |= dict.fromkeys(ended, line)
        for promoted in numbers.items() if line.kind == "promote" else ():
            found.pop(promoted, None)
            failures.pop(promoted, None)
    return found
