"""The versions in a model's folder, and a fingerprint of each version's files."""

import os
from dataclasses import dataclass
from pathlib import Path

Fingerprint = tuple[tuple[str, int, int], ...]
"""The folder, then (path, bytes, mtime in ns) of every file in it: changes while a copy is in progress."""


@dataclass(frozen=True)
class VersionFiles:
    path: Path
    fingerprint: Fingerprint


def versions(base_path: Path) -> dict[int, VersionFiles]:
    """Version -> files. Raises OSError if a folder cannot be listed, because its content is then unknown.

    A version is a folder that is named by a number and holds a saved_model.pb; as
    in TensorFlow Serving anything else is ignored.
    """
    return {
        int(folder.name): VersionFiles(folder, _fingerprint(folder))
        for folder in _folders(base_path)
        if is_version(folder.name) and (folder / "saved_model.pb").is_file()
    }


def is_in(fingerprint: Fingerprint, base_path: Path) -> bool:
    """Whether the version of this fingerprint is in this model folder."""
    return Path(fingerprint[0][0]).parent == base_path


def scan(models_dir: Path) -> dict[str, dict[int, VersionFiles]]:
    """Model -> versions, of every model in a folder that has a version. Raises OSError."""
    models = {folder.name: versions(folder) for folder in _folders(models_dir)}
    return {name: files for name, files in models.items() if files}


def is_version(name: str) -> bool:
    """Whether a folder's name is a version: a number that fits TensorFlow Serving's int64."""
    return name.isascii() and name.isdigit() and int(name) < 1 << 63


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []  # removed, so empty; any other error leaves the content unknown


def _fingerprint(folder: Path) -> Fingerprint:
    files: list[tuple[str, int, int]] = []
    pending = [str(folder)]
    # 1,000 models are polled every second beside their calls: os.scandir takes a fifth of pathlib's time
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    status = entry.stat()
                    files.append((entry.path, status.st_size, status.st_mtime_ns))
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return ((str(folder), 0, 0), *sorted(files))
