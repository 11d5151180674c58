"""Flags that commands share which read records: files, TLs, times, and what signal events mean."""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from city import config, names, program
from city.arguments import Parser, simulated_second
from city.config import City
from city.errors import InputError
from protos import policy_pb2 as pb
from records.run_files import RunReader, open_files

_HOURS_MINUTES = re.compile(r"\d{1,2}:\d{2}", re.ASCII)
_NO_TIME_OF_DAY = re.compile(r".*:[6-9]\d(?:[:.].*)?", re.ASCII | re.DOTALL)
"""More than 59 minutes or seconds."""


def subcommand(
    parser: Callable[[str], Parser], run: Callable[[argparse.Namespace], int]
) -> Callable[[list[str], str], int]:
    """The main function of a command, which parses its flags and runs it."""
    return lambda argv, prog: program.run(lambda: run(parser(prog).parse_args(argv)))


def add_record(parser: Parser) -> None:
    """The arguments that name a record."""
    parser.add_argument(
        "record", type=Path, metavar="FILE", help="a file of control --record, or a folder of a run's files"
    )
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="of a folder with several runs: the beginning of a run's id (default: the only run)",
    )


def open_record(args: argparse.Namespace) -> RunReader:
    """The record that the arguments name. Raises InputError."""
    return open_files([args.record], args.run)


def add_selection(parser: Parser, verb: str) -> None:
    """Add --tl, --from and --to. `verb`: what the command does with TLs and times."""
    parser.add_argument(
        "--tl",
        action="append",
        metavar="TL",
        help=f"TLs to {verb}, separated by commas or repeated (default: all)",
    )
    parser.add_argument(
        "--from",
        dest="from_s",
        type=time_flag,
        metavar="TIME",
        default=-math.inf,
        help="first simulated time: s, h:m such as 08:10, or h:m:s such as 08:10:05 (default: the record's first)",
    )
    parser.add_argument(
        "--to",
        dest="to_s",
        type=time_flag,
        metavar="TIME",
        default=math.inf,
        help=f"{verb} times before this one (default: all)",
    )


def check_times(args: argparse.Namespace) -> None:
    """Raise InputError if --to is not later than --from."""
    if args.to_s <= args.from_s:
        raise InputError(f"--to must be later than --from ({args.from_s:g} s); pass a later one")


def selected_tls(args: argparse.Namespace, contracts: Sequence[pb.PolicyContract]) -> list[str]:
    """The TLs of --tl, or all. Raises InputError for an unknown TL."""
    tl_of_signal = {signal: contract.tl for contract in contracts for signal in contract.signal_ids}
    return names.select(args.tl or ["all"], [contract.tl for contract in contracts], "--tl", tl_of_signal)


def time_flag(text: str) -> float:
    """A simulated second; hours and minutes alone are a time of day."""
    if _NO_TIME_OF_DAY.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: minutes and seconds end at 59; write one such as 08:10"
        )
    return simulated_second(f"{text}:00" if _HOURS_MINUTES.fullmatch(text) else text)


def add_atspm(parser: Parser, prefix: str = "") -> None:
    """Add --city and --zero; `prefix` begins their help texts."""
    parser.add_argument(
        "--city",
        type=Path,
        metavar="FILE",
        help=f"{prefix}city.toml whose phase numbers (phases) count (default: the recorded ones)",
    )
    parser.add_argument(
        "--zero",
        type=_date_and_time,
        metavar="TIME",
        help=f"{prefix}local date and time of simulated second 0, such as 2026-03-02T00:00 (default: midnight, UTC, of "
        "the day on which the run began)",
    )


def atspm_city(args: argparse.Namespace) -> City | None:
    """The city that the arguments name. Raises InputError."""
    return None if args.city is None else config.load(args.city)


def _date_and_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date and time; write it like 2026-03-02T07:00") from None
