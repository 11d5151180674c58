"""`greenserve record report`: a page with the pictures of ATSPM (docs/atspm.md shows them)."""

import argparse
import math
from pathlib import Path

from city import names, program, whole_files
from city.arguments import Parser
from city.errors import InputError
from city.sumo_files import time_text
from records import atspm_flags
from records.atspm import corridor, from_record
from records.atspm.from_record import Selection
from records.atspm.pictures import page, time_space
from records.atspm.pictures.signal_view import views
from records.info import add_record, open_record
from records.run_files import RunReader
from records.show import time_flag


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write one HTML page with the pictures that signal engineers read: coordination diagrams, "
        "terminations, splits, volumes, delays, queues, and the time-space diagram of the longest corridor.",
    )
    add_record(parser)
    parser.add_argument(
        "--tl", action="append", metavar="TL", help="TLs to draw, separated by commas or repeated (default: all)"
    )
    first = "first simulated time: s, h:m such as 08:10, or h:m:s such as 08:10:05 (default: the record's first)"
    parser.add_argument("--from", dest="from_s", type=time_flag, metavar="TIME", help=first)
    parser.add_argument(
        "--to", dest="to_s", type=time_flag, metavar="TIME", help="draw times before this one (default: all)"
    )
    atspm_flags.add(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=Path("atspm.html"), help="page to write (default: ./atspm.html)"
    )
    return parser


def main(argv: list[str], prog: str) -> int:
    """Write the page, and print what is missing of the record."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        reader = open_record(args)
        selection = Selection(
            tls=_tls(reader, args),
            from_s=-math.inf if args.from_s is None else args.from_s,
            to_s=math.inf if args.to_s is None else args.to_s,
            vehicles_s=time_space.MAX_S,
            city=atspm_flags.city(args),
            zero=args.zero,
        )
        if selection.to_s <= selection.from_s:
            raise InputError(f"--to must be later than --from ({args.from_s:g} s); pass a later one")
        notes = report(reader, args.out, selection)
        print(args.out)
        for note in notes:
            print(f"note: {note}")
        return 0

    return program.run(run)


def report(reader: RunReader, out: Path, selection: Selection) -> tuple[str, ...]:
    """Write the page of a run and return the notes about it. Raises InputError."""
    recorded = from_record.read(reader, selection)
    period = recorded.period
    corridors = corridor.find(recorded.street, recorded.phases, set(recorded.programs))
    about = [
        f"Run {reader.city.run}, simulated time {time_text(period.begin_s)} to {time_text(period.end_s)}; "
        f"times of day count from {period.zero:%Y-%m-%d %H:%M:%S} at second 0.",
        "Bands above the pictures are control modes, or programs if there was no controller.",
    ]
    whole_files.write(out, page.page("Signal performance measures", about, views(recorded), corridors, recorded.notes))
    return recorded.notes


def _tls(reader: RunReader, args: argparse.Namespace) -> frozenset[str] | None:
    contracts = reader.city.contracts
    tl_of_signal = {signal: contract.tl for contract in contracts for signal in contract.signal_ids}
    if not args.tl:
        return None
    return frozenset(names.select(args.tl, [contract.tl for contract in contracts], "--tl", tl_of_signal))
