"""`greenserve record`: read, draw, export and repair the records of `greenserve control --record`. `greenserve
replay`."""

import importlib.util
import sys

from city import program
from city.arguments import run_subcommand
from city.errors import InputError

SUBCOMMANDS = {
    "info": ("records.info", "show what a record has, and what is missing"),
    "show": ("records.show", "show each decision of a time as a sentence"),
    "export": ("records.export", "write tables as CSV or Parquet, or files for ATSPM tools"),
    "report": ("records.report", "write a page with ATSPM pictures"),
    "certify": ("records.certify", "write what an auditor keeps of a run, or compare a record with it"),
    "repair": ("records.repair", "write a whole file from a damaged one"),
}
"""By name: the module, and the summary."""


def main(argv: list[str] | None = None, prog: str = "python -m records.command") -> int:
    """Run a subcommand and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in SUBCOMMANDS and _lacks_extra():
        return program.run(_without_extra)
    about = "Read, draw, export, certify and repair the records of greenserve control --record."
    return run_subcommand(arguments, prog, about, SUBCOMMANDS)


def replay(argv: list[str], prog: str) -> int:
    """Run `greenserve replay` and return its exit code."""
    if _lacks_extra():
        return program.run(_without_extra)
    return program.load("records.replay_command")(argv, prog)


def _lacks_extra() -> bool:
    return importlib.util.find_spec("mcap") is None


def _without_extra() -> int:
    raise InputError("records need the package mcap; install greenserve[record]")


if __name__ == "__main__":
    sys.exit(main())
