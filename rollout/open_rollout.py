"""A rollout as its owner continues it: its lines in the ledger, its lease, its clock, and what its user sees."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from city.errors import InputError
from city.ledger import Line, Model, Rollout, TlState
from city.ledger_file import LedgerFile, time_text

LEASE_S = 600.0
"""Wall time of a lease; half of it before its end it is extended."""


class Clock:
    """The time of a rollout."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Ending(Exception):
    """How a rollout ends; one that is raised rolls back what is not promoted."""

    def __init__(self, outcome: str, sentence: str) -> None:
        """`outcome`: promoted | worse | not enough evidence | aborted | failed | until: its last stage is passed."""
        super().__init__(sentence)
        self.outcome, self.sentence = outcome, sentence


class OpenRollout:
    """One rollout's lines in the ledger. It has no state of its own but the lines that it has printed."""

    def __init__(self, ledger: LedgerFile, author: str, report: Callable[[str], None], clock: Clock) -> None:
        """`report`: prints a line for the user."""
        self.ledger, self.author, self.report, self.clock = ledger, author, report, clock
        self.id = ""
        """Empty before the rollout begins, and for lines that belong to none."""
        self.waits_for = ""
        self._noted: set[str] = set()

    @property
    def rollout(self) -> Rollout | None:
        return self.ledger.state.rollouts.get(self.id)

    @property
    def targets(self) -> Mapping[str, Model]:
        return self.ledger.state.rollouts[self.id].targets

    def tl(self, tl: str) -> TlState:
        return self.ledger.state.tls[tl]

    def has_passed(self, tl: str, stage: str) -> bool:
        return self.ledger.state.rollouts[self.id].has_passed(tl, stage)

    def append(self, kind: str, models: Mapping[str, Model] = {}, **fields: object) -> None:
        """Append a line. Raises InputError."""
        if kind not in ("begin", "lease"):
            self.keep_lease()
        line = Line(0, "", kind, self.author, models, self.id, **fields)  # type: ignore[arg-type]
        self.ledger.append(line, self.clock.now())

    def lease_end(self, after_s: float = LEASE_S) -> str:
        # after a clock that has gone back, lines have the time of the line before
        now = max(time_text(self.clock.now()), self.ledger.state.at)
        return time_text(datetime.fromisoformat(now) + timedelta(seconds=after_s))

    def keep_lease(self) -> None:
        """Extend the lease in its second half. Raises InputError if another owner has taken the rollout over."""
        self.ledger.read()
        rollout = self.rollout
        if self.id and rollout is None:
            raise InputError(f"rollout {self.id} has been ended by another process")
        if rollout is not None and (rollout.owner != self.author or rollout.until < self.lease_end(LEASE_S / 2)):
            self.append("lease", until=self.lease_end())

    def check_aborted(self) -> None:
        """Keep the lease. Raises Ending if the rollout was aborted.

        The first reason to end it stays, if the process is killed while it rolls back.
        """
        self.keep_lease()
        for line in self.ledger.lines:
            if line.rollout == self.id and line.kind == "abort":
                outcome, _, sentence = line.text.partition(": ")
                raise Ending(outcome, sentence)

    def note(self, text: str) -> None:
        """Report a line once."""
        if text not in self._noted:
            self._noted.add(text)
            self.report(text)

    def note_wait(self, reason: str) -> None:
        """Report a reason to wait, unless it is the one before."""
        if reason != self.waits_for:
            self.waits_for = reason
            self.report(f"waits: {reason}")
