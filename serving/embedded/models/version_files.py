"""The versions in a model's folder, and a fingerprint of each version's files."""

import os
from dataclasses import dataclass
from pathlib import Path

from city import model_folders

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
        number: VersionFiles(folder, _fingerprint(folder))
        for number, folder in model_folders.versions(base_path).items()
        if (folder / "saved_model.pb").is_file()
    }


def is_in(fingerprint: Fingerprint, base_path: Path) -> bool:
    """Whether the version of this fingerprint is in this model folder."""
    return Path(fingerprint[0][0]).parent == base_path


def scan(models_dir: Path) -> dict[str, dict[int, VersionFiles]]:
    """Model -> versions, of every model in a folder that has a version. Raises OSError."""
    models = {folder.name: versions(folder) for folder in model_folders.subfolders(models_dir)}
    return {name: files for name, files in models.items() if files}


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
