"""`python -m greenserve.commands_page`: write the tables of docs/reference/commands.md from the commands' parsers.

The tables stand between `<!-- parser: COMMAND -->` and `<!-- end -->`; the rest of the page is not changed.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from city import program
from city.arguments import Parser
from greenserve.__main__ import COMMANDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
CTL_COMMANDS = ("tls", "watch", "set", "pin", "reload", "pause", "resume", "step", "speed", "alarms", "ack", "log")
ROLLOUT_COMMANDS = ("status", "pause", "resume", "abort", "back", "adopt")
LEDGER_COMMANDS = ("show", "verify", "at")
PARSERS = {
    "city init": "greenserve.commands_page:city_init",
    "export": "export.config:parser",
    "inspect": "export.show.inspect_checkpoint:parser",
    "describe": "export.show.describe:parser",
    "fleet": "export.fleets.export_fleet:parser",
    "train": "training.__main__:parser",
    "pretrain train": "pretraining.train_command:parser",
    "pretrain select": "pretraining.select_command:parser",
    "pretrain evaluate": "pretraining.evaluate_command:parser",
    "rounds": "rounds.__main__:parser",
    "evaluate": "evaluation.__main__:parser",
    "rollout": "rollout.__main__:parser",
    **{f"rollout {name}": "rollout.__main__:request_parser" for name in ROLLOUT_COMMANDS},
    **{f"ledger {name}": "rollout.ledger_command:parser" for name in LEDGER_COMMANDS},
    "card": "rollout.model_card:parser",
    "serve": "serving.embedded.flags:parser",
    "serve config": "serving.tf_serving.__main__:parser",
    "predict": "serving.client.commands:predict_parser",
    "status": "serving.client.commands:status_parser",
    "verify": "serving.verify_command:parser",
    "check": "controller.check:parser",
    "detectors": "records.atspm.detectors:parser",
    "control": "controller.config:parser",
    "record info": "records.info:parser",
    "record show": "records.show:parser",
    "record export": "records.export:parser",
    "record report": "records.report:parser",
    "record certify": "records.certify:parser",
    "record repair": "records.repair:parser",
    "replay": "records.replay_command:parser",
    **{f"ctl {name}": "controller.operator.ctl:subparser" for name in CTL_COMMANDS},
    "guard": "controller.guard.__main__:parser",
}
"""By command: the function that returns its parser."""
BLOCK = re.compile(r"(<!-- (commands|parser: [a-z ]+) -->\n).*?(<!-- end -->)", re.S)
DEFAULT = re.compile(r"\s*\(default: ((?:[^()]|\([^()]*\))*)\)")
"""The default in a help text."""
CODE = re.compile(
    r"\[\w+\](?: \w+)?|(?<![\w-])--[a-zA-Z][\w-]*|(?<![\w./])(?:\./)?[\w/-]*\.(?:toml|json|csv|html|npy|npz|config)\b"
    rf"|greenserve (?:{'|'.join(sorted(PARSERS, reverse=True))})\b"
)
"""Keys of city.toml, flags, file names and commands in a help text, which Markdown shows as code."""


def parser(command: str) -> Parser:
    """The parser of a command."""
    module, _, function = PARSERS[command].partition(":")
    parser: Parser = getattr(importlib.import_module(module), function)(f"greenserve {command}")
    return parser


def city_init(prog: str) -> argparse.ArgumentParser:
    """The parser of `city init`, which is a subparser of `city`."""
    from city import init
    from signals import dialects

    city, _, command = prog.rpartition(" ")
    actions = init.parser(dialects.names(), city)._actions
    (subcommands,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
    parser: argparse.ArgumentParser = subcommands.choices[command]
    return parser


def page(text: str) -> str:
    """The page with new blocks."""
    return BLOCK.sub(lambda block: f"{block[1]}{_block(block[2])}\n{block[3]}", text)


def _block(name: str) -> str:
    if name == "commands":
        return _table(("command", "what it does"), _summaries())
    command = parser(name.removeprefix("parser: "))
    about = " ".join(filter(None, (command.description, command.epilog)))
    rows = [row for action in command._actions if (row := _row(action)) is not None]
    return f"{_code(about)}\n\n{_table(('argument', 'default', 'meaning'), rows)}"


def _summaries() -> Iterator[tuple[str, ...]]:
    for name, (_, summary) in COMMANDS.items():
        for command in PARSERS:
            if command.split()[0] == name:
                about = summary if command in (name, "city init") else parser(command).description or ""
                yield (
                    f"[`greenserve {command}`](#{command.replace(' ', '-')})",
                    (about[0].lower() + about[1:]).rstrip("."),
                )


def _row(action: argparse.Action) -> tuple[str, ...] | None:
    """An argument, its default and its meaning, or `None` if the help does not show it."""
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
        return None
    if action.choices and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = str(action.metavar or action.dest.upper())
    text = str(action.help or "") % {"choices": ", ".join(map(str, action.choices or ()))}
    default = DEFAULT.search(text)
    meaning = _code(DEFAULT.sub("", text, count=1))
    if not action.option_strings:
        repeated = f"{value} ..." if action.nargs in ("*", "+") else value
        name = f"`{repeated}`" if action.nargs in (None, "+") else f"`[{repeated}]`"
    else:
        first, *aliases = action.option_strings
        name = f"`{first}`" if action.nargs == 0 else f"`{first} {value}`"
        if aliases:
            name += f" (also {', '.join(f'`{alias}`' for alias in aliases)})"
    if default is not None:
        return name, _code(default[1]), meaning
    if action.required or action.nargs == 0:
        return name, "required" if action.required else "off", meaning
    return name, "none" if action.default in (None, "", []) else str(action.default).lower(), meaning


def _code(text: str) -> str:
    """A help text as Markdown."""
    return CODE.sub(lambda match: f"`{match[0]}`", text).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def main() -> int:
    """Write the page."""

    def write() -> int:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0

    return program.run(write)


if __name__ == "__main__":
    sys.exit(main())
