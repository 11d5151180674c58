"""`greenserve replay`: decide a recorded run again, without SUMO, query other models, or play the record in a
browser."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from city import config as city_config
from city import logs, names, program, text_table, whole_files
from city.arguments import Parser
from city.errors import InputError
from controller import model_settings
from controller.config import page_address
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from protos import policy_pb2 as pb
from records.record_flags import selected_tls
from records.recorded_run import RecordedRun
from records.replay import Replay
from records.shadow import PERCENTILES, ShadowEvaluation, TlShadow, percentiles_ms, served_contracts
from serving.client import Client, tls_files
from serving.client.channel import grpc_target
from serving.client.messages import Version

DIFFERENT = 3
"""Exit code if a decision is not the recorded one."""
MAX_COUNTED_FIELDS = 20
"""Rows of the table of further differences."""
REMEDY = "pass another file"


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Decide a recorded run again, without SUMO, and compare it with its record bit for bit. "
        "Exit code: 0 if all is the same, 3 if something differs.",
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="files of one run in any order, or a folder with them"
    )
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="of a folder with several runs: the beginning of a run's id (default: the only run)",
    )
    parser.add_argument(
        "--tl", action="append", metavar="TL", help="TLs to compare, separated by commas or repeated (default: all)"
    )
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        help="model server, or unix:PATH, that is also queried for what its models would have decided",
    )
    parser.add_argument("--model-number", type=int, metavar="N", help="version to request (default: the newest served)")
    parser.add_argument("--version-label", metavar="LABEL", help="request the version of this label, such as stable")
    parser.add_argument(
        "--fleet", metavar="NAME", default="", help="fleet to query for all TLs at once (default: none)"
    )
    parser.add_argument(
        "--page",
        metavar="HOST:PORT",
        help="instead of comparing, serve the page of the record there, on loopback, such as 127.0.0.1:8080 (default: "
        "no page)",
    )
    tls_files.add_flags(parser)
    logs.add_flag(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the differences and the server's figures to this file"
    )
    return parser


def main(argv: list[str], prog: str = "greenserve replay") -> int:
    """Replay a record, or play it. Exit code: 0 if it is the same, or was played; 3 if it differs; 2 if the input is
    wrong."""

    def replay() -> int:
        logs.configure(argv, "replay")
        return _replay(_parse(argv, prog))

    return program.run(replay)


def _parse(argv: list[str], prog: str) -> argparse.Namespace:
    """Parse the command line. Raises InputError."""
    args = parser(prog).parse_args(argv)
    model_settings.check_version(args)
    of_server = [
        name for name in ("model_number", "version_label", *tls_files.FLAGS) if getattr(args, name) is not None
    ]
    of_server += ["fleet"] if args.fleet else []
    if of_server and args.server is None:
        raise InputError(f"--{of_server[0].replace('_', '-')} is for a model server; pass --server too")
    if args.json is not None:
        whole_files.check_writable("--json", args.json)
    if args.server is not None:
        try:
            grpc_target(args.server)
        except ValueError as error:
            raise InputError(f"--server {error}") from None
    if args.page is not None:
        of_comparison = [name for name in ("tl", "server", "json") if getattr(args, name) is not None]
        if of_comparison:
            raise InputError(f"--{of_comparison[0]} is for the comparison; leave it or --page out")
        args.page = page_address(args.page)
    return args


def _replay(args: argparse.Namespace) -> int:
    if args.page is not None:
        return _play(args)
    run = RecordedRun(args.files, args.run)
    tls = selected_tls(args, run.start.contracts)
    replay = Replay(run, tls)
    shadow = None
    if args.server is None:
        replay.run()
    else:
        files = tls_files.from_flags(args, city_config.Serving())
        with Client(args.server, tls=None if files is None else files.read(), retries=0) as client:
            selected = [contract for contract in run.start.contracts if contract.tl in tls]
            shadow = _shadow(replay, client, selected, args, run.start.control.deadline_ms / 1000)
            replay.on_answers = shadow.ask
            replay.run()
    _print_comparison(run, replay, tls)
    if shadow is not None:
        print(_shadow_table(shadow))
    if args.json is not None:
        whole_files.write(args.json, json.dumps(_as_dict(run, replay, shadow), indent=1) + "\n", REMEDY)
    return DIFFERENT if replay.differences.first is not None else 0


def _play(args: argparse.Namespace) -> int:
    """Serve the record's page until Ctrl-C. Raises InputError."""
    try:
        from records.playback.record_page import RecordPage
    except ModuleNotFoundError as error:
        raise InputError(f"--page needs {error.name}; install greenserve[page,record], or leave --page out") from None
    RecordPage(args.files, args.run, args.page).serve(
        lambda url: print(f"the record's page, until Ctrl-C: {url}", flush=True)
    )
    return 0


def _shadow(
    replay: Replay, client: Client, recorded: Sequence[pb.PolicyContract], args: argparse.Namespace, deadline_s: float
) -> ShadowEvaluation:
    """The requests to a model server beside a replay. Raises InputError."""
    version: Version = args.version_label or args.model_number
    name = names.canonical(args.fleet) if args.fleet else ""
    contracts = served_contracts(client, recorded, version, name)
    fleet = ServedFleet(client, name, contracts, version) if name else None
    if fleet is not None:
        fleet.update()
        if fleet.coverage is None:
            raise InputError(
                f"{client.address}: fleet {name} is not served, or answers for none of the TLs; "
                "build it (greenserve fleet), or leave out --fleet"
            )
    served = ServedPolicies(client, contracts, version, deadline_s, fleet=fleet, with_scores=True)
    return ShadowEvaluation(served, contracts, lambda: replay.loop.intersections)


def _print_comparison(run: RecordedRun, replay: Replay, tls: Sequence[str]) -> None:
    for text in run.missing:
        print(f"missing: {text}", file=sys.stderr)
    for text in replay.holes:
        print(f"the record is not whole: {text}", file=sys.stderr)
    span = f"{replay.replayed_steps} steps of {len(tls)} TLs, from second {run.begin_s:g} to {replay.replayed_to_s:g}"
    differences = replay.differences
    if differences.first is None:
        print(f"replayed {span}: bit for bit the same")
        return
    print(f"replayed {span}; the first difference:")
    print(f"  {differences.first}")
    if replay.not_recorded is not None:
        print(
            f"  the replay ends at second {replay.not_recorded.at_s:g}: the record has no readings for decisions at "
            "other moments"
        )
    further = differences.counts.copy()
    further[differences.first.tl, differences.first.field] -= 1
    counts = [(count, *key) for key, count in further.items() if count > 0]
    if counts:
        rows = [(tl or "-", path, str(count)) for count, tl, path in sorted(counts, key=lambda row: (-row[0], row[1:]))]
        print(f"{sum(count for count, *_ in counts)} further differences:")
        print(text_table.render(("TL", "FIELD", "DIFFERENCES"), rows[:MAX_COUNTED_FIELDS]))
        if len(rows) > MAX_COUNTED_FIELDS:
            print(f"and {len(rows) - MAX_COUNTED_FIELDS} more fields")


def _shadow_table(shadow: ShadowEvaluation) -> str:
    """The table of a shadow evaluation, and the latency of its requests."""
    header = (
        "TL", "VERSION", "DECISIONS", "OTHERWISE", "P(ITS CHOICE)", "P(RECORDED)",
        "WOULD-BE OVERRIDES", "RECORDED OVERRIDES", "MISSING", *(f"P{p} MS" for p in PERCENTILES),
    )  # fmt: skip
    lines = [text_table.render(header, [_shadow_row(tl, each) for tl, each in shadow.by_tl.items()])]
    shown = ", ".join(f"{name} {_number(value)} ms" for name, value in percentiles_ms(shadow.latency_s).items())
    lines.append(f"{len(shadow.latency_s)} requests: {shown}")
    lines += [
        f"{tl}: the first missing answer: {each.first_failure}" for tl, each in shadow.by_tl.items() if each.missing
    ]
    return "\n".join(lines)


def _shadow_row(tl: str, shadow: TlShadow) -> tuple[str, ...]:
    figures = shadow.as_dict()
    share = f" ({shadow.otherwise / shadow.decisions:.0%})" if shadow.decisions else ""
    return (
        tl,
        ",".join(map(str, sorted(shadow.versions))) or "-",
        str(shadow.decisions),
        f"{shadow.otherwise}{share}",
        _number(figures["mean_probability"]),
        _number(figures["mean_probability_of_recorded"]),
        str(shadow.overrides),
        str(shadow.recorded_overrides),
        str(shadow.missing),
        *map(_number, figures["latency_ms"].values()),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _as_dict(run: RecordedRun, replay: Replay, shadow: ShadowEvaluation | None) -> dict[str, object]:
    first = replay.differences.first
    result: dict[str, object] = {
        "run": run.city.run,
        "begin_s": run.begin_s,
        "replayed_to_s": replay.replayed_to_s,
        "steps": replay.replayed_steps,
        "ended": "; ".join(replay.holes),
        "same": first is None,
        "first_difference": None if first is None else first._asdict(),
        "differences": [
            {"tl": tl, "field": path, "count": n} for (tl, path), n in sorted(replay.differences.counts.items())
        ],
    }
    if shadow is not None:
        result["shadow"] = {tl: each.as_dict() for tl, each in shadow.by_tl.items()}
        result["requests"] = {"count": len(shadow.latency_s), "latency_ms": percentiles_ms(shadow.latency_s)}
    return result
