"""docs/reference/commands.md: every command with its arguments, as the commands' own parsers have them."""

import argparse
import re

import pytest

from greenserve import commands_page
from greenserve.__main__ import COMMANDS, main
from greenserve.commands_page import PAGE, PARSERS
from serving.__main__ import SUBCOMMANDS


def test_page_is_what_the_parsers_say():
    text = PAGE.read_text(encoding="utf-8")
    assert commands_page.page(text) == text, "run make commands-page"


def test_page_has_every_command_once():
    assert {name.split()[0] for name in PARSERS} == COMMANDS.keys()
    assert {f"serve {name}" for name in SUBCOMMANDS if name not in COMMANDS} <= PARSERS.keys()
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)\n\n<!-- parser: (.+) -->$", text, re.M) == [(name, name) for name in PARSERS]


@pytest.mark.parametrize("command", PARSERS)
def test_parser_is_the_one_that_the_command_uses(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    printed = capsys.readouterr().out
    assert printed == commands_page.parser(command).format_help() and printed.startswith(f"usage: greenserve {command}")


@pytest.mark.parametrize("command", PARSERS)
def test_default_in_a_help_text_is_the_parsers(command):
    wrong = []
    for action in commands_page.parser(command)._actions:
        said = commands_page.DEFAULT.search(action.help or "")
        if said is None or action.help == argparse.SUPPRESS:
            continue
        first = said[1].replace(", ", " ").split()[0].removeprefix("./")
        is_number = re.fullmatch(r"[\d.]+", first) is not None
        if is_number and action.default is not None:
            wrong += [action.dest] if float(first) != float(action.default) else []
        elif not is_number and isinstance(action.default, str) and action.default:
            wrong += [action.dest] if first != action.default else []
    assert wrong == []
