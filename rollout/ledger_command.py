"""`greenserve ledger`: which model number drove which TL from when to when, who released it, on what evidence."""

import argparse
import sys
from datetime import datetime
from pathlib import Path

from city import config, names, program, text_table
from city.arguments import Parser, run_subcommand
from city.errors import InputError
from city.ledger import Drive, Line, drives_by_tl
from city.ledger_file import FILE, LedgerFile, time_text

SUBCOMMANDS = {
    "show": ("rollout.ledger_command:show", "list the lines of the ledger"),
    "verify": ("rollout.ledger_command:verify", "check every line by the rules"),
    "at": (
        "rollout.ledger_command:at",
        "show which model drove each TL at a time, who released it, and on what evidence",
    ),
}
"""By name: the entry point, and the summary."""
SHOWN_DIGITS = 12
"""Digits of a digest in tables."""


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
        parser.add_argument(
            "time",
            type=_time,
            metavar="TIME",
            help="such as 2026-11-24T08:15, local, or with a zone: 2026-11-24T07:15Z",
        )
    if name != "verify":
        parser.add_argument("--tl", action="append", metavar="TL,...", help="TLs to show (default: all)")
    if name == "verify":
        parser.add_argument(
            "--line", metavar="SHA256", help="digest of a line that was kept: it must be in the ledger (default: none)"
        )
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


def show(argv: list[str], prog: str) -> int:
    """List the lines."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        ledger = _existing(args)
        tls = _selected(args, ledger)
        rows = [_row(line) for line in ledger.lines if not line.models or set(line.models) & set(tls)]
        header = ("LINE", "TIME", "WHAT", "TLS", "AUTHOR", "ROLLOUT", "TEXT")
        print(text_table.render(header, rows, text_table.terminal_width()))
        _print_cut_off(ledger)
        return 0

    return program.run(run)


def verify(argv: list[str], prog: str) -> int:
    """Verify the ledger; --line finds one whose end was cut off."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        ledger = _existing(args)
        digests = [line.before for line in ledger.lines[1:]] + [ledger.state.digest]
        if args.line is not None and args.line not in digests:
            raise InputError(
                f"{ledger.path}: has no line with digest {args.line}; lines were cut off or replaced: restore the file "
                "from its copy"
            )
        print(f"{ledger.path}: {len(ledger.lines)} lines follow the rules")
        print(f"last line: {ledger.state.digest}")
        print(f"head of {len(ledger.state.tls)} TLs: {ledger.state.head}")
        _print_cut_off(ledger)
        return 0

    return program.run(run)


def at(argv: list[str], prog: str) -> int:
    """Show the models that drove the TLs at a time."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        ledger = _existing(args)
        by_tl = drives_by_tl(ledger.lines)
        when = time_text(args.time)
        rows = []
        for tl in _selected(args, ledger):
            found = [k for k, drive in enumerate(by_tl[tl]) if drive.begin <= when]
            rows.append(
                _drive_row(tl, by_tl[tl], found[-1], ledger)
                if found
                else (tl, "-", "-", "-", "not in the ledger yet", "")
            )
        print(
            text_table.render(
                ("TL", "NUMBER", "SINCE", "UNTIL", "RELEASED BY", "EVIDENCE"), rows, text_table.terminal_width()
            )
        )
        _print_cut_off(ledger)
        return 0

    return program.run(run)


def _existing(args: argparse.Namespace) -> LedgerFile:
    ledger = LedgerFile(ledger_path(args))
    if not ledger.lines:
        raise InputError(f"{ledger.path}: there is no ledger; greenserve rollout begins one, or pass --ledger")
    return ledger


def _selected(args: argparse.Namespace, ledger: LedgerFile) -> list[str]:
    return names.select(args.tl or ["all"], list(ledger.state.tls), "--tl")


def _row(line: Line) -> tuple[str, ...]:
    models = ", ".join(f"{tl}:{model.number}" for tl, model in line.models.items())
    what = " ".join(filter(None, (line.kind, line.stage, line.verdict)))
    return str(line.number), line.at, what, models, line.author, line.rollout, line.text


def _drive_row(tl: str, drives: list[Drive], k: int, ledger: LedgerFile) -> tuple[str, ...]:
    """A TL's row: its model, from when to when, who released it, and the files behind its verdicts."""
    drive = drives[k]
    evidence = {
        name: digest
        for line in ledger.lines
        if line.rollout and line.rollout == drive.line.rollout and tl in line.models
        for name, digest in line.evidence.items()
    }
    until = drives[k + 1].begin if k + 1 < len(drives) else "now"
    by = f"{drive.line.author}, rollout {drive.line.rollout}" if drive.line.rollout else drive.line.author
    files = ", ".join(f"{name} {digest[:SHOWN_DIGITS]}" for name, digest in evidence.items())
    return tl, str(drive.model.number), drive.begin, until, by, files or "none"


def _print_cut_off(ledger: LedgerFile) -> None:
    if ledger.cut_off:
        program.print_line(f"{ledger.path}: {ledger.cut_off}")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it like 2026-11-24T08:15") from None


if __name__ == "__main__":
    sys.exit(main())
