"""Open rollouts of a city's ledger, for `greenserve rollout status`, `ctl tls` and the live page."""

import threading
from collections.abc import Sequence
from pathlib import Path

from city import names
from city.errors import InputError
from city.ledger import STAGES, Ledger, Line, Rollout
from city.ledger_file import LedgerFile

HEADER = ("ROLLOUT", "TL", "DRIVEN BY", "TO", "NEXT STAGE", "OWNER", "LEASE UNTIL", "NEWEST VERDICT")
MAX_NAMED_TLS = 10
"""TLs named in a line."""


class OpenRollouts:
    """The rollouts of a ledger's file. Every method may be called by any thread but the decision loop's."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._ledger: LedgerFile | None = None

    def lines(self) -> list[str]:
        """A line for each rollout and stage; the error, if the ledger cannot be read."""
        with self._lock:
            try:
                self._ledger = self._ledger or LedgerFile(self._path)
                self._ledger.read()
            except (InputError, OSError) as error:
                return [f"rollouts are unknown: {error}"]
            together: dict[tuple[str, ...], list[str]] = {}
            for id, tl, *others in rows(self._ledger.state, self._ledger.lines):
                together.setdefault((id, *others), []).append(tl)
        return [
            f"rollout {id} of {names.listed(tls, MAX_NAMED_TLS)} to {to}: driven by {driven}, next stage {stage}; "
            f"owner {owner}, lease until {until}{newest and f'; {newest}'}"
            for (id, driven, to, stage, owner, until, newest), tls in together.items()
        ]


def rows(state: Ledger, lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """The cells under HEADER, by rollout and TL. `lines`: of the ledger, for the newest verdicts."""
    return [_row(state, lines, rollout, tl) for rollout in state.rollouts.values() for tl in rollout.targets]


def _row(state: Ledger, lines: Sequence[Line], rollout: Rollout, tl: str) -> tuple[str, ...]:
    now, passed = state.tls[tl], rollout.passed[tl]
    stage = "aborted" if rollout.is_aborted else STAGES[passed] if passed < len(STAGES) else "end"
    own = (line for line in reversed(lines) if line.rollout == rollout.id and tl in line.models)
    newest = next((f"{line.stage}: {line.verdict}: {line.text}" for line in own if line.kind == "stage"), "")
    changing = f" -> {now.wanted.number}" if now.wanted != now.drives else ""
    driven = f"{now.drives.number}{changing}{' (canary)' if now.canary is not None else ''}"
    paused = " (paused)" if rollout.is_paused else ""
    to = str(rollout.targets[tl].number)
    return rollout.id, tl, driven, to, f"{stage}{paused}", rollout.owner, rollout.until, newest
