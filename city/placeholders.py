"""Recognise files that stand in the place of the one that a user meant: pointers of Git LFS, web pages."""

from pathlib import Path

_BEGIN_BYTES = 200
"""Bytes that are enough to tell."""


def remedy(path: Path) -> str:
    """How to get the file that was meant, if the beginning of this one shows it; else "". Raises OSError."""
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES).lstrip().lower()
    if begin.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS: fetch the file itself with git lfs pull"
    if begin.startswith((b"<!doctype html", b"<html")):
        return "it is a web page: download the file itself (on GitHub, its raw version)"
    return ""
