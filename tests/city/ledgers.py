"""Ledgers of tests: lines without their digests, at times of the test."""

from datetime import UTC, datetime, timedelta

from city.ledger import LOAD, STAGES, Ledger, Line, Model
from city.ledger_file import LedgerFile, time_text

BEGIN = datetime(2026, 11, 24, 8, 0, tzinfo=UTC)


def time(seconds: float) -> str:
    return time_text(BEGIN + timedelta(seconds=seconds))


def model(number: int) -> Model:
    return Model(number, f"{number:064x}")


def line(kind, at_s=0.0, tls=(), number=4, author="ann", rollout="r1", **fields):
    """A line of rollout r1 by ann about TLs with one model number."""
    fields = {"until": time(at_s + 120), **fields} if kind in ("begin", "lease") else fields
    rollout = "" if kind == "adopt" else rollout
    return Line(0, time(at_s), kind, author, dict.fromkeys(tls, model(number)), rollout, **fields)


def stage(name, tls=("SA101",), verdict=None, **fields):
    return line("stage", tls=tls, stage=name, verdict=verdict or ("done" if name == LOAD else "better"), **fields)


def after(*lines: Line, ledger: Ledger | None = None) -> Ledger:
    """The state after lines, which get their numbers and digests."""
    state = ledger or Ledger()
    for each in lines:
        state = state.after(state.followed_by(each))
    return state


TL = ("SA101",)
ADOPTED = (line("adopt", tls=("SA101", "SA104"), number=3),)
BEGUN = (*ADOPTED, line("begin", tls=TL))
SHADOWED = (*BEGUN, *(stage(name) for name in STAGES[:3]))
IN_CANARY = (*SHADOWED, line("canary", tls=TL), line("drives", tls=TL))
JUDGED = (*IN_CANARY, stage("canary"))
PROMOTED = (*JUDGED, line("promote", tls=TL), stage("promote", verdict="done"))
ENDED = (*PROMOTED, line("end"))


def write(path, lines=ENDED) -> LedgerFile:
    """A ledger's file with a line every 10 s."""
    ledger = LedgerFile(path)
    for k, each in enumerate(lines):
        ledger.append(each, BEGIN + timedelta(seconds=10 * k))
    return ledger
