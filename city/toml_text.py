"""Texts in TOML's syntax, for files that programs write and lines that users copy."""

import json
import re


def string(text: str) -> str:
    """A basic string. JSON has the same syntax, except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: str) -> str:
    """A key: bare if its characters permit it, else in quotes."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else string(name)


def comment(text: str) -> str:
    """The text of a comment: one line of ASCII characters."""
    return json.dumps(text)[1:-1]
