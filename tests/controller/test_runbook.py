"""The runbook that alarms carry is that of the documentation, as plain text."""

import pytest

from controller.alarms import KINDS
from controller.runbook import instructions, plain_text, sections
from tests.conftest import ROOT

DOCUMENTED = ROOT / "docs" / "runbook.md"


def test_the_packages_sections_are_those_of_the_documentation():
    documented = sections(DOCUMENTED.read_text(encoding="utf-8"))
    assert sections().keys() == KINDS.keys()
    assert sections() == {name: documented[name] for name in KINDS}, "copy the changed section into both files"


@pytest.mark.parametrize("name", KINDS)
def test_instructions_are_lines_without_links_or_tables(name):
    text = instructions(name)
    assert text.startswith(f"{KINDS[name].severity.capitalize()}. ") and len(text) > 100
    assert "](" not in text and "|" not in text and ".md" not in text and "\n\n" not in text
    assert all(line == line.strip() for line in text.split("\n"))


def test_a_table_is_a_list():
    assert "\n- unavailable: see GreenserveServerDown\n" in instructions("GreenserveManyTLsInFallback").replace("`", "")


def test_paragraphs_items_and_links_that_go_over_lines_are_single_lines():
    text = "Critical. One\ntwo.\n\n- a [link\n  over lines](x.md#y): z\n- b\n\nThree."
    assert plain_text(text) == "Critical. One two.\n- a link over lines: z\n- b\nThree."
