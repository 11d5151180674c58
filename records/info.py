"""`greenserve record info`: what a record has, and what is missing."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from city import names, text_table
from city.arguments import Parser
from city.printable import printable
from city.sumo_files import time_text
from controller.recording.sentences import mode_name, reason_name
from records.record_flags import add_record, open_record, subcommand
from records.record_reader import wall_text
from records.run_files import RunReader, chained
from signals.safety.safety_times import describe_max_reds

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


def run(args: argparse.Namespace) -> int:
    """Print the summary; exit code 0 also if something is missing."""
    reader = open_record(args)
    summary = summarise(reader)
    print(json.dumps(summary) if args.json else _for_people(summary))
    return 0


main = subcommand(parser, run)


def summarise(reader: RunReader) -> dict[str, Any]:
    """Summary of a run's record, by the names of --json. Reads all of it."""
    counts = dict.fromkeys(("steps", "decisions", "without_valid_answer", "mode_changes", "rejected_commands"), 0)
    modes, overrides, alarms = Counter[str](), Counter[str](), Counter[str]()
    models: dict[tuple[str, str, int], dict[str, Any]] = {}
    first = last = None
    for last in reader.steps():
        first = first or last
        counts["steps"] += 1
        alarms.update(alarm.rule for alarm in last.step.alarms)
        counts["rejected_commands"] += len(last.step.rejections)
        at_s = _number(last.step.at_s)
        for tl, tl_step in last.tls.items():
            for states in tl_step.states:
                overrides.update(reason_name(override.reason) for override in states.overrides)
            if not tl_step.HasField("decision"):
                continue
            decision = tl_step.decision
            counts["decisions"] += 1
            counts["without_valid_answer"] += bool(decision.failure)
            modes[mode_name(tl_step.mode)] += 1
            counts["mode_changes"] += decision.mode_before != tl_step.mode
            if decision.model:
                model = dict(tl=tl, model=decision.model, version=decision.version, first_s=at_s, decisions=0)
                span = models.setdefault((tl, decision.model, decision.version), model)
                span["last_s"] = at_s
                span["decisions"] += 1
    city = reader.city
    max_reds = json.loads(city.safety or "{}").get("max_red_s_of_signal", {})
    files = [dict(name=file.path.name, number=file.city.file_number, bytes=file.size_bytes) for file in reader.files]
    return {
        "run": city.run,
        "digest": chained(reader.files)[-1]["chain"],
        "greenserve_version": city.greenserve_version,
        "files": files,
        "bytes": sum(file.size_bytes for file in reader.files),
        "whole": not reader.missing,
        "missing": reader.missing,
        "driver": city.driver or "policies",
        "tls": [contract.tl for contract in city.contracts],
        "signals": len(city.signals),
        "max_red_s_of_signal": max_reds,
        "first_s": _number(first.step.at_s) if first is not None else None,
        "last_s": _number(last.step.at_s) if last is not None else None,
        "first_wall": wall_text(first.publish_ns) if first is not None else None,
        "last_wall": wall_text(last.publish_ns) if last is not None else None,
        **counts,
        "models": list(models.values()),
        "modes": dict(modes),
        "overrides": dict(overrides),
        "alarms": dict(alarms),
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
        ("digest", summary["digest"]),
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
    rows += (("max red", f"{id}: {describe_max_reds(reds)}") for id, reds in summary["max_red_s_of_signal"].items())
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
