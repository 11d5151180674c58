"""The exported models of a run, one version of each TL: find them in folders, or pack them for another machine."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from city import model_folders
from city.errors import InputError

Versions = Mapping[str, Path]
"""TL -> folder of a version, such as `models/SA101/3`."""


def find(models_dir: Path, model_numbers: Mapping[str, int | None]) -> dict[str, Path]:
    """Find the versions of TLs in a folder of models. Raises InputError if one is missing.

    `model_numbers`: by TL; `None` means the newest.
    """
    result = {}
    for tl, number in model_numbers.items():
        folder = models_dir.resolve() / tl
        versions = model_folders.versions(folder)
        if not versions:
            raise InputError(
                f"there is no model in {models_dir / tl}; export it first (greenserve export --tl {tl} --models-dir "
                f"{models_dir})"
            )
        version = max(versions) if number is None else number
        if version not in versions:
            available = ", ".join(map(str, versions))
            raise InputError(
                f"there is no model {models_dir / tl / str(version)}; {tl} has {available}: choose one of them"
            )
        result[tl] = folder / str(version)
    return result


def pack(files: Mapping[str, Path]) -> bytes:
    """Pack files and folders as a tar archive. `files`: by name in the archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for name, path in files.items():
            archive.add(path, name)
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Write the files of an archive of `pack` into a folder."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def pack_versions(versions: Versions) -> bytes:
    """Pack versions as a tar archive of folders `TL/NUMBER`."""
    return pack({f"{tl}/{path.name}": path for tl, path in versions.items()})


def unpack_versions(data: bytes, folder: Path) -> dict[str, Path]:
    """Write the versions of an archive of `pack_versions` into a folder, and return them."""
    unpack(data, folder)
    return {path.parent.name: path for path in sorted(folder.glob("*/*"))}
