"""Folders of models: `models/<TL>/<number>/`, as TensorFlow Serving reads them."""

import os
from pathlib import Path


def versions(model: Path) -> dict[int, Path]:
    """The versions in a model's folder by number, ascending; empty if the folder does not exist.

    Raises OSError if the folder cannot be listed, because its content is then unknown.
    """
    return dict(sorted((int(folder.name), folder) for folder in subfolders(model) if is_version(folder.name)))


def is_version(name: str) -> bool:
    """True if a folder's name is a version: a number that fits TensorFlow Serving's int64."""
    return name.isascii() and name.isdigit() and int(name) < 1 << 63


def subfolders(parent: Path) -> list[Path]:
    """The subfolders that are not hidden, sorted by name. Raises OSError like `versions`."""
    try:
        with os.scandir(parent) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []  # any other error leaves the content unknown
