"""Text from untrusted sources, such as names of variables and models, on terminals and in logs."""

import re

MAX_CHARS = 10_000
"""Limit for a line."""
MAX_WORD_CHARS = 500
"""Limit for a word: names are shorter, and paths of this length are rare."""
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARS + 1},}}")


def printable(text: str, max_chars: int = MAX_CHARS) -> str:
    """The text as one line that a terminal shows as it is.

    Control characters, line breaks and marks of writing direction, with which a name could move the cursor or change
    the order of letters, become U+FFFD; a text or a word that is too long loses its middle.
    """
    shortened = _shortened(_LONG_WORD.sub(lambda word: _shortened(word[0], MAX_WORD_CHARS), text), max_chars)
    if shortened.isprintable():
        return shortened
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shortened)


def _shortened(text: str, max_chars: int) -> str:
    """The text, or its beginning and its end with three dots between."""
    if len(text) <= max_chars:
        return text
    begin = (max_chars - 3) // 2
    return f"{text[:begin]}...{text[begin + 3 - max_chars :]}"
