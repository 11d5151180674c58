"""Flags of the commands that make signal events of a record."""

import argparse
from datetime import datetime
from pathlib import Path

from city import config
from city.arguments import Parser
from city.config import City


def add(parser: Parser, prefix: str = "") -> None:
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


def city(args: argparse.Namespace) -> City | None:
    """The city that the arguments name. Raises InputError."""
    return None if args.city is None else config.load(args.city)


def _date_and_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date and time; write it like 2026-03-02T07:00") from None
