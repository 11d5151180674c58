"""`greenserve rollout`: bring a new model number onto the street, one TL at a time and on evidence."""

import argparse
import contextlib
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from city import config as city_config
from city import names, program, run_lock, text_table
from city.arguments import CITY_FILE, Parser
from city.errors import InputError, refuse
from city.ledger import MAX_NUMBER, SKIPPABLE, STAGES, Line, Rollout
from city.ledger_file import LedgerFile, time_text
from city.signatures import Signers
from controller.operator import ctl, open_rollouts
from controller.operator.control_client import ControlClient
from protos import control_pb2 as pb
from rollout import desired, model_files
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
    "tls": dict(
        nargs="*",
        metavar="TL",
        help="TLs, one after another, separated by commas or spaces (default: those of --desired)",
    ),
    "--to": dict(type=int, metavar="N", help="the new model number (default: those of --desired)"),
    "--desired": dict(
        _FILE,
        help="in place of TLs and --to: lines TL = N, the number that each TL shall have; one that is lower than the "
        "stable one is a way back",
    ),
    "--again": dict(
        type=int,
        default=-1,
        metavar="LINE",
        help="with --desired: try numbers again that the ledger's lines up to this one refuse (default: none)",
    ),
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
    "--signed-by": dict(_FILE, help="refuse a number that is not signed by one of these keys or certificates (PEM)"),
    "--record": dict(_FOLDER, help="the controller's record (default: [controller] record)"),
}
AUTHOR: Flags = {
    "--author": dict(metavar="NAME", help="name in ledger, log and record; a rollout's owner (default: user@machine)")
}
CONTROLLER: Flags = {
    "--models-dir": dict(_FOLDER, help="folder of the models (default: [serving] models_dir)"),
    "--control-address": dict(
        metavar="HOST:PORT",
        help=f"the controller's control API (default: [controller] control_address, else {ctl.DEFAULT_ADDRESS})",
    ),
    "--control-tls-ca": dict(_FILE, help="TLS: CA bundle (PEM) that verifies the controller"),
    "--control-tls-certificate": dict(_FILE, help="client certificate (PEM)"),
    "--control-tls-key": dict(_FILE, help="client key (PEM)"),
    **AUTHOR,
}
STREET: Flags = {
    "--server": dict(metavar="HOST:PORT", help="the model server (default: [serving] address, or the district's)"),
    "--config": dict(
        _FOLDER,
        default=Path("config"),
        help="folder of the server's files, which greenserve serve config writes (default: config)",
    ),
    **CONTROLLER,
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
    "adopt": {**_TLS, **CONTROLLER},
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
        city = city_config.load(args.city or CITY_FILE)
        given = (bool(args.tls), args.to is not None, args.desired is not None)
        if given not in ((True, True, False), (False, False, True)) or (args.again >= 0 and not args.desired):
            raise InputError("pass TLs and --to N, or --desired FILE with a number for each TL (and --again LINE)")
        numbers = desired.read(args.desired, city) if args.desired is not None else None
        tls = tuple(names.select(args.tls, list(city.tls), "TL", city.tl_of_signal) if numbers is None else numbers)
        plan = _plan(args, tls, args.to if numbers is None else next(iter(numbers.values()), 1))
        if (args.record or city.controller.record) is None:
            raise InputError("the rollout needs the controller's record; pass --record DIR, as to greenserve control")
        ledger = LedgerFile(ledger_path(args))
        if not (folder := ledger.path.parent).is_dir():
            raise InputError(f"{folder}: no such folder; mount the ledger's volume there, or pass another --ledger")
        return _go(args, city, plan, ledger) if numbers is None else _drive(args, city, plan, ledger, numbers)

    return program.run(run, lambda: "interrupted; the same command goes on with the rollout")


def _go(args: argparse.Namespace, city: city_config.City, plan: Plan, ledger: LedgerFile) -> int:
    """Run one rollout, print its end, and return the exit code."""
    signers = None if args.signed_by is None else Signers.read(args.signed_by)
    settings = dict(seeds=args.seeds, workers=args.workers, seconds=args.seconds, signers=signers)
    record = args.record or city.controller.record or Path()
    with _opened(args, city, plan, ledger, record, **settings) as rollout:
        result = rollout.run()
    print(f"{result.outcome}: {result.sentence}")
    return EXIT_CODES.get(result.outcome, program.GATE_FAILED)


def _drive(
    args: argparse.Namespace, city: city_config.City, plan: Plan, ledger: LedgerFile, numbers: Mapping[str, int]
) -> int:
    """Take each TL to its desired number, and return the exit code.

    `plan`: of all of them; each step has its own TLs and number.
    """
    codes: set[int] = set()
    lock = ledger.path.with_name(f".{ledger.path.name}.desired.lock")
    with run_lock.held(lock, "another process rolls out the desired numbers; wait for its end"):
        if args.again >= len(ledger.lines):
            raise InputError(f"--again {args.again}: the ledger has {len(ledger.lines)} lines, from 0 on")
        for rollout in desired.replaced(ledger.state, numbers, plan.author, time_text(Clock().now())):
            with contextlib.suppress(run_lock.IsHeld):  # the ledger's rules below look at what its process leads to
                print(_abort(args, city, ledger, rollout, f"{desired.REPLACED}: another number is desired"))
        if unknown := [tl for tl in numbers if tl not in ledger.state.tls]:
            print(_adopt(args, city, ledger, tuple(unknown)))
        for step in desired.steps(ledger.state, ledger.lines, numbers, plan.author, args.again):
            own = replace(plan, tls=step.tls, number=step.number)
            if step.refused is not None:
                codes.add(program.GATE_FAILED)
                line = step.refused
                print(
                    f"refused: {', '.join(step.tls)} to {step.number}: {line.text} ({line.author}, {line.at}); write "
                    f"another number into {args.desired}, or try this one once more with --again {line.number}"
                )
            elif step.is_back:
                print(_take_back(args, city, own, ledger))
            else:
                codes.add(_go(args, city, own, ledger))
    if not numbers:
        print(f"{args.desired}: no number is desired")
    # work that failed may succeed if it is repeated, a refusal does not
    return min(codes - {0}, default=0)


def subcommand(argv: list[str], prog: str) -> int:
    """Run a subcommand. `prog`: ends with its name."""

    def run() -> int:
        name, args = prog.rpartition(" ")[2], request_parser(prog).parse_args(argv)
        ledger = LedgerFile(ledger_path(args))
        if args.ledger is not None and name != "adopt" and not ledger.lines:
            raise InputError(f"{ledger.path}: there is no ledger; pass another --ledger")
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
            rollout, reason = _rollout(ledger, args.tls), f"aborted: by {_author(args)}"
            _append_abort(args, ledger, rollout, reason)
            try:
                print(_abort(args, city, ledger, rollout, reason))
            except run_lock.IsHeld:
                print(
                    f"rollout {rollout.id}: its process takes the canaries back and ends it (greenserve rollout status)"
                )
            return 0
        tls = tuple(names.select(args.tls, list(city.tls), "TL", city.tl_of_signal))
        if name == "adopt":
            print(_adopt(args, city, ledger, tls))
            return 0
        print(_take_back(args, city, Plan(tls, args.to, _author(args)), ledger))
        return 0

    return program.run(run)


def _append_abort(args: argparse.Namespace, ledger: LedgerFile, rollout: Rollout, reason: str) -> None:
    now = ledger.state.rollouts.get(rollout.id)  # None: its process has ended it meanwhile
    if now is not None and not now.is_aborted:
        ledger.append(Line(0, "", "abort", _author(args), rollout=rollout.id, text=reason), Clock().now())


def _abort(args: argparse.Namespace, city: city_config.City, ledger: LedgerFile, rollout: Rollout, reason: str) -> str:
    """Take the canaries of a rollout back, and end it. Raises run_lock.IsHeld if its process runs."""
    plan = Plan(tuple(rollout.targets), next(iter(rollout.targets.values())).number, _author(args))
    with _opened(args, city, plan, ledger, Path()) as opened:
        _append_abort(args, ledger, rollout, reason)
        result = opened.abort(rollout)
    return f"{result.outcome}: {result.sentence}"


def _take_back(args: argparse.Namespace, city: city_config.City, plan: Plan, ledger: LedgerFile) -> str:
    """Make an earlier number stable."""
    with _opened(args, city, plan, ledger, Path()) as opened:
        return opened.take_back().sentence


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
    kept = ledger.path.with_name("rollouts") / f"{'-'.join(plan.tls)[:80]}-{plan.number}"
    with (
        _lock(ledger, plan.tls),
        _control(args, city) as control,
        connected(city, server, args.config / name, control, fleet) as street,
    ):
        # imported after the checks of the flags: it takes seconds
        from rollout.judges import StreetJudges

        judges = StreetJudges(city, models_dir, record, street.clients[0], kept, plan.limits, **settings)
        yield RolloutRun(plan, ledger, street, judges, program.print_line)


def _lock(ledger: LedgerFile, tls: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
    """The lock of the process that rolls these TLs out."""
    key = sha256(",".join(sorted(tls)).encode()).hexdigest()[:12]
    runs = f"another process rolls out {', '.join(tls)}; wait for its end, or greenserve rollout abort {tls[0]}"
    return run_lock.held(ledger.path.with_name(f".{ledger.path.name}.{key}.lock"), runs)


def _rollout(ledger: LedgerFile, tls: list[str]) -> Rollout:
    """The open rollout of a TL. Raises InputError."""
    known = names.select(tls, list(ledger.state.tls), "TL")
    rollout = ledger.state.rollout_of(known[0])
    if rollout is None:
        raise InputError(f"{known[0]} is in no open rollout; greenserve rollout status lists them")
    return rollout


def _plan(args: argparse.Namespace, tls: tuple[str, ...], number: int) -> Plan:
    """The plan of the flags. Raises InputError."""
    skipped = frozenset(filter(None, (part.strip() for part in args.skip.split(","))))
    unknown = ", ".join(sorted(skipped - set(SKIPPABLE)))
    values = {name: getattr(args, name) for name in BOUNDS}
    refuse(
        (unknown, f"--skip {unknown}: only {' and '.join(SKIPPABLE)} can be left out"),
        (not 1 <= number <= MAX_NUMBER, f"--to {number} must be a model number, such as 4"),
        *(
            (
                not low <= values[name] <= high,
                f"--{name.replace('_', '-')} {values[name]:g} must lie between {low:g} and {high:g}",
            )
            for name, (low, high) in BOUNDS.items()
        ),
    )
    limits = replace(Limits(), **{name: getattr(args, name) for name in LIMITS})
    hours, author = _hours(args.hours), _author(args)
    return Plan(tls, number, author, args.together, args.until, skipped, hours, limits, args.max_wait_s, args.poll_s)


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
