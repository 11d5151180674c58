"""What lies in a model's folder: its versions."""

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
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone while it was looked at; any other error says nothing about what is there


def _fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    marks = [(str(folder), 0, 0)]
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except OSError:
            continue
        marks.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(marks)
