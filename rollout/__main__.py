"""`greenserve rollout`: bring a new model number onto the street, one TL at a time and on evidence."""

import argparse
import contextlib
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from city import config as city_config
from city import names, program, run_lock, text_table
from city.arguments import CITY_FILE, Parser
from city.errors import InputError
from city.ledger import SKIPPABLE, STAGES, Line, Rollout
from city.ledger_file import LedgerFile
from controller.operator import ctl, open_rollouts
from controller.operator.control_client import ControlClient
from protos import control_pb2 as pb
from rollout import model_files
from rollout.ledger_command import add_ledger, ledger_path
from rollout.open_rollout import Clock
from rollout.stages import Plan, RolloutRun
from rollout.street import PIN_LEASE_S, check_tls, connected
from rollout.verdicts import Limits
from serving.client.tls_files import TlsFiles

SUBCOMMANDS = {
    name: ("rollout.__main__:subcommand", summary)
    for name, summary in (
        ("status", "show the rollouts that have not ended: stage, owner, lease, newest verdict"),
        ("pause", "begin no canary and promote nothing until resume; a worse one is taken back"),
        ("resume", "go on with a paused rollout"),
        ("abort", "take the canaries of a rollout back, and end it"),
        ("back", "make an earlier number stable again, at once and without evidence"),
        ("adopt", "take numbers that were released without a rollout into the ledger"),
    )
}
"""By name: the entry point, and the summary."""
EXIT_CODES = {"promoted": 0, "until": 0, "aborted": program.FAILED, "failed": program.FAILED}
"""By outcome; all others are those of a refused model."""
BOUNDS = {
    "max_wait_s": (1, 30 * 86400),
    "poll_s": (0.1, PIN_LEASE_S / 5),
    "seeds": (2, 100_000),
    "workers": (1, 1000),
    "min_decisions": (0, 1e9),
    "min_vehicles": (0, 1e9),
    "min_bins": (2, 1e9),
    "tolerance": (0, 1e9),
}
"""Of numbers of flags."""
LIMITS = ("min_decisions", "min_vehicles", "min_bins", "tolerance")
"""Flags of them that are limits of verdicts."""
Flags = dict[str, dict[str, Any]]


def _number(default: float, text: str, metavar: str = "N") -> dict[str, Any]:
    return dict(type=type(default), default=default, metavar=metavar, help=f"{text} (default: {default:g})")


_FILE: dict[str, Any] = dict(type=Path, metavar="FILE")
_FOLDER: dict[str, Any] = dict(type=Path, metavar="DIR")
PLAN: Flags = {
    "tls": dict(nargs="+", metavar="TL", help="TLs, one after another, separated by commas or spaces"),
    "--to": dict(type=int, required=True, metavar="N", help="the new model number"),
    "--together": dict(action="store_true", help="all TLs are in canary at once (default: one by one)"),
    "--until": dict(choices=STAGES, default=STAGES[-1], help=f"the last stage (default: {STAGES[-1]})"),
    "--skip": dict(metavar="STAGE,...", default="", help=f"leave out {' or '.join(SKIPPABLE)} (default: none)"),
    "--hours": dict(metavar="H:M-H:M", help="times of day, simulated, in which a canary drives (default: always)"),
    "--min-decisions": _number(Limits.min_decisions, "decisions of a TL that a verdict needs at least"),
    "--min-vehicles": _number(Limits.min_vehicles, "vehicles of a TL that a canary's verdict needs at least"),
    "--min-bins": _number(Limits.min_bins, "times of day of 5 minutes that a canary's verdict needs at least"),
    "--tolerance": _number(Limits.tolerance, "share by which queue and stopped delay may be larger than before"),
    "--max-wait-s": _number(
        Plan.max_wait_s, "time of shadow and of a canary after which too little evidence ends it", "S"
    ),
    "--poll-s": _number(Plan.poll_s, "time between two looks at record and street", "S"),
    "--seeds": _number(10, "simulations of each arm"),
    "--seconds": dict(type=float, metavar="S", help="their simulated time (default: the sumocfg's)"),
    "--workers": _number(1, "processes that simulate"),
    "--record": dict(_FOLDER, help="the controller's record (default: [controller] record)"),
}
AUTHOR: Flags = {
    "--author": dict(metavar="NAME", help="name in ledger, log and record; a rollout's owner (default: user@machine)")
}
STREET: Flags = {
    "--models-dir": dict(_FOLDER, help="folder of the models (default: [serving] models_dir)"),
    "--server": dict(metavar="HOST:PORT", help="the model server (default: [serving] address, or the district's)"),
    "--config": dict(
        _FOLDER,
        default=Path("config"),
        help="folder of the server's files, which greenserve serve config writes (default: config)",
    ),
    "--control-address": dict(
        metavar="HOST:PORT",
        help=f"the controller's control API (default: [controller] control_address, else {ctl.DEFAULT_ADDRESS})",
    ),
    "--control-tls-ca": dict(_FILE, help="TLS: CA bundle (PEM) that verifies the controller"),
    "--control-tls-certificate": dict(_FILE, help="client certificate (PEM)"),
    "--control-tls-key": dict(_FILE, help="client key (PEM)"),
    **AUTHOR,
}
_TL: Flags = {"tls": dict(nargs="+", metavar="TL", help="a TL of the rollout")}
_TLS: Flags = {"tls": dict(nargs="+", metavar="TL", help="TLs")}
_EARLIER: Flags = {"--to": dict(type=int, required=True, metavar="N", help="a number that was stable before")}
FLAGS: dict[str, Flags] = {
    "status": {},
    "pause": {**_TL, **AUTHOR},
    "resume": {**_TL, **AUTHOR},
    "abort": {**_TL, **STREET},
    "back": {**_TLS, **_EARLIER, **STREET},
    "adopt": {**_TLS, **STREET},
}
"""By subcommand; all have those of the ledger too."""


def main(argv: list[str] | None = None, prog: str = "python -m rollout") -> int:
    """Run a rollout or a subcommand. Exit code: 0; 3 if the model is refused or taken back; 2 if the input is wrong; 1
    if it is aborted, or the work fails."""
    entries = {name: entry for name, (entry, _) in SUBCOMMANDS.items()}
    return program.run_subcommand(argv, prog, entries, roll_out)


def parser(prog: str) -> Parser:
    """The flags of a rollout."""
    about = (
        "Bring a new model number onto the street: evaluate, load, shadow, canary, promote; roll back by itself if it "
        "is worse. The same command goes on with a rollout that was interrupted. Subcommands: "
    )
    return _parser(prog, f"{about}{', '.join(SUBCOMMANDS)}.", {**PLAN, **STREET})


def request_parser(prog: str) -> Parser:
    """The flags of a subcommand. `prog`: ends with its name."""
    name = prog.rpartition(" ")[2]
    summary = SUBCOMMANDS[name][1]
    return _parser(prog, f"{summary[0].upper()}{summary[1:]}.", FLAGS[name])


def _parser(prog: str, description: str, flags: Flags) -> Parser:
    parser = Parser(prog=prog, description=description)
    for flag, options in flags.items():
        parser.add_argument(flag, **options)
    add_ledger(parser)
    return parser


def roll_out(argv: list[str], prog: str) -> int:
    """Run a rollout, or go on with it."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        city, ledger = city_config.load(args.city or CITY_FILE), LedgerFile(ledger_path(args))
        plan = _plan(args, tuple(names.select(args.tls, list(city.tls), "TL", city.tl_of_signal)))
        record = args.record or city.controller.record
        if record is None:
            raise InputError("the rollout needs the controller's record; pass --record DIR, as to greenserve control")
        settings = dict(seeds=args.seeds, workers=args.workers, seconds=args.seconds)
        with _opened(args, city, plan, ledger, record, **settings) as rollout:
            result = rollout.run()
        print(f"{result.outcome}: {result.sentence}")
        return EXIT_CODES.get(result.outcome, program.GATE_FAILED)

    return program.run(run, lambda: "interrupted; the same command goes on with the rollout")


def subcommand(argv: list[str], prog: str) -> int:
    """Run a subcommand. `prog`: ends with its name."""

    def run() -> int:
        name, args = prog.rpartition(" ")[2], request_parser(prog).parse_args(argv)
        ledger = LedgerFile(ledger_path(args))
        if name == "status":
            rows = open_rollouts.rows(ledger.state, ledger.lines)
            width = text_table.terminal_width()
            print(text_table.render(open_rollouts.HEADER, rows, width) if rows else "no rollout is open")
            return 0
        if name in ("pause", "resume"):
            rollout = _rollout(ledger, args.tls)
            ledger.append(Line(0, "", name, _author(args), rollout=rollout.id), Clock().now())
            print(f"rollout {rollout.id} of {', '.join(rollout.targets)}: {name}d")
            return 0
        city = city_config.load(args.city or CITY_FILE)
        if name == "abort":
            print(_abort(args, city, ledger))
            return 0
        tls = tuple(names.select(args.tls, list(city.tls), "TL", city.tl_of_signal))
        if name == "adopt":
            print(_adopt(args, city, ledger, tls))
            return 0
        with _opened(args, city, Plan(tls, args.to, _author(args)), ledger, Path()) as back:
            print(back.take_back().sentence)
        return 0

    return program.run(run)


def _abort(args: argparse.Namespace, city: city_config.City, ledger: LedgerFile) -> str:
    """Abort a rollout: its process ends it, or this one, if that is gone."""
    rollout, author = _rollout(ledger, args.tls), _author(args)
    if not rollout.is_aborted:
        text = f"aborted: by {author}"
        ledger.append(Line(0, "", "abort", author, rollout=rollout.id, text=text), Clock().now())
    plan = Plan(tuple(rollout.targets), next(iter(rollout.targets.values())).number, author)
    try:
        with _opened(args, city, plan, ledger, Path()) as opened:
            result = opened.abort(rollout)
    except run_lock.IsHeld:
        return f"rollout {rollout.id}: its process takes the canaries back and ends it (greenserve rollout status)"
    return f"{result.outcome}: {result.sentence}"


def _adopt(args: argparse.Namespace, city: city_config.City, ledger: LedgerFile, tls: tuple[str, ...]) -> str:
    """Take the numbers that drive TLs into the ledger."""
    models_dir = args.models_dir or city.serving.models_dir
    with _control(args, city) as control:
        states = control.call("ListTls", pb.ListTlsRequest(tls=tls)).tls
    if silent := [state.tl for state in states if not state.version]:
        raise InputError(f"{', '.join(silent)}: no model has answered yet; wait for one (greenserve ctl tls)")
    models = {state.tl: model_files.of_version(models_dir, state.tl, state.version) for state in states}
    ledger.append(Line(0, "", "adopt", _author(args), models, text="released without a rollout"), Clock().now())
    return f"{ledger.path}: " + ", ".join(f"{tl} is driven by {model.number}" for tl, model in models.items())


@contextlib.contextmanager
def _opened(
    args: argparse.Namespace, city: city_config.City, plan: Plan, ledger: LedgerFile, record: Path, **settings: Any
) -> Iterator[RolloutRun]:
    """A rollout with its street, which no other process on this machine runs. Raises InputError."""
    name, district = check_tls(city, plan.tls)
    server = args.server or (district.address if district is not None else city.serving.address)
    fleet = district.fleet or name if district is not None else city.serving.fleet
    models_dir = args.models_dir or city.serving.models_dir
    key = sha256(",".join(sorted(plan.tls)).encode()).hexdigest()[:12]
    runs = (
        f"another process rolls out {', '.join(plan.tls)}; wait for its end, or greenserve rollout abort {plan.tls[0]}"
    )
    kept = ledger.path.with_name("rollouts") / f"{'-'.join(plan.tls)[:80]}-{plan.number}"
    with (
        _control(args, city) as control,
        connected(city, server, args.config / name, control, fleet) as street,
        run_lock.held(ledger.path.with_name(f".{ledger.path.name}.{key}.lock"), runs),
    ):
        # imported after the checks of the flags: it takes seconds
        from rollout.judges import StreetJudges

        judges = StreetJudges(city, models_dir, record, street.clients[0], kept, plan.limits, **settings)
        yield RolloutRun(plan, ledger, street, judges, program.print_line)


def _rollout(ledger: LedgerFile, tls: list[str]) -> Rollout:
    """The open rollout of a TL. Raises InputError."""
    known = names.select(tls, list(ledger.state.tls), "TL")
    rollout = ledger.state.rollout_of(known[0])
    if rollout is None:
        raise InputError(f"{known[0]} is in no open rollout; greenserve rollout status lists them")
    return rollout


def _plan(args: argparse.Namespace, tls: tuple[str, ...]) -> Plan:
    """The plan of the flags. Raises InputError."""
    skipped = frozenset(filter(None, (part.strip() for part in args.skip.split(","))))
    if unknown := sorted(skipped - set(SKIPPABLE)):
        raise InputError(f"--skip {unknown[0]}: only {' and '.join(SKIPPABLE)} can be left out")
    if not 1 <= args.to < 1 << 63:
        raise InputError(f"--to {args.to} must be a model number, such as 4")
    for name, (low, high) in BOUNDS.items():
        if not low <= getattr(args, name) <= high:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} {getattr(args, name):g} must lie between {low:g} and {high:g}")
    limits = replace(Limits(), **{name: getattr(args, name) for name in LIMITS})
    hours, author = _hours(args.hours), _author(args)
    return Plan(tls, args.to, author, args.together, args.until, skipped, hours, limits, args.max_wait_s, args.poll_s)


def _hours(text: str | None) -> tuple[float, float] | None:
    """Begin and end, as seconds of the day. Raises InputError."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):  # reported below
        begin, end = ((int(part.partition(":")[0]), int(part.partition(":")[2])) for part in text.split("-"))
        if all(0 <= hour < 24 and 0 <= minute < 60 for hour, minute in (begin, end)) and begin != end:
            return begin[0] * 3600.0 + begin[1] * 60, end[0] * 3600.0 + end[1] * 60
    raise InputError(f"--hours {text!r} must be two different times of day, such as 09:00-16:00")


def _author(args: argparse.Namespace) -> str:
    return str(args.author or f"{ctl.user()}@{socket.gethostname()}")


def _control(args: argparse.Namespace, city: city_config.City) -> ControlClient:
    address = args.control_address or city.controller.control_address or ctl.DEFAULT_ADDRESS
    files = TlsFiles(args.control_tls_ca, args.control_tls_certificate, args.control_tls_key)
    return ControlClient(address, ctl.tls_of(files, "--control-tls"))


if __name__ == "__main__":
    sys.exit(main())
