"""Tables of text on a terminal."""

import shutil
import sys
import textwrap
from collections.abc import Sequence

from city.printable import printable

MIN_WRAPPED = 40
"""Minimum width of a wrapped column, in characters; in less room the column begins a line of its own."""


def render(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """The lines of a table, with columns as wide as their widest cell; the last column is not padded.

    `width`: of the terminal, in characters. The last column is wrapped to it, below the row if the others leave too
    little room.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header) - 1)]
    lines: list[str] = []
    for row in (header, *rows):
        begin = "  ".join([*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), ""])
        if width is None or len(begin) + len(row[-1]) <= width:
            lines.append(begin + row[-1])
        elif width - len(begin) >= MIN_WRAPPED:
            first, *more = _lines_of(row[-1], width - len(begin))
            lines += [begin + first, *(" " * len(begin) + line for line in more)]
        else:
            lines += [begin, *(f"    {line}" for line in _lines_of(row[-1], width - 4))]
    return "\n".join(line.rstrip() for line in lines)


def wrapped(text: str, width: int | None) -> str:
    """Text in lines of a terminal's width; the lines after the first one are indented."""
    if width is None or len(text) <= width:
        return text
    first, *more = _lines_of(text, width - 4)
    return "\n".join([first, *(f"    {line}" for line in more)])


def terminal_width() -> int | None:
    """Characters in a line of the terminal; None if stdout is not one: programs read whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _lines_of(text: str, width: int) -> list[str]:
    # a path or an id is never divided, so that it can be copied
    return textwrap.wrap(text, max(width, MIN_WRAPPED), break_long_words=False, break_on_hyphens=False) or [""]
