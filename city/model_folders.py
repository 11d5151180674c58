"""Folders of models: `models/<TL>/<number>/`, as TensorFlow Serving reads them."""

import os
from pathlib import Path


def versions(model: Path) -> dict[int, Path]:
    """The versions in a model's folder by number, ascending; empty if there is no such folder.

    Raises OSError if the folder cannot be listed, because its content is then unknown.
    """
    found = {int(folder.name): folder for folder in subfolders(model) if is_version(folder.name)}
    return dict(sorted(found.items()))


def is_version(name: str) -> bool:
    """Whether a folder's name is a version: a number that fits TensorFlow Serving's int64."""
    return name.isascii() and name.isdigit() and int(name) < 1 << 63


def subfolders(parent: Path) -> list[Path]:
    """The folders in a folder that are not hidden, by name. Raises OSError, as `versions`."""
    try:
        with os.scandir(parent) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []  # removed, so empty; any other error leaves the content unknown
