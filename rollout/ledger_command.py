"""`greenserve ledger`: which model number drove which TL from when to when, who released it, on what evidence."""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from city import config, names, program, text_table
from city.arguments import Parser, run_subcommand
from city.errors import InputError
from city.ledger import Drive, Line, drives_by_tl
from city.ledger_file import FILE, LedgerFile, time_text

SUBCOMMANDS = {
    name: ("rollout.ledger_command:subcommand", summary)
    for name, summary in (
        ("show", "list the lines of the ledger"),
        ("verify", "check every line by the rules"),
        ("at", "show which model drove each TL at a time, who released it, and on what evidence"),
    )
}
"""By name: the entry point, and the summary."""
SHOWN_DIGITS = 12
"""Digits of a digest in tables."""
LINES = ("LINE", "TIME", "WHAT", "TLS", "AUTHOR", "ROLLOUT", "TEXT")
DRIVES = ("TL", "NUMBER", "SINCE", "UNTIL", "RELEASED BY", "EVIDENCE")


def main(argv: list[str] | None = None, prog: str = "python -m rollout.ledger_command") -> int:
    """Run a subcommand and return its exit code."""
    about = "Read and verify the ledger: which model number drove which TL from when to when."
    return run_subcommand(sys.argv[1:] if argv is None else argv, prog, about, SUBCOMMANDS)


def parser(prog: str) -> Parser:
    """The parser of a subcommand. `prog`: ends with its name."""
    name = prog.rpartition(" ")[2]
    summary = SUBCOMMANDS[name][1]
    parser = Parser(prog=prog, description=f"{summary[0].upper()}{summary[1:]}.")
    if name == "at":
        about = "such as 2026-11-24T08:15, local, or with a zone: 2026-11-24T07:15Z"
        parser.add_argument("time", type=_time, metavar="TIME", help=about)
    if name == "verify":
        about = "digest of a line that was kept: it must be in the ledger (default: none)"
        parser.add_argument("--line", metavar="SHA256", help=about)
    else:
        parser.add_argument("--tl", action="append", metavar="TL,...", help="TLs to show (default: all)")
    add_ledger(parser)
    return parser


def add_ledger(parser: Parser) -> None:
    """Add --city and --ledger."""
    parser.add_city(is_optional=True)
    parser.add_argument(
        "--ledger", type=Path, metavar="FILE", help=f"the ledger (default: {FILE} beside the city's description)"
    )


def ledger_path(args: argparse.Namespace) -> Path:
    """The file of --ledger, or of the city."""
    path: Path = args.ledger or config.load_if_exists(args.city).path.parent / FILE
    return path


def subcommand(argv: list[str], prog: str) -> int:
    """Run a subcommand. `prog`: ends with its name."""

    def run() -> int:
        name, args = prog.rpartition(" ")[2], parser(prog).parse_args(argv)
        ledger = LedgerFile(ledger_path(args))
        if not ledger.lines:
            raise InputError(f"{ledger.path}: there is no ledger; greenserve rollout begins one, or pass --ledger")
        if name == "verify":
            _verify(ledger, args.line)
        else:
            tls = names.select(args.tl or ["all"], list(ledger.state.tls), "--tl")
            header, rows = (LINES, _lines(ledger, tls)) if name == "show" else (DRIVES, _drives(ledger, tls, args.time))
            print(text_table.render(header, rows, text_table.terminal_width()))
        if ledger.cut_off:
            program.print_line(f"{ledger.path}: {ledger.cut_off}")
        return 0

    return program.run(run)


def _verify(ledger: LedgerFile, digest: str | None) -> None:
    """Print what binds a ledger that was read, and so follows the rules. `digest`: of a line that it must have."""
    if digest is not None and digest not in {ledger.state.digest, *(line.before for line in ledger.lines[1:])}:
        raise InputError(
            f"{ledger.path}: has no line with digest {digest}; lines were cut off or replaced: restore the file "
            "from its copy"
        )
    print(f"{ledger.path}: {len(ledger.lines)} lines follow the rules")
    print(f"last line: {ledger.state.digest}")
    print(f"head of {len(ledger.state.tls)} TLs: {ledger.state.head}")


def _lines(ledger: LedgerFile, tls: Sequence[str]) -> list[tuple[str, ...]]:
    return [
        (
            str(line.number),
            line.at,
            " ".join(filter(None, (line.kind, line.stage, line.verdict))),
            ", ".join(f"{tl}:{model.number}" for tl, model in line.models.items()),
            line.author,
            line.rollout,
            line.text,
        )
        for line in ledger.lines
        if not line.models or set(line.models) & set(tls)
    ]


def _drives(ledger: LedgerFile, tls: Sequence[str], at: datetime) -> list[tuple[str, ...]]:
    """By TL: its model at a time, from when to when, who released it, and the files behind its verdicts."""
    by_tl, when = drives_by_tl(ledger.lines), time_text(at)
    rows: list[tuple[str, ...]] = []
    for tl in tls:
        before = [drive for drive in by_tl[tl] if drive.begin <= when]
        if not before:
            rows.append((tl, "-", "-", "-", "not in the ledger yet", ""))
            continue
        drive, following = before[-1], by_tl[tl][len(before) :]
        by = f"{drive.line.author}, rollout {drive.line.rollout}" if drive.line.rollout else drive.line.author
        until = following[0].begin if following else "now"
        rows.append((tl, str(drive.model.number), drive.begin, until, by, _evidence(ledger.lines, tl, drive)))
    return rows


def _evidence(lines: Sequence[Line], tl: str, drive: Drive) -> str:
    rollout = drive.line.rollout
    own = [line for line in lines if rollout and line.rollout == rollout and tl in line.models]
    files = {name: digest[:SHOWN_DIGITS] for line in own for name, digest in line.evidence.items()}
    return ", ".join(f"{name} {digest}" for name, digest in files.items()) or "none"


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it like 2026-11-24T08:15") from None


if __name__ == "__main__":
    sys.exit(main())
