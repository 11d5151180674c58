"""What lies in a model's folder: its versions."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class VersionFiles:
    path: Path
    fingerprint: tuple[tuple[str, int, int], ...]
    """The folder, then (name, bytes, mtime in ns) of every file: changes while a copy is under way."""


def versions(base_path: Path) -> dict[int, VersionFiles]:
    """Version -> files. A version is a folder named by a number that holds a
    saved_model.pb; everything else is left alone, as TensorFlow Serving does.

    Raises OSError where a folder cannot be listed: what is there is then unknown.
    """
    return {
        int(folder.name): VersionFiles(folder, _fingerprint(folder))
        for folder in _folders(base_path)
        if is_version(folder.name) and (folder / "saved_model.pb").is_file()
    }


def is_in(fingerprint: tuple[tuple[str, int, int], ...], base_path: Path) -> bool:
    """Whether a version is one of this folder."""
    return Path(fingerprint[0][0]).parent == base_path


def scan(models_dir: Path) -> dict[str, dict[int, VersionFiles]]:
    """Model -> versions, of every model in a folder that has one. Raises OSError."""
    found = {home.name: versions(home) for home in _folders(models_dir)}
    return {name: there for name, there in found.items() if there}


def is_version(name: str) -> bool:
    """Whether a folder's name is a version: a number that fits TensorFlow Serving's int64."""
    return name.isascii() and name.isdigit() and int(name) < 1 << 63


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone while it was looked at; any other error says nothing about what is there


def _fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    marks: list[tuple[str, int, int]] = []
    left = [str(folder)]
    # a look at 1,000 models is made every second beside their calls: os.scandir costs a fifth of pathlib
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    status = entry.stat()
                    marks.append((entry.path, status.st_size, status.st_mtime_ns))
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:
            continue
    return ((str(folder), 0, 0), *sorted(marks))
