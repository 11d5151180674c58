"""Tables of text on a terminal."""

from collections.abc import Sequence

from city.printable import printable


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a table, with columns as wide as their widest cell; the last column is not padded."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in (header, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
