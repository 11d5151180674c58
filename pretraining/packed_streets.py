"""Streets as bytes, for jobs in processes that do not share a folder with this one."""

import contextlib
import functools
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from city import sumo_files
from city.errors import InputError
from pretraining.streets import CITY_TOML, SUMOCFG, has_own_demand
from simulation import model_files
from simulation.executors import Executor

MAX_KEPT_STREETS = 200
INPUTS = ("net-file", "additional-files")
"""Options of a .sumocfg whose files a simulation with random demand reads."""


@dataclass(frozen=True)
class PackedStreet:
    """The files of a street."""

    name: str
    """Name of its folder, by which its times are drawn."""
    archive: bytes


StreetFiles = Path | PackedStreet
"""A street's folder, or its files."""


def for_jobs(executor: Executor, folder: Path) -> StreetFiles:
    """A street as the jobs of an executor need it. Raises InputError."""
    return pack(folder) if executor.moves_files else folder


@functools.lru_cache(MAX_KEPT_STREETS)
def pack(folder: Path) -> PackedStreet:
    """The files that a street's SUMOCFG names. Raises InputError if one is missing or outside of the folder."""
    sumocfg = folder / SUMOCFG
    files = {SUMOCFG: sumocfg}
    options = list(INPUTS)
    if has_own_demand(folder):
        files[CITY_TOML] = folder / CITY_TOML
        options.append("route-files")
    for path in (path for option in options for path in sumo_files.listed_files(sumocfg, option)):
        # by its name, not where a link leads: files of links are packed
        place = Path(os.path.normpath(path))
        if not place.is_relative_to(folder.resolve()):
            raise InputError(
                f"{sumocfg}: names {place}, which other machines do not have; copy it into {folder}, or leave --ray out"
            )
        files[str(place.relative_to(folder.resolve()))] = path
    try:
        return PackedStreet(folder.name, zlib.compress(model_files.pack(files)))
    except OSError as error:
        raise InputError(
            f"{sumocfg}: {error.filename} cannot be read: {error.strerror}; fix its path in the .sumocfg"
        ) from None


@contextlib.contextmanager
def unpacked(street: StreetFiles) -> Iterator[Path]:
    """The folder of a street; that of a packed one is temporary."""
    if isinstance(street, Path):
        yield street
        return
    with tempfile.TemporaryDirectory(prefix="greenserve-") as scratch:
        folder = Path(scratch) / street.name
        model_files.unpack(zlib.decompress(street.archive), folder)
        yield folder
