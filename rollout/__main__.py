"""`greenserve rollout`: bring a new model number onto the street, one TL at a time and on evidence."""

import argparse
import contextlib
import getpass
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
from city.errors import InputError
from controller.operator.control_client import ControlClient
from controller.operator.ctl import DEFAULT_ADDRESS
from rollout import desired
from rollout.ledger import SKIPPABLE, STAGES, Line, Rollout
from rollout.ledger_command import add_ledger, ledger_path
from rollout.ledger_file import LedgerFile, time_text
from rollout.stages import Clock, Plan, RolloutRun
from rollout.street import ServedStreet, check_tls
from rollout.verdicts import Limits
from serving.client.tls_files import TlsFiles

SUBCOMMANDS = {
    "status": ("rollout.__main__:status", "show the rollouts that have not ended: stage, owner, lease, newest verdict"),
    "pause": (
        "rollout.__main__:pause",
        "begin no canary and promote nothing until resume; a worse one is taken back",
    ),
    "resume": ("rollout.__main__:resume", "go on with a paused rollout"),
    "abort": ("rollout.__main__:abort", "take the canaries of a rollout back, and end it"),
    "back": ("rollout.__main__:back", "make an earlier number stable again, at once and without evidence"),
    "adopt": ("rollout.__main__:adopt", "take numbers that were released without a rollout into the ledger"),
}
"""By name: the entry point, and the summary."""
EXIT_CODES = {"promoted": 0, "until": 0, "aborted": program.FAILED, "failed": program.FAILED}
"""By outcome; all others are those of a refused model."""
LIMITS: dict[str, str] = {
    "min_decisions": "decisions of a TL that a verdict needs at least",
    "min_vehicles": "vehicles of a TL that a canary's verdict needs at least",
    "min_bins": "times of day of 5 minutes that a canary's verdict needs at least",
    "tolerance": "share by which queue and stopped delay may be larger than before",
}
"""Limits with a flag, and what they are."""
BOUNDS = {"max_wait_s": (1, 30 * 86400), "poll_s": (0.1, 3600), "seeds": (2, 100_000), "workers": (1, 1000)}
"""Of numbers of flags."""


def main(argv: list[str] | None = None, prog: str = "python -m rollout") -> int:
    """Run a rollout or a subcommand. Exit code: 0; 3 if the model is refused or taken back; 2 if the input is wrong; 1
    if it is aborted, or the work fails."""
    entries = {name: entry for name, (entry, _) in SUBCOMMANDS.items()}
    return program.run_subcommand(argv, prog, entries, roll_out)


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
    settings = dict(seeds=args.seeds, workers=args.workers, seconds=args.seconds)
    record = args.record or city.controller.record or Path()
    with _control(args, city) as control, _street(args, city, plan.tls, control) as street, _lock(ledger, plan.tls):
        result = _run(args, city, plan, ledger, street, record, **settings).run()
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
        for rollout in desired.replaced(ledger.state, numbers, plan.author, time_text(Clock().now())):
            with contextlib.suppress(_Runs):  # what its process leads to is looked at by the ledger's rules below
                _end(args, city, ledger, rollout, f"{desired.REPLACED}: another number is desired")
        if unknown := [tl for tl in numbers if tl not in ledger.state.tls]:
            _adopt(args, city, ledger, unknown)
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
                _take_back(args, city, own, ledger)
            else:
                codes.add(_go(args, city, own, ledger))
    if not numbers:
        print(f"{args.desired}: no number is desired")
    # work that failed may succeed if it is repeated, a refusal does not
    return min(codes - {0}, default=0)


def parser(prog: str) -> Parser:
    """The flags of a rollout."""
    parser = Parser(
        prog=prog,
        description="Bring a new model number onto the street: evaluate, load, shadow, canary, promote; roll back by "
        "itself if it is worse. The same command goes on with a rollout that was interrupted. Subcommands: "
        f"{', '.join(SUBCOMMANDS)}.",
    )
    parser.add_argument(
        "tls",
        nargs="*",
        metavar="TL",
        help="TLs, one after another, separated by commas or spaces (default: those of --desired)",
    )
    parser.add_argument("--to", type=int, metavar="N", help="the new model number (default: those of --desired)")
    parser.add_argument(
        "--desired", type=Path, metavar="FILE",
        help="in place of TLs and --to: lines TL = N, the number that each TL shall have; one that is lower than the "
        "stable one is a way back",
    )  # fmt: skip
    parser.add_argument(
        "--again", type=int, default=-1, metavar="LINE",
        help="with --desired: try numbers again that the ledger's lines up to this one refuse (default: none)",
    )  # fmt: skip
    parser.add_argument("--together", action="store_true", help="all TLs are in canary at once (default: one by one)")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help=f"the last stage (default: {STAGES[-1]})")
    parser.add_argument(
        "--skip", metavar="STAGE,...", default="", help=f"leave out {' or '.join(SKIPPABLE)} (default: none)"
    )
    parser.add_argument(
        "--hours", metavar="H:M-H:M", help="times of day, simulated, in which a canary drives (default: always)"
    )
    for name, about in LIMITS.items():
        kind = type(getattr(Limits(), name))
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=getattr(Limits(), name), metavar="N",
            help=f"{about} (default: {getattr(Limits(), name):g})",
        )  # fmt: skip
    parser.add_argument(
        "--max-wait-s", type=float, default=Plan.max_wait_s, metavar="S",
        help=f"time of shadow and of a canary after which too little evidence ends it (default: {Plan.max_wait_s:g})",
    )  # fmt: skip
    parser.add_argument(
        "--poll-s", type=float, default=Plan.poll_s, metavar="S",
        help=f"time between two looks at record and street (default: {Plan.poll_s:g})",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="simulations of each arm (default: 10)")
    parser.add_argument("--seconds", type=float, metavar="S", help="their simulated time (default: the sumocfg's)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that simulate (default: 1)")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="the controller's record (default: [controller] record)"
    )
    parser.add_argument(
        "--models-dir", type=Path, metavar="DIR", help="folder of the models (default: [serving] models_dir)"
    )
    _add_street(parser)
    return parser


def request_parser(prog: str) -> Parser:
    """The flags of a subcommand. `prog`: ends with its name."""
    name = prog.rpartition(" ")[2]
    summary = SUBCOMMANDS[name][1]
    parser = Parser(prog=prog, description=f"{summary[0].upper()}{summary[1:]}.")
    if name == "status":
        add_ledger(parser)
        return parser
    parser.add_argument("tls", nargs="+", metavar="TL", help="a TL of the rollout" if name != "adopt" else "TLs")
    if name == "back":
        parser.add_argument("--to", type=int, required=True, metavar="N", help="a number that was stable before")
    if name in ("abort", "back", "adopt"):
        _add_street(parser)
    else:
        _add_author(parser)
        add_ledger(parser)
    if name in ("abort", "back", "adopt"):
        parser.add_argument(
            "--models-dir", type=Path, metavar="DIR", help="folder of the models (default: [serving] models_dir)"
        )
    return parser


def _add_street(parser: Parser) -> None:
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="the model server (default: [serving] address, or the district's)"
    )
    parser.add_argument(
        "--config", type=Path, default=Path("config"), metavar="DIR",
        help="folder of the server's files, which greenserve serve config writes (default: config)",
    )  # fmt: skip
    parser.add_argument(
        "--control-address", metavar="HOST:PORT",
        help=f"the controller's control API (default: [controller] control_address, else {DEFAULT_ADDRESS})",
    )  # fmt: skip
    _file: dict[str, Any] = dict(type=Path, metavar="FILE")
    parser.add_argument("--control-tls-ca", help="TLS: CA bundle (PEM) that verifies the controller", **_file)
    parser.add_argument("--control-tls-certificate", help="client certificate (PEM)", **_file)
    parser.add_argument("--control-tls-key", help="client key (PEM)", **_file)
    _add_author(parser)
    add_ledger(parser)


def _add_author(parser: Parser) -> None:
    parser.add_argument(
        "--author", metavar="NAME", help="name in ledger, log and record; a rollout's owner (default: user@machine)"
    )


def status(argv: list[str], prog: str) -> int:
    """Show the rollouts that have not ended."""

    def run() -> int:
        args = request_parser(prog).parse_args(argv)
        ledger = LedgerFile(ledger_path(args))
        rows = [row for rollout in ledger.state.rollouts.values() for row in _status_rows(ledger, rollout)]
        header = ("ROLLOUT", "TL", "DRIVEN BY", "TO", "NEXT STAGE", "OWNER", "LEASE UNTIL", "NEWEST VERDICT")
        print(text_table.render(header, rows, text_table.terminal_width()) if rows else "no rollout is open")
        return 0

    return program.run(run)


def pause(argv: list[str], prog: str) -> int:
    """Pause a rollout."""
    return _request(argv, prog, "pause")


def resume(argv: list[str], prog: str) -> int:
    """Resume a rollout."""
    return _request(argv, prog, "resume")


def abort(argv: list[str], prog: str) -> int:
    """Abort a rollout: its process ends it, or this one, if that is gone."""

    def run() -> int:
        args = request_parser(prog).parse_args(argv)
        city, ledger = city_config.load(args.city or CITY_FILE), LedgerFile(ledger_path(args))
        rollout = _rollout(ledger, args.tls)
        reason = f"aborted: by {_author(args)}"
        try:
            _end(args, city, ledger, rollout, reason)
        except _Runs:
            _append_abort(args, ledger, rollout, reason)
            print(f"rollout {rollout.id}: its process takes the canaries back and ends it (greenserve rollout status)")
        return 0

    return program.run(run)


def back(argv: list[str], prog: str) -> int:
    """Take promoted numbers back."""

    def run() -> int:
        args = request_parser(prog).parse_args(argv)
        city, ledger = city_config.load(args.city or CITY_FILE), LedgerFile(ledger_path(args))
        tls = tuple(names.select(args.tls, list(city.tls), "TL", city.tl_of_signal))
        _take_back(args, city, Plan(tls, args.to, _author(args)), ledger)
        return 0

    return program.run(run)


def adopt(argv: list[str], prog: str) -> int:
    """Take the numbers that drive TLs into the ledger."""

    def run() -> int:
        args = request_parser(prog).parse_args(argv)
        city, ledger = city_config.load(args.city or CITY_FILE), LedgerFile(ledger_path(args))
        _adopt(args, city, ledger, names.select(args.tls, list(city.tls), "TL", city.tl_of_signal))
        return 0

    return program.run(run)


def _end(args: argparse.Namespace, city: city_config.City, ledger: LedgerFile, rollout: Rollout, reason: str) -> None:
    """Take the canaries of a rollout back, end it and print its end. Raises _Runs if its process runs."""
    tls = tuple(rollout.targets)
    plan = Plan(tls, next(iter(rollout.targets.values())).number, _author(args))
    with _lock(ledger, tls):
        _append_abort(args, ledger, rollout, reason)
        with _control(args, city) as control, _street(args, city, tls, control) as street:
            result = _run(args, city, plan, ledger, street, Path()).abort(rollout)
    print(f"{result.outcome}: {result.sentence}")


def _append_abort(args: argparse.Namespace, ledger: LedgerFile, rollout: Rollout, reason: str) -> None:
    if not rollout.is_aborted:
        ledger.append(Line(0, "", "abort", _author(args), rollout=rollout.id, text=reason), Clock().now())


def _take_back(args: argparse.Namespace, city: city_config.City, plan: Plan, ledger: LedgerFile) -> None:
    """Make an earlier number stable, and print so."""
    with _control(args, city) as control, _street(args, city, plan.tls, control) as street, _lock(ledger, plan.tls):
        print(_run(args, city, plan, ledger, street, Path()).take_back().sentence)


def _adopt(args: argparse.Namespace, city: city_config.City, ledger: LedgerFile, tls: list[str]) -> None:
    """Write the numbers that drive TLs into the ledger, and print them."""
    from rollout import model_files

    models_dir = args.models_dir or city.serving.models_dir
    with _control(args, city) as control, _street(args, city, tuple(tls), control) as street:
        seen = street.see(tls).tls
    if silent := [tl for tl in tls if not seen[tl].version]:
        raise InputError(f"{', '.join(silent)}: no model has answered yet; wait for one (greenserve ctl tls)")
    models = {tl: model_files.of_version(models_dir, tl, seen[tl].version) for tl in tls}
    ledger.append(Line(0, "", "adopt", _author(args), models, text="released without a rollout"), Clock().now())
    print(f"{ledger.path}: " + ", ".join(f"{tl} is driven by {model.number}" for tl, model in models.items()))


def _request(argv: list[str], prog: str, kind: str) -> int:
    def run() -> int:
        args = request_parser(prog).parse_args(argv)
        ledger = LedgerFile(ledger_path(args))
        rollout = _rollout(ledger, args.tls)
        ledger.append(Line(0, "", kind, _author(args), rollout=rollout.id), Clock().now())
        print(f"rollout {rollout.id} of {', '.join(rollout.targets)}: {kind}d")
        return 0

    return program.run(run)


def _run(
    args: argparse.Namespace,
    city: city_config.City,
    plan: Plan,
    ledger: LedgerFile,
    street: ServedStreet,
    record: Path,
    **settings: Any,
) -> RolloutRun:
    # imported after the checks of the flags: it takes seconds
    from rollout.judges import StreetJudges

    models_dir = args.models_dir or city.serving.models_dir
    kept = ledger.path.with_name("rollouts") / f"{'-'.join(plan.tls)[:80]}-{plan.number}"
    judges = StreetJudges(city, models_dir, record, street.clients[0], kept, plan.limits, **settings)
    return RolloutRun(plan, ledger, street, judges, program.print_line)


def _rollout(ledger: LedgerFile, tls: list[str]) -> Rollout:
    """The open rollout of a TL. Raises InputError."""
    known = names.select(tls, list(ledger.state.tls), "TL")
    rollout = ledger.state.rollout_of(known[0])
    if rollout is None:
        raise InputError(f"{known[0]} is in no open rollout; greenserve rollout status lists them")
    return rollout


def _status_rows(ledger: LedgerFile, rollout: Rollout) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for tl, target in rollout.targets.items():
        state, passed = ledger.state.tls[tl], rollout.passed[tl]
        own = (line for line in ledger.lines if line.rollout == rollout.id and tl in line.models)
        verdicts = [line for line in own if line.kind == "stage"]
        stage = "aborted" if rollout.is_aborted else STAGES[passed] if passed < len(STAGES) else "end"
        paused = " (paused)" if rollout.is_paused else ""
        canary = " (canary)" if state.canary is not None else ""
        changing = f" -> {state.wanted.number}" if state.wanted != state.drives else ""
        newest = f"{verdicts[-1].stage}: {verdicts[-1].verdict}: {verdicts[-1].text}" if verdicts else ""
        rows.append(
            (
                rollout.id, tl, f"{state.drives.number}{changing}{canary}", str(target.number), f"{stage}{paused}",
                rollout.owner, rollout.until, newest,
            )
        )  # fmt: skip
    return rows


def _plan(args: argparse.Namespace, tls: tuple[str, ...], number: int) -> Plan:
    """The plan of the flags. Raises InputError."""
    skipped = frozenset(filter(None, (part.strip() for part in args.skip.split(","))))
    if unknown := sorted(skipped - set(SKIPPABLE)):
        raise InputError(f"--skip {unknown[0]}: only {' and '.join(SKIPPABLE)} can be left out")
    if not 1 <= number < 1 << 63:
        raise InputError(f"--to {number} must be a model number, such as 4")
    for name, (low, high) in BOUNDS.items():
        if not low <= getattr(args, name) <= high:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} {getattr(args, name):g} must lie between {low:g} and {high:g}")
    limits = replace(Limits(), **{name: getattr(args, name) for name in LIMITS})
    if negative := [name for name in LIMITS if not getattr(limits, name) >= (2 if name == "min_bins" else 0)]:
        raise InputError(f"--{negative[0].replace('_', '-')} {getattr(limits, negative[0]):g} is too small")
    return Plan(
        tls, number, _author(args), args.together, args.until, skipped, _hours(args.hours), limits, args.max_wait_s,
        args.poll_s,
    )  # fmt: skip


def _hours(text: str | None) -> tuple[float, float] | None:
    """Begin and end, as seconds of the day. Raises InputError."""
    if text is None:
        return None
    try:
        begin, end = ((int(part.partition(":")[0]), int(part.partition(":")[2])) for part in text.split("-"))
        if all(0 <= hour < 24 and 0 <= minute < 60 for hour, minute in (begin, end)) and begin != end:
            return begin[0] * 3600.0 + begin[1] * 60, end[0] * 3600.0 + end[1] * 60
    except ValueError:
        pass  # reported below
    raise InputError(f"--hours {text!r} must be two different times of day, such as 09:00-16:00")


def _author(args: argparse.Namespace) -> str:
    if args.author:
        return str(args.author)
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user without a name
        return f"unnamed@{socket.gethostname()}"


def _control(args: argparse.Namespace, city: city_config.City) -> ControlClient:
    if (args.control_tls_certificate is None) != (args.control_tls_key is None):
        raise InputError("--control-tls-certificate and --control-tls-key belong together; pass both")
    files = TlsFiles(args.control_tls_ca, args.control_tls_certificate, args.control_tls_key, "")
    tls = None if files == TlsFiles() else files.read()
    address = args.control_address or city.controller.control_address or DEFAULT_ADDRESS
    return ControlClient(address, tls)


def _street(
    args: argparse.Namespace, city: city_config.City, tls: tuple[str, ...], control: ControlClient
) -> ServedStreet:
    name, district = check_tls(city, tls)
    server = args.server or (district.address if district is not None else city.serving.address)
    fleet = district.fleet or name if district is not None else city.serving.fleet
    return ServedStreet(city, server, args.config / name, control, fleet)


class _Runs(InputError):
    """Another process on this machine runs the rollout."""


@contextlib.contextmanager
def _lock(ledger: LedgerFile, tls: tuple[str, ...]) -> Iterator[None]:
    """Hold the lock of the rollouts of these TLs. Raises _Runs."""
    key = sha256(",".join(sorted(tls)).encode()).hexdigest()[:12]
    message = f"another process rolls out {', '.join(tls)}; wait for its end, or greenserve rollout abort {tls[0]}"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(run_lock.held(ledger.path.with_name(f".{ledger.path.name}.{key}.lock"), message))
        except InputError as error:
            raise _Runs(str(error)) from None
        yield


if __name__ == "__main__":
    sys.exit(main())
