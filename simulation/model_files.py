"""The exported models of a run, one version of each TL: find them in folders, or pack them for another machine."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from city import model_folders, names
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


def requested(
    items: Sequence[str], flag: str, tls: Sequence[str], tls_flag: str, models_dir: Path
) -> dict[str, tuple[Path, int | None]]:
    """By TL, the folder of models and the number that a flag names; None: the newest. Raises InputError.

    Args:
        items: the flag's values: TL=NUMBER, TL=DIR or TL=DIR:NUMBER.
        flag: its name.
        tls: TLs that it may name.
        tls_flag: the flag that names those.
        models_dir: the folder, if only a number is given.
    """
    result: dict[str, tuple[Path, int | None]] = {}
    index = names.Index(tls)
    for item in items:
        name, equals, text = item.partition("=")
        tl = index.find(name)
        if not equals or not text or tl is None:
            raise InputError(
                f"{flag} {item!r} must be TL=NUMBER, TL=DIR or TL=DIR:NUMBER with a TL of {tls_flag}, such as "
                f"{tls[0]}=3"
            )
        if tl in result:
            raise InputError(f"{flag} names {tl} twice; name it once")
        path, _, number = text.rpartition(":")
        if number.isascii() and number.isdigit():
            result[tl] = Path(path) if path else models_dir, int(number)
        else:
            result[tl] = Path(text), None
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
