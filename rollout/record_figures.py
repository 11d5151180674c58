"""Figures of TLs from the record that a running controller writes: with the new model, and before it.

Each decision counts the simulated time since the TL's decision before, at most MAX_GAP_S. A decision without an answer
belongs to the new model while it is wanted, else to the model that answered last. If more than COMMON_SHARE of the
other TLs have no answer either, it says nothing of a model and does not count as missing. Time in which an operator has
set the TL is left out.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from city.errors import InputError
from controller.recording.record_writer import SUFFIX
from controller.recording.run_start import RunStart
from protos import record_pb2 as record
from records.record_reader import RecordedStep, RecordReader
from records.recorded_run import LaneCounts, start_of
from rollout.verdicts import BIN_S, Figures
from serving.errors import Unavailable

log = logging.getLogger("greenserve.rollout")

DAY_S = 86400.0
MAX_GAP_S = 30.0
"""Simulated time between two decisions that is counted at most."""
MAX_DAYS = 14
"""Earlier record is not compared."""
COMMON_SHARE = 0.5
OPERATOR_MODES = (record.TlStep.FIXED, record.TlStep.HOLD)


@dataclass
class TlFigures:
    """A TL's figures by time of day: the model that is judged, and the stable one."""

    new: dict[int, Figures] = field(default_factory=dict)
    before: dict[int, Figures] = field(default_factory=dict)


@dataclass
class _Lanes:
    """The lanes of one run's TLs."""

    free_s: dict[str, dict[int, float]]
    """By TL and row of its incoming lanes, the free travel time in s."""
    counts: LaneCounts


def record_files(folder: Path) -> list[Path]:
    """The files of a record's folder in the order of their begin, which their names tell. Raises InputError."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; start the controller with --record {folder}")
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


Times = Sequence[tuple[int, int]]
"""(begin, end) on the wall clock, in ns: when the new model was wanted."""


class RecordFigures:
    """The figures of TLs in a record's folder. A file that has not grown is read once."""

    def __init__(self, folder: Path, targets: Mapping[str, int], stable: Mapping[str, int]) -> None:
        """`targets`, `stable`: TL -> the number that is judged, and the one that it is compared with. Raises
        InputError."""
        self._folder, self.targets, self.stable = folder, targets, stable
        self._lanes: dict[str, _Lanes] = {}
        """By run."""
        self._read: dict[Path, tuple[int, dict[str, TlFigures]]] = {}
        """By file, its size when it was read, and its figures."""
        record_files(folder)

    def figures(self, wanted: Mapping[str, Times]) -> dict[str, TlFigures]:
        """The figures of all files of the newest MAX_DAYS. A file that cannot be read is left out, with a warning.

        `wanted`: by TL, when the new model was wanted. Its decisions before the first of these times are left out.
        """
        totals = {tl: TlFigures() for tl in self.targets}
        for path in newest_days(record_files(self._folder)):
            size = path.stat().st_size
            if path not in self._read or self._read[path][0] != size:
                self._read[path] = size, self._of_file(path, wanted)
            for tl, each in self._read[path][1].items():
                for total, own in ((totals[tl].new, each.new), (totals[tl].before, each.before)):
                    for k, figures in own.items():
                        total.setdefault(k, Figures()).add(figures)
        return totals

    def files(self) -> list[dict[str, object]]:
        """Name, bytes and digest of the files that the figures rest on."""
        return [sha256_of(path) for path in self._read if path.exists()]

    def _of_file(self, path: Path, wanted: Mapping[str, Times]) -> dict[str, TlFigures]:
        figures = {tl: TlFigures() for tl in self.targets}
        try:
            with RecordReader(path) as reader:
                run = reader.city.run
                if run not in self._lanes:
                    self._lanes[run] = _lanes(start_of(path, reader.city, reader.attachments), self.targets)
                _add_file(reader.steps(), self._lanes[run], self.targets, self.stable, wanted, figures)
        except (InputError, FileNotFoundError) as error:
            log.warning("%s is left out: %s", path.name, error)
        return figures


def newest_days(files: Sequence[Path]) -> list[Path]:
    """The files that begin at most MAX_DAYS before the newest one, by their names."""
    if not files:
        return []
    newest = datetime.strptime(files[-1].name[:8], "%Y%m%d") if files[-1].name[:8].isdigit() else None
    oldest = f"{newest - timedelta(days=MAX_DAYS):%Y%m%d}" if newest is not None else ""
    return [path for path in files if path.name >= oldest]


def sha256_of(path: Path) -> dict[str, object]:
    """Name, size and digest of a file as far as it is written now."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"name": path.name, "bytes": stream.tell(), "sha256": digest}


def _lanes(start: RunStart, tls: Iterable[str]) -> _Lanes:
    lanes = start.tracked_lanes()
    free_s: dict[str, dict[int, float]] = {}
    for contract in start.contracts:
        if contract.tl not in tls:
            continue
        rows = free_s.setdefault(contract.tl, {})
        for signal in (start.street.signals[name] for name in contract.signal_ids):
            for pairs, speed_mps in zip(signal.links, signal.approach_mps, strict=True):
                for lane, _ in pairs:
                    if lane in lanes.row and speed_mps > 0:
                        rows[lanes.row[lane]] = start.street.lane_length_m[lane] / speed_mps
    return _Lanes(free_s, LaneCounts([each.tl for each in start.contracts], lanes.row, start.to_read.lanes_of))


def _add_file(
    steps: Iterator[RecordedStep],
    lanes: _Lanes,
    targets: Mapping[str, int],
    stable: Mapping[str, int],
    wanted: Mapping[str, Times],
    figures: Mapping[str, TlFigures],
) -> None:
    last_s: dict[str, float] = {}
    last_version: dict[str, int] = {}
    for recorded in steps:
        decided = {tl: each for tl, each in recorded.tls.items() if each.HasField("decision")}
        vehicles, halting = lanes.counts.of(recorded.step)
        for tl in decided.keys() & lanes.free_s.keys():
            step, at_s = decided[tl], recorded.step.at_s
            unanswered = targets[tl] if _is_in(wanted[tl], recorded.publish_ns) else last_version.get(tl, 0)
            version = step.decision.version or unanswered
            seconds = min(at_s - last_s.get(tl, at_s), MAX_GAP_S)
            last_s[tl], last_version[tl] = at_s, version
            is_new = version == targets[tl]
            if step.mode in OPERATOR_MODES and step.decision.mode_before in OPERATOR_MODES:
                continue
            if version not in (targets[tl], stable[tl]) or (
                is_new and (not wanted[tl] or recorded.publish_ns < wanted[tl][0][0])
            ):
                continue
            others = [each.decision for other, each in decided.items() if other != tl]
            moving = {row: max(vehicles.get(row, 0) - halting.get(row, 0), 0) for row in lanes.free_s[tl]}
            bins = figures[tl].new if is_new else figures[tl].before
            bins.setdefault(int(at_s % DAY_S // BIN_S), Figures()).add(
                Figures(
                    seconds=seconds,
                    decisions=1,
                    missing=_is_missing(step.decision, others),
                    overridden=any(states.overrides for states in step.states),
                    vehicles=sum(count * seconds / lanes.free_s[tl][row] for row, count in moving.items()),
                    halting_s=sum(halting.get(row, 0) for row in lanes.free_s[tl]) * seconds,
                )
            )


def _is_missing(decision: record.Decision, others: Sequence[record.Decision]) -> bool:
    """True if an answer is missing, and those of most other TLs are not: a server that is not reached says nothing of a
    model."""
    is_missing = bool(decision.failure) and decision.error != Unavailable.__name__
    return is_missing and not sum(bool(other.failure) for other in others) > COMMON_SHARE * len(others)


def _is_in(times: Times, at_ns: int) -> bool:
    return any(begin <= at_ns < end for begin, end in times)
