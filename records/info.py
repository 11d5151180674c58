"""`greenserve record info`: what a record has, and what is missing."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from city import names, program, text_table
from city.arguments import Parser
from city.printable import printable
from city.sumo_files import time_text
from controller.recording.sentences import mode_name, reason_name
from records.record_flags import add_record, open_record
from records.record_reader import RecordedStep, wall_text
from records.run_files import RunReader

MAX_NAMES = 8
"""TLs that a line names."""


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Show what a record has: run, times, decisions, models, control modes and alarms, and what is "
        "missing.",
    )
    add_record(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str], prog: str) -> int:
    """Print the summary; exit code 0 also if something is missing."""

    def info() -> int:
        args = parser(prog).parse_args(argv)
        reader = open_record(args)
        summary = summarise(reader)
        print(json.dumps(summary) if args.json else _for_people(summary))
        return 0

    return program.run(info)


@dataclass
class _Span:
    """The decisions of a model number for a TL."""

    first_s: float
    last_s: float
    decisions: int = 0


@dataclass
class _Totals:
    """Sums over steps."""

    steps: int = 0
    decisions: int = 0
    without_answer: int = 0
    first_s: float = math.nan
    last_s: float = math.nan
    first_ns: int = 0
    last_ns: int = 0
    spans: dict[tuple[str, str, int], _Span] = field(default_factory=dict)
    """By TL, model and version."""
    modes: Counter[str] = field(default_factory=Counter)
    """Decisions by the control mode after them."""
    mode_changes: int = 0
    overrides: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    rejections: int = 0

    def add(self, recorded: RecordedStep) -> None:
        step = recorded.step
        if not self.steps:
            self.first_s, self.first_ns = step.at_s, recorded.publish_ns
        self.last_s, self.last_ns = step.at_s, recorded.publish_ns
        self.steps += 1
        self.alarms.update(alarm.rule for alarm in step.alarms)
        self.rejections += len(step.rejections)
        for tl, tl_step in recorded.tls.items():
            for states in tl_step.states:
                self.overrides.update(reason_name(override.reason) for override in states.overrides)
            if not tl_step.HasField("decision"):
                continue
            decision = tl_step.decision
            self.decisions += 1
            self.without_answer += bool(decision.failure)
            self.modes[mode_name(tl_step.mode)] += 1
            self.mode_changes += decision.mode_before != tl_step.mode
            if decision.model:
                span = self.spans.setdefault((tl, decision.model, decision.version), _Span(step.at_s, step.at_s))
                span.last_s = step.at_s
                span.decisions += 1


def summarise(reader: RunReader) -> dict[str, Any]:
    """Summary of a run's record, by the names of --json. Reads all of it."""
    totals = _Totals()
    for recorded in reader.steps():
        totals.add(recorded)
    city = reader.city
    return {
        "run": city.run,
        "greenserve_version": city.greenserve_version,
        "files": [
            {"name": file.path.name, "number": file.city.file_number, "bytes": file.size_bytes} for file in reader.files
        ],
        "bytes": sum(file.size_bytes for file in reader.files),
        "whole": not reader.missing,
        "missing": reader.missing,
        "driver": city.driver or "policies",
        "tls": [contract.tl for contract in city.contracts],
        "signals": len(city.signals),
        "first_s": _number(totals.first_s),
        "last_s": _number(totals.last_s),
        "first_wall": wall_text(totals.first_ns) if totals.steps else None,
        "last_wall": wall_text(totals.last_ns) if totals.steps else None,
        "steps": totals.steps,
        "decisions": totals.decisions,
        "without_valid_answer": totals.without_answer,
        "models": [
            {
                "tl": tl,
                "model": model,
                "version": version,
                "first_s": _number(span.first_s),
                "last_s": _number(span.last_s),
                "decisions": span.decisions,
            }
            for (tl, model, version), span in totals.spans.items()
        ],
        "modes": dict(totals.modes),
        "mode_changes": totals.mode_changes,
        "overrides": dict(totals.overrides),
        "alarms": dict(totals.alarms),
        "rejected_commands": totals.rejections,
    }


def _number(value: float) -> float | None:
    """A number that JSON has."""
    return value if math.isfinite(value) else None


def _for_people(summary: Mapping[str, Any]) -> str:
    """The summary for people."""
    numbers = [file["number"] for file in summary["files"]]
    rows = [
        ("run", f"{summary['run']}, recorded by greenserve {summary['greenserve_version']}"),
        ("files", f"{len(numbers)}, {summary['bytes']:,} bytes"),
        ("TLs", f"{len(summary['tls'])} ({names.listed(summary['tls'], MAX_NAMES)}), {summary['signals']} signals"),
        ("simulated time", _span(_clock(summary["first_s"]), _clock(summary["last_s"]))),
        ("wall clock", _span(summary["first_wall"], summary["last_wall"])),
        ("steps", f"{summary['steps']:,}"),
        ("decisions", f"{summary['decisions']:,}, {summary['without_valid_answer']:,} of them without a valid answer"),
        ("control modes", f"{_counts(summary['modes'])}; {summary['mode_changes']:,} changes"),
        ("overrides", _counts(summary["overrides"])),
        ("alarms", _counts(summary["alarms"])),
        ("rejected commands", f"{summary['rejected_commands']:,}"),
        ("whole", "yes" if summary["whole"] else "no"),
        *(("missing", text) for text in summary["missing"]),
    ]
    if summary["driver"] != "policies":
        rows.insert(3, ("controlled by", summary["driver"]))
    width = max(len(name) for name, _ in rows)
    lines = [printable(f"{name.ljust(width)}  {text}") for name, text in rows]
    models = _models(summary["models"])
    if models:
        lines += ["", text_table.render(("MODEL", "VERSION", "FROM", "TO", "DECISIONS", "TLS"), models)]
    return "\n".join(lines)


def _models(spans: list[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each version, of all TLs that have a model of their own, and for each fleet's."""
    grouped: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for span in spans:
        name = "the TL's own" if span["model"] == span["tl"] else span["model"]
        grouped.setdefault((name, span["version"]), []).append(span)
    return [
        (
            name,
            str(version),
            _clock(min((span["first_s"] for span in group if span["first_s"] is not None), default=None)),
            _clock(max((span["last_s"] for span in group if span["last_s"] is not None), default=None)),
            f"{sum(span['decisions'] for span in group):,}",
            f"{len(group)} ({names.listed([span['tl'] for span in group], MAX_NAMES)})",
        )
        for (name, version), group in sorted(grouped.items())
    ]


def _clock(second: float | None) -> str:
    return "-" if second is None else time_text(second)


def _span(begin: str | None, end: str | None) -> str:
    return f"{begin or '-'} to {end or '-'}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1])) or "none"
