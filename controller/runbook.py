"""The instructions for an alarm: the section of the runbook that has its name, as plain text.

runbook.md has the sections of the alarms that a controller itself raises, word for word as docs/runbook.md, which an
installed package does not have.
"""

import functools
import re
from importlib import resources

_SECTION = re.compile(r"^### (\w+)\n\n(.*?)(?=^#|\Z)", re.M | re.S)
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


@functools.cache
def sections(text: str | None = None) -> dict[str, str]:
    """The sections of a runbook by name, in Markdown. `text`: None for the package's own."""
    if text is None:
        text = (resources.files("controller") / "runbook.md").read_text(encoding="utf-8")
    return {name: body.strip() for name, body in _SECTION.findall(text)}


@functools.cache
def instructions(name: str) -> str:
    """Return the instructions for an alarm: a line for each paragraph or item; an item begins with "- ".

    Raises KeyError for a name that is not an alarm's.
    """
    return plain_text(sections()[name])


def plain_text(markdown: str) -> str:
    """Paragraphs, lists and tables of two columns without their line breaks, links and tables' heads."""
    lines: list[str] = []
    for block in re.split(r"\n\n+", markdown.strip()):
        if block.startswith("|"):
            rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in block.split("\n")[2:]]
            lines += [f"- {': '.join(row)}" for row in rows]
        else:
            lines += [" ".join(part.split()) for part in re.split(r"\n(?=- )", block)]
    return "\n".join(_LINK.sub(r"\1", line) for line in lines)
