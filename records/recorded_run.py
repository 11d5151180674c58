"""A recorded run, read from its files: one file, or all files of a run in their order."""

import contextlib
import copy
import gzip
import io
import math
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from city.errors import InputError
from city.version import VERSION
from controller.recording import run_start
from controller.recording.run_start import RunStart
from controller.sumo.network import check_contract_matches_network
from protos import record_pb2 as record
from protos.loop_state_pb2 import LoopState
from records.record_reader import REMEDY, RecordedStep, RecordReader
from records.run_files import files_of_run

MAX_UNPACKED_BYTES = 1 << 30
"""Largest size of all network files of a record, unpacked."""
READ_BYTES = 1 << 20
HALTING_MPS = 0.1
MALFORMED = (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError)
"""Exceptions that the project's own code may raise for a record that another version wrote, or that was changed."""


class RecordedRun:
    """The files of one run, its start, and its steps as far as they are without a hole."""

    def __init__(self, paths: Sequence[Path], run: str | None = None) -> None:
        """Read the run's start from its first file.

        Args:
            paths: files of the run in any order, or folders of them.
            run: of folders with several runs, the beginning of its id.

        Raises InputError if they are not one run from its beginning or from a file with a state on, or this version
        cannot read it.
        """
        files, self.missing = files_of_run(paths, run)
        """What cannot be read, and costs no step: other files of the folders, and damage, known once it was read."""
        self._files = [(file.city.file_number, file.path) for file in files]
        first, self.path = self._files[0]
        """The first of the files."""
        with RecordReader(self.path) as reader:
            self.city = reader.city
            self.start = start_of(self.path, reader.city, reader.attachments)
            state = reader.state if first > 0 else None
        if first > 0 and state is None:
            raise InputError(
                f"{self.path}: is file {first} of its run, the run's first file (0) is missing, and this one does not "
                "have the state of the decisions before it, as files of earlier versions: name the first file too, or "
                "the run's folder"
            )
        self._begin_at(state)

    def _begin_at(self, state: LoopState | None) -> None:
        self.state = state
        """State of the decision loop before the first step; None at the run's beginning."""
        self.first_number = state.next_number if state is not None else 0
        self.begin_s = state.now_s if state is not None else self.city.begin_s
        self.ended = ""
        """Why the steps ended before the run did, after `steps` has ended; "" if they did not."""
        self.rest: RecordedRun | None = None
        """The run from the next state after these steps on, after `steps` has ended; None if there is none."""

    def steps(self) -> Iterator[RecordedStep]:
        """The steps from the first one, up to the run's end or the first hole. Can be read several times."""
        self.ended, self.rest = "", None
        following, at_s = self.first_number, self.begin_s
        for k, (number, path) in enumerate(self._files):
            if number != self._files[0][0] + k and not self.ended:
                self.ended = f"file {self._files[0][0] + k} of the run is missing after second {at_s:g}"
            with RecordReader(path) as reader:
                # one step is kept back, because the last one of a file that is cut off may lack TLs
                kept: RecordedStep | None = None
                for step in reader.steps(from_s=self.begin_s if k == 0 else -math.inf):
                    if kept is not None:
                        yield kept
                        kept = None
                    if step.step.number < self.first_number:
                        continue
                    if step.step.number != following and not self.ended:
                        self.ended = f"{path}: step {following} is missing after second {at_s:g}"
                    if not self.ended:
                        kept = step
                        following += 1
                        at_s = step.step.at_s
                    elif step.state is not None:
                        self.rest = self._from(k, step.state)
                        return
                if reader.may_lack_steps and not self.ended:
                    self.ended = f"{path}: {reader.missing}, before second {at_s:g}"
                elif kept is not None:
                    yield kept
                if reader.missing and not reader.may_lack_steps and f"{path}: {reader.missing}" not in self.missing:
                    self.missing.append(f"{path}: {reader.missing}")

    def _from(self, file: int, state: LoopState) -> "RecordedRun":
        """The run from a state in one of its files on."""
        rest = copy.copy(self)
        rest._files = self._files[file:]
        rest._begin_at(state)
        return rest


def start_of(path: Path, city: record.City, attachments: Mapping[str, bytes]) -> RunStart:
    """The start of a run. Raises InputError if this version cannot read it."""
    with tempfile.TemporaryDirectory(prefix="greenserve-record-") as folder:
        files = _unpacked(path, city, attachments, Path(folder))
        try:
            start = run_start.decode(city, files)
            for contract in start.contracts:
                check_contract_matches_network(contract, start.street, is_recorded=True)
            if list(start.start.signals) != [signal for contract in start.contracts for signal in contract.signal_ids]:
                raise ValueError("its signals are not those of its contracts")
            if list(city.lanes) != list(start.tracked_lanes().lanes):
                raise ValueError(f"it has readings of {len(city.lanes)} lanes, which are not those of its contracts")
            return start
        except InputError as error:
            # the user does not know the unpacked file's name
            raise InputError(f"{path}: {str(error).replace(folder, 'its attachments')}") from None
        except MALFORMED as error:
            raise InputError(
                f"{path}: a record of version {city.greenserve_version or 'unknown'} cannot be read by version "
                f"{VERSION}: {error}; use the version that wrote it"
            ) from None


def _unpacked(path: Path, city: record.City, attachments: Mapping[str, bytes], folder: Path) -> dict[str, Path]:
    """Unpack the network's files, by their names in the record. Raises InputError."""
    files: dict[str, Path] = {}
    remaining = MAX_UNPACKED_BYTES
    for k, name in enumerate(city.network_files):
        if name not in attachments:
            raise InputError(f"{path}: lacks its attachment {name}; copy the file again")
        files[name] = folder / f"{k}.xml"  # not the attachment's name, which may lead out of the folder
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(attachments[name])) as packed, files[name].open("wb") as file:
                while remaining >= 0 and (part := packed.read(READ_BYTES)):
                    file.write(part)
                    remaining -= len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path}: its attachment {name} is damaged ({error}); copy the file again") from None
        if remaining < 0:
            raise InputError(
                f"{path}: its network is larger than {MAX_UNPACKED_BYTES >> 20} MB unpacked and is not read; record "
                "the run again"
            )
    return files


@contextlib.contextmanager
def unpacked_network(path: Path, city: record.City, attachments: Mapping[str, bytes]) -> Iterator[Path]:
    """The network's file of a record, unpacked while the context lasts. Raises InputError if it is missing or
    damaged."""
    with tempfile.TemporaryDirectory(prefix="greenserve-record-") as folder:
        files = _unpacked(path, city, attachments, Path(folder))
        if not city.network_files:
            raise InputError(f"{path}: has no network; {REMEDY}")
        yield files[city.network_files[0]]


class LaneCounts:
    """Vehicles on the lanes of a run's steps: those that SUMO counted, and those that were read one by one."""

    def __init__(self, tls: Sequence[str], row: Mapping[str, int], lanes_of: Mapping[str, Collection[str]]) -> None:
        """`tls`: in the order of the contracts. `row`: of a lane. `lanes_of`: by TL, the lanes that are counted."""
        self._tls, self._row, self._lanes_of = tls, row, lanes_of
        self._rows: dict[tuple[int, ...], list[int]] = {}
        """By TLs of a step, the rows of its counts."""

    def of(self, step: record.Step) -> tuple[dict[int, int], dict[int, int]]:
        """(vehicles, halting vehicles) by row of the lanes of a step's readings."""
        due, readings = tuple(step.due), step.readings
        if due not in self._rows:
            tls = [self._tls[k] for k in due if k < len(self._tls)]
            self._rows[due] = sorted({self._row[lane] for tl in tls for lane in self._lanes_of[tl]})
        read = list(zip(readings.vehicle_lane, readings.speed_mps, strict=False))
        vehicles = Counter(lane for lane, _ in read)
        halting = Counter(lane for lane, speed_mps in read if speed_mps < HALTING_MPS)
        # numbers that SUMO counted take precedence
        return (
            {**vehicles, **dict(zip(self._rows[due], readings.vehicles, strict=False))},
            {**halting, **dict(zip(self._rows[due], readings.halting, strict=False))},
        )
