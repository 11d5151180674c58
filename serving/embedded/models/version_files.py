"""The versions in a model's folder, each with a fingerprint of its files."""

import os
from pathlib import Path

from city import model_folders

Fingerprint = tuple[tuple[str, int, int], ...]
"""The folder, then (path, bytes, mtime in ns) of each file in it. It changes while a copy is in progress."""


def versions(base_path: Path) -> dict[int, Fingerprint]:
    """Version -> fingerprint, ascending. Raises OSError if a folder cannot be listed.

    A version is a folder with a number as its name and a saved_model.pb; everything else
    is ignored, as in TensorFlow Serving.
    """
    return {
        number: _fingerprint(folder)
        for number, folder in model_folders.versions(base_path).items()
        if (folder / "saved_model.pb").is_file()
    }


def folder_of(fingerprint: Fingerprint) -> Path:
    """The version's folder."""
    return Path(fingerprint[0][0])


def _fingerprint(folder: Path) -> Fingerprint:
    files: list[tuple[str, int, int]] = []
    pending = [str(folder)]
    # os.scandir takes a fifth of pathlib's time; 1,000 models are polled every second, while they serve calls
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
