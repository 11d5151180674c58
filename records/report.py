"""`greenserve record report`: a page with the pictures of ATSPM (docs/atspm.md shows them)."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from city import whole_files
from city.arguments import Parser
from city.sumo_files import time_text
from records.atspm import corridor, from_record
from records.atspm.from_record import RecordSelection
from records.atspm.pictures import page, time_space
from records.atspm.pictures.signal_view import views
from records.record_flags import (
    add_atspm,
    add_record,
    add_selection,
    atspm_city,
    check_times,
    open_record,
    selected_tls,
    subcommand,
)
from records.run_files import RunReader


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write one HTML page with the pictures that signal engineers read: coordination diagrams, "
        "terminations, splits, volumes, delays, queues, and the time-space diagram of the longest corridor.",
    )
    add_record(parser)
    add_selection(parser, "draw")
    add_atspm(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=Path("atspm.html"), help="page to write (default: ./atspm.html)"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the page, and print what is missing of the record."""
    reader = open_record(args)
    check_times(args)
    selection = RecordSelection(
        tls=frozenset(selected_tls(args, reader.city.contracts)),
        from_s=args.from_s,
        to_s=args.to_s,
        vehicles_s=time_space.MAX_S,
        city=atspm_city(args),
        zero=args.zero,
    )
    notes = report(reader, args.out, selection)
    print(args.out)
    for note in notes:
        print(f"note: {note}")
    return 0


main = subcommand(parser, run)


def report(reader: RunReader, out: Path, selection: RecordSelection) -> tuple[str, ...]:
    """Write the page of a run and return the notes about it. Raises InputError."""
    recorded = from_record.read(reader, selection)
    period = recorded.period
    corridors = corridor.find(recorded.street, recorded.phases, set(recorded.programs))
    about = [
        f"Run {reader.city.run}, simulated time {time_text(period.begin_s)} to {time_text(period.end_s)}; "
        f"times of day count from {period.zero:%Y-%m-%d %H:%M:%S} at second 0.",
        f"Requests that the safety rules replaced, by reason: {_counts(recorded.overrides)}.",
        "Bands above the pictures are control modes, or programs if there was no controller.",
    ]
    whole_files.write(out, page.page("Signal performance measures", about, views(recorded), corridors, recorded.notes))
    return recorded.notes


def _counts(overrides: Mapping[str, int]) -> str:
    ordered = sorted(overrides.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {reason}" for reason, count in ordered) or "none"
