"""Argument parsing with one-line InputErrors."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from city import program
from city.errors import InputError
from city.sumo_files import seconds, time_hint

CITY_FILE = Path("city.toml")
MAX_SECONDS = 1e9
"""Largest simulated time that a flag can ask for."""
N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations, which raises InputError instead of printing usage and exiting."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} ({self.prog} --help)")

    def add_city(self, is_optional: bool = False) -> None:
        """Add --city. `is_optional`: the program also runs without the file; the flag is then None by default."""
        condition = " if it exists" if is_optional else ""
        self.add_argument(
            "--city",
            type=Path,
            metavar="FILE",
            default=None if is_optional else CITY_FILE,
            help=f"the city's description (default: ./{CITY_FILE}{condition})",
        )

    def add_strict(self) -> None:
        """Add the refusal to leave a TL on its own program."""
        about = "refuse to run if a TL must be left on its own program (default: run without it)"
        self.add_argument("--strict", action="store_true", help=about)


def run_subcommand(
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    subcommands: Mapping[str, tuple[str, str]],
    version: str | None = None,
) -> int:
    """Run the subcommand that the first argument names; without one, only --help is valid. Return the exit code.

    Args:
        argv: the arguments (default: those of this process).
        prog: the command in messages.
        description: the command in the help.
        subcommands: name -> (main function as `program.load` takes it, a line about it).
        version: what --version prints; without it there is no such flag.
    """

    def without_subcommand(arguments: list[str], prog: str) -> int:
        parser = Parser(prog=prog, description=description)
        if version is not None:
            parser.add_argument("--version", action="version", version=version)
        commands = parser.add_subparsers(metavar="COMMAND", required=True)
        for name, (_, summary) in subcommands.items():
            commands.add_parser(name, help=summary, add_help=False)

        def run() -> int:
            parser.parse_args(arguments)
            return 0

        return program.run(run)

    modules = {name: module for name, (module, _) in subcommands.items()}
    return program.run_subcommand(argv, prog, modules, without_subcommand)


def bounded(kind: type[N], low: float, high: float) -> Callable[[str], N]:
    """A flag's type: a number from `low` to `high`; for argparse's `type`."""

    def parse(text: str) -> N:
        number = kind(text)
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text} must lie between {low:.10g} and {high:.10g}")
        return number

    parse.__name__ = kind.__name__  # argparse names it for a text that is no number
    return parse


def simulated_second(text: str) -> float:
    """Parse a flag's time in SUMO's formats, such as 29700 or 08:15:00; for argparse's `type`."""
    try:
        return seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write {time_hint(text)}") from None


def split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line at `--`: (arguments before it, arguments after it)."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def host_and_port(text: str, flag: str, example: str = "127.0.0.1:8500") -> tuple[str, int]:
    """Parse HOST:PORT, port 0 included. Raises InputError that names the flag or key."""
    try:
        parsed = urlsplit(f"//{text}")
        if parsed.hostname and parsed.port is not None and parsed.netloc == text:
            return parsed.hostname, parsed.port
    except ValueError:
        pass  # the port is not a number below 65536; reported below like every other mistake
    raise InputError(f"{flag} {text!r} must be HOST:PORT with a port below 65536, such as {example}")


def check_server(address: str | None, flag: str) -> None:
    """Raise InputError unless the address of a model server is HOST:PORT or unix:PATH; None is no address."""
    if address is not None and not address.startswith("unix:"):
        host_and_port(address, flag)
