"""The files of one run, read as one record."""

import hashlib
import itertools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from city.errors import InputError, os_errors
from controller.recording.record_writer import SUFFIX
from protos import record_pb2 as record
from records.record_reader import RecordedStep, RecordReader, missing_steps, wall_text

REPAIRED_SUFFIX = ".repaired" + SUFFIX
"""A repaired file, which is read in the place of the one beside it."""


@dataclass(frozen=True)
class RunFile:
    """A file of a run."""

    path: Path
    size_bytes: int
    city: record.City


@dataclass
class RunReader:
    """Reads a run from its first file to its last one."""

    files: list[RunFile]
    """In their order."""
    missing: list[str] = field(default_factory=list)
    """Missing parts, known once the steps have been read; empty if the run is whole."""

    @property
    def city(self) -> record.City:
        """The city of the first file."""
        return self.files[0].city

    def steps(self, tls: Container[str] | None = None, from_s: float = -math.inf) -> Iterator[RecordedStep]:
        """The steps of all files, once, in their order. What is missing before `from_s` need not be noted.

        Args:
            tls: read these TLs alone.
            from_s: simulated second from which on steps are read.
        """
        last: int | None = None
        for k, file in enumerate(self.files):
            is_first = k > 0
            with RecordReader(file.path) as reader:
                try:
                    for recorded in reader.steps(tls, from_s):
                        number = recorded.step.number
                        if is_first and last is not None and number != last + 1:
                            names = f"{self.files[k - 1].path.name} and {file.path.name}"
                            self.missing.append(f"between {names}: {missing_steps(last + 1, number)}")
                        is_first, last = False, number
                        yield recorded
                finally:  # also if reading stops before the file's end
                    if reader.missing:
                        self.missing.append(f"{file.path.name}: {reader.missing}")


def open_files(paths: Sequence[Path], run: str | None = None) -> RunReader:
    """The run in files in any order, or in folders of a run's files; its first file may be missing.

    Args:
        paths: files and folders.
        run: of folders with several runs, the beginning of its id.

    Raises InputError if there is no record, the files are of several runs, or which run is meant is unclear.
    """
    files, unreadable = files_of_run(paths, run)
    # a file that is named alone is read alone
    is_alone = len(files) == 1 and not any(path.is_dir() for path in paths)
    return RunReader(files, [*unreadable, *([] if is_alone else _missing_files(files))])


def files_of_run(paths: Sequence[Path], run: str | None = None) -> tuple[list[RunFile], list[str]]:
    """A run's files in their order, and why others of the folders cannot be read. Arguments and errors are those of
    `open_files`."""
    files: dict[Path, RunFile] = {}
    unreadable: list[str] = []
    for path in paths:
        if path.is_dir():
            found, others = _files_in(path)
            files.update((file.path, file) for file in _of_one_run(path, found, others, run))
            unreadable += others
            continue
        file = files[path] = _run_file(path)
        if run is not None and not file.city.run.startswith(run):
            raise InputError(f"{path}: is a file of run {file.city.run}, not {run}; leave --run out")
    in_order = sorted(files.values(), key=lambda file: file.city.file_number)
    for before, file in itertools.pairwise(in_order):
        if file.city.run != before.city.run:
            raise InputError(f"{before.path} and {file.path} are files of different runs; name the files of one run")
        if file.city.file_number == before.city.file_number:
            number = file.city.file_number
            raise InputError(f"{file.path}: is file {number} of its run, and so is {before.path}; name one of them")
    return in_order, unreadable


def _of_one_run(folder: Path, files: list[RunFile], unreadable: list[str], run: str | None) -> list[RunFile]:
    """The files of one run among those of a folder. Raises InputError."""
    if not files:
        nothing = f"{folder}: has no files *{SUFFIX}; name a folder of control --record"
        raise InputError(unreadable[0] if unreadable else nothing)
    runs = {file.city.run: file.city.begin_unix_ns for file in files}
    matching = [each for each in runs if each.startswith(run or "")]
    if len(matching) != 1:
        in_order = sorted(runs, key=lambda each: (runs[each], each))
        found = ", ".join(f"{each} (begun {wall_text(runs[each])})" for each in in_order)
        raise InputError(f"{folder}: has files of the runs {found}; pass --run with the begin of one id alone")
    return [file for file in files if file.city.run == matching[0]]


def _files_in(folder: Path) -> tuple[list[RunFile], list[str]]:
    """The files of a folder, and why others cannot be read. Raises InputError if two have the same place in a run."""
    files: dict[tuple[str, int], RunFile] = {}
    unreadable: list[str] = []
    paths = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.startswith(".")]
    repaired = {path for path in paths if path.name.endswith(REPAIRED_SUFFIX)}
    damaged = {path.with_name(path.name.removesuffix(REPAIRED_SUFFIX) + SUFFIX) for path in repaired}
    for path in paths:
        if path in damaged:
            continue
        try:
            file = _run_file(path)
        except InputError as error:
            unreadable.append(str(error))
            continue
        place = file.city.run, file.city.file_number
        if place in files:
            same = f"{files[place].path.name} and {path.name} are both file {place[1]} of run {place[0]}"
            raise InputError(f"{folder}: {same}; move one of them away")
        files[place] = file
    return list(files.values()), unreadable


def _run_file(path: Path) -> RunFile:
    with RecordReader(path) as reader:
        return RunFile(path, path.stat().st_size, reader.city)


def _missing_files(files: list[RunFile]) -> list[str]:
    """The files that a run must have had, before the last one that is there."""
    missing = []
    expected = 0
    for file in files:
        number = file.city.file_number
        if number > expected:
            which = f"file {expected} is" if number == expected + 1 else f"files {expected} to {number - 1} are"
            missing.append(f"{which} missing before {file.path.name}")
        expected = number + 1
    return missing


def chained(files: Sequence[RunFile]) -> list[dict[str, Any]]:
    """The files of a run with their digests, in hexadecimal.

    A file's `chain` is the SHA-256 of the chain before it and the file's own SHA-256, so that the last one is the
    digest of the whole run. Raises InputError.
    """
    chain, entries = "", []
    for file in files:
        with os_errors(f"{file.path}: cannot be read", "copy it again"), file.path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        chain = hashlib.sha256(f"{chain}{digest}".encode()).hexdigest()
        entries.append({"name": file.path.name, "bytes": file.size_bytes, "sha256": digest, "chain": chain})
    return entries
