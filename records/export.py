"""`greenserve record export`: what other programs read.

Tables for notebooks, as CSV or Parquet (docs/record-files.md describes their columns); signal events for ATSPM tools;
SUMO programs of the recorded lights; warm-up records and observations for models.
"""

import argparse
import contextlib
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from city import whole_files
from city.arguments import Parser
from city.errors import InputError
from controller.recording.detectors import Detector
from controller.recording.run_start import movement_names_of
from controller.recording.sentences import mode_name, reason_name
from protos import record_pb2 as record
from records import observation_files, sumo_programs
from records.atspm import files, from_record
from records.atspm.events import SignalEvents, signal_events
from records.atspm.files import Written
from records.atspm.from_record import EVERYTHING, EventCollector, ObservedSignals, RecordSelection
from records.atspm.spool import Spool
from records.record_flags import add_atspm, add_record, atspm_city, open_record, subcommand
from records.record_reader import RecordedStep
from records.recorded_run import RecordedRun
from records.run_files import RunReader
from serving.contract import CATEGORICAL
from signals.policy_signals import greens_of

ROWS_AT_ONCE = 20_000
MAX_CACHED_NAMES = 10_000
"""Names of a signal's states that are kept."""
INT, FLOAT, TEXT, BOOL, FLOATS, INTS = "int64", "float64", "string", "bool", "list<float64>", "list<int64>"
TABLES: dict[str, dict[str, str]] = {
    "decisions": {
        "number": INT,
        "at_s": FLOAT,
        "wall_ns": INT,
        "tl": TEXT,
        "mode_before": TEXT,
        "mode": TEXT,
        "override": TEXT,
        "phases": INTS,
        "min_green_passed": BOOL,
        "action": FLOATS,
        "green": TEXT,
        "scores": FLOATS,
        "model": TEXT,
        "version": INT,
        "failure": TEXT,
        "observation": FLOATS,
    },
    "states": {
        "number": INT,
        "at_s": FLOAT,
        "tl": TEXT,
        "signal": TEXT,
        "requested": TEXT,
        "permitted": TEXT,
        "movements": TEXT,
        "override": TEXT,
        "program": TEXT,
    },
    "shown": {"signal": TEXT, "begin_s": FLOAT, "end_s": FLOAT, "state": TEXT, "movements": TEXT},
    "alarms": {"number": INT, "at_s": FLOAT, "signal": TEXT, "rule": TEXT, "message": TEXT},
    "detectors": {"number": INT, "at_s": FLOAT, "signal": TEXT, "detector": TEXT, "function": TEXT, "is_entry": BOOL},
}
REMEDY = "name another folder"
Row = Sequence[Any]


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write the tables decisions, states, shown, alarms and detectors of a record into a folder, signal "
        "events for ATSPM tools, SUMO programs of the recorded lights, or files for models.",
    )
    add_record(parser)
    formats = parser.add_mutually_exclusive_group(required=True)
    formats.add_argument("--csv", type=Path, metavar="DIR", help="write CSV files there; lists are separated by spaces")
    formats.add_argument(
        "--parquet", type=Path, metavar="DIR", help="write Parquet files there; needs pyarrow, of the extra evaluation"
    )
    formats.add_argument("--atspm", type=Path, metavar="DIR", help="write signal events there, for ATSPM tools")
    formats.add_argument(
        "--sumo", type=Path, metavar="FILE", help="write a SUMO additional file whose programs show the recorded lights"
    )
    formats.add_argument(
        "--warmup",
        type=Path,
        metavar="DIR",
        help="write DIR/TL/tf_serving_warmup_requests, TensorFlow Serving's warm-up records, of the recorded "
        "observations",
    )
    formats.add_argument(
        "--observations", type=Path, metavar="DIR",
        help="write the recorded observations to DIR/TL.npy, for greenserve export --observations",
    )  # fmt: skip
    add_atspm(parser, "--atspm: ")
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the tables, and print their sizes and what is missing of the record."""
    reader = open_record(args)
    if args.atspm is not None:
        written = export_atspm(reader, args.atspm, RecordSelection(city=atspm_city(args), zero=args.zero))
        for path in written.paths:
            print(path)
        for note in written.notes:
            print(f"note: {note}")
        return 0
    if args.city is not None or args.zero is not None:
        raise InputError("--city and --zero belong to --atspm; leave them out")
    if args.sumo is not None:
        _export_sumo(reader, args.sumo)
        return 0
    if args.warmup is not None or args.observations is not None:
        _export_observations(reader, args)
    else:
        folder, kind = (args.csv, "csv") if args.csv is not None else (args.parquet, "parquet")
        for name, count in write(reader, folder, kind).items():
            print(f"{folder / name}.{kind}: {count:,} rows")
    for text in reader.missing:
        print(f"missing: {text}")
    return 0


main = subcommand(parser, run)


def write(reader: RunReader, folder: Path, kind: str) -> dict[str, int]:
    """Write the tables of a run; files of the same names are replaced once all are complete.

    Args:
        reader: the run.
        folder: is made if it is missing.
        kind: csv or parquet.

    Returns the number of rows by table. Raises InputError, and ModuleNotFoundError without pyarrow.
    """
    opened = _ParquetTable if kind == "parquet" else _CsvTable
    if kind == "parquet":
        import pyarrow.parquet  # noqa: F401 - before anything is written, because it may be missing
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, _CsvTable | _ParquetTable] = {}
    counts = dict.fromkeys(TABLES, 0)
    with contextlib.ExitStack() as replaced, contextlib.ExitStack() as closed:
        for name, columns in TABLES.items():
            draft = replaced.enter_context(whole_files.replacing(folder / f"{name}.{kind}", REMEDY))
            tables[name] = closed.enter_context(contextlib.closing(opened(draft, columns)))
        for name, row in _rows(reader):
            tables[name].add(row)
            counts[name] += 1
    return counts


def export_atspm(reader: RunReader, folder: Path, selection: RecordSelection = EVERYTHING) -> Written:
    """Write the signal events of a run for ATSPM tools. Raises InputError."""
    with Spool() as spool:
        steps, zero = from_record.collect(reader, selection, spool)
        recorded = steps.recorded(zero, reader.missing, signals=())
        events = _events(steps, zero, recorded)
        return files.write(folder, recorded.period, events, recorded.phases, recorded.detectors, recorded.notes)


def _events(steps: EventCollector, zero: datetime, recorded: ObservedSignals) -> Iterator[SignalEvents]:
    """The events of one signal after another, so that only one is in memory."""
    detectors: dict[str, list[Detector]] = {signal: [] for signal in steps.signals}
    for detector in recorded.detectors:
        detectors[detector.signal].append(detector)
    for signal, own in detectors.items():
        yield from signal_events(steps.period(zero, [signal]), recorded.phases, own, recorded.programs)


def _export_sumo(reader: RunReader, path: Path) -> None:
    """Write the SUMO programs, which need the run from its beginning on. Raises InputError."""
    run = RecordedRun([file.path for file in reader.files])
    if run.state is not None:
        raise InputError(
            f"{run.path}: the run's first file is missing; SUMO's programs begin with the run: name that file too"
        )
    for note in sumo_programs.write(path, run.start, run.steps()):
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote the programs of the recorded lights to {path}")
    if run.ended:
        print(f"missing: {run.ended}; the programs end there")


def _export_observations(reader: RunReader, args: argparse.Namespace) -> None:
    """Write the files for models. Raises InputError."""
    contracts = reader.city.contracts
    if args.warmup is not None:
        count = observation_files.write_warm_up(args.warmup, contracts, reader.steps())
        print(f"wrote warm-up records of {count} TLs to {args.warmup}")
    else:
        count = observation_files.write_arrays(args.observations, contracts, reader.steps())
        print(f"wrote the observations of {count} TLs to {args.observations}")


def _rows(reader: RunReader) -> Iterator[tuple[str, Row]]:
    """(table, row) of a run, in order."""
    shown = _ShownStates([signal.id for signal in reader.city.signals])
    signals_of = {contract.tl: list(contract.signal_ids) for contract in reader.city.contracts}
    names = movement_names_of(reader.city)
    greens_of_tl = {
        contract.tl: names[contract.signal_ids[0]].of_states(greens_of(contract.signals[0]))
        for contract in reader.city.contracts
        if contract.action.kind == CATEGORICAL and len(contract.signals) == 1
    }

    @lru_cache(MAX_CACHED_NAMES)
    def movements(signal: str, state: str) -> str:
        return names[signal].of_state(state)

    detectors = [(each.signal, each.id, each.function) for each in reader.city.detectors]
    for recorded in reader.steps():
        step = recorded.step
        for alarm in step.alarms:
            yield "alarms", (step.number, alarm.at_s, alarm.signal, alarm.rule, alarm.message)
        for each in step.shown:
            yield from (("shown", (*row, movements(row[0], row[-1]))) for row in shown.add(each))
        changes = step.detectors
        for k, at_s, is_entry in zip(changes.detector, changes.time_s, changes.is_entry, strict=False):
            if k < len(detectors):
                yield "detectors", (step.number, at_s, *detectors[k], is_entry)
        for tl, tl_step in recorded.tls.items():
            if tl_step.HasField("decision"):
                yield "decisions", _decision(recorded, tl, tl_step, greens_of_tl.get(tl, ()))
            yield from (("states", row) for row in _states(tl, tl_step, signals_of.get(tl, ()), movements))
    yield from (("shown", (*row, movements(row[0], row[-1]))) for row in shown.rest())


def _decision(recorded: RecordedStep, tl: str, tl_step: record.TlStep, greens: Sequence[str]) -> Row:
    decision = tl_step.decision
    chosen = [greens[int(k)] for k in decision.action if k in range(len(greens))]
    return (
        tl_step.number,
        tl_step.at_s,
        recorded.publish_ns,
        tl,
        mode_name(decision.mode_before),
        mode_name(tl_step.mode),
        "" if tl_step.override == record.TlStep.NONE else reason_name(tl_step.override),
        list(decision.phases),
        decision.min_green_passed,
        list(decision.action),
        ", ".join(chosen),
        list(decision.scores),
        decision.model,
        decision.version,
        decision.failure,
        list(decision.observation),
    )


def _states(
    tl: str, tl_step: record.TlStep, signals: Sequence[str], movements: Callable[[str, str], str]
) -> Iterator[Row]:
    for states in tl_step.states:
        overrides = {override.signal: reason_name(override.reason) for override in reversed(states.overrides)}
        programs = {command.signal: command.program for command in states.commands if not command.state}
        for k, (signal, permitted) in enumerate(zip(signals, states.permitted, strict=False)):
            requested = states.requested[k] if k < len(states.requested) else ""
            moment = tl_step.number, states.at_s, tl, signal
            named = movements(signal, permitted)
            yield *moment, requested, permitted, named, overrides.get(signal, ""), programs.get(signal, "")


class _ShownStates:
    """Joins the intervals in which a signal showed one state; a hole of the record ends an interval."""

    def __init__(self, signals: Sequence[str]) -> None:
        self._signals = signals
        self._last: dict[str, tuple[float, float, str]] = {}
        """By signal, (begin, end, state) of its newest interval."""

    def add(self, shown: record.Shown) -> Iterator[Row]:
        """The intervals that have ended."""
        for signal, state in zip(self._signals, shown.states, strict=False):
            last = self._last.get(signal)
            begin_s = shown.begin_s
            if last is not None and last[1:] == (begin_s, state):
                begin_s = last[0]
            elif last is not None:
                yield signal, *last
            self._last[signal] = begin_s, shown.end_s, state

    def rest(self) -> Iterator[Row]:
        """The intervals at the end of the record."""
        yield from ((signal, *last) for signal, last in self._last.items())


class _CsvTable:
    """A table as CSV."""

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)

    def add(self, row: Row) -> None:
        self._writer.writerow(
            [" ".join(map(_cell, value)) if isinstance(value, list) else _cell(value) for value in row]
        )

    def close(self) -> None:
        self._file.close()


def _cell(value: Any) -> str:
    """A value of a CSV cell; floats so that they are read back as the same numbers."""
    return str(int(value)) if isinstance(value, bool) else str(value)


class _ParquetTable:
    """A table as Parquet."""

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        import pyarrow
        from pyarrow import parquet

        kinds = {FLOATS: pyarrow.list_(pyarrow.float64()), INTS: pyarrow.list_(pyarrow.int64())}
        fields = [
            (name, kinds[kind] if kind in kinds else pyarrow.type_for_alias(kind)) for name, kind in columns.items()
        ]
        self._schema = pyarrow.schema(fields)
        self._batch_of = pyarrow.RecordBatch.from_pydict
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._write()

    def close(self) -> None:
        try:
            self._write()
        finally:
            self._writer.close()

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            columns = dict(zip(self._schema.names, zip(*rows, strict=True), strict=True))
            self._writer.write_batch(self._batch_of(columns, schema=self._schema))
