"""`greenserve ctl`: watch a running controller and command it."""

import argparse
import getpass
import json
import sys
import time
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from city import config as city_config
from city import names, program, text_table
from city.arguments import Parser, host_and_port
from city.errors import InputError, ProgramFailed
from city.printable import printable
from controller.operator import command_log
from controller.operator.control_client import ControlClient
from controller.operator.control_messages import METHODS, fields
from protos import control_pb2 as pb
from serving.client import Tls
from serving.client.tls_files import TlsFiles

DEFAULT_ADDRESS = "127.0.0.1:9110"
MAX_TIMEOUT_S = 3600.0
MAX_STEP_S = 1e6
"""Simulated seconds of one `step`."""
DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0}
"""Units of --for."""
CLEAR = "\x1b[H\x1b[J"
"""Moves a terminal's cursor to its begin and clears the rest."""
RECENT_COMMANDS = 5
COMMANDS: dict[str, tuple[str, str]] = {
    "tls": ("ListTls", "show every TL: mode, who set it, model, reason"),
    "watch": ("ListTls", "show the TLs again and again; with --json, a line for each new step"),
    "set": ("SetMode", "set TLs to policy, hold or fixed"),
    "pin": ("PinModel", "ask a TL's own model by number, or its latest one again"),
    "reload": ("ReloadContracts", "compare the contracts of the served models again"),
    "pause": ("Pause", "pause the simulation"),
    "resume": ("Resume", "resume it"),
    "step": ("Step", "simulate for some seconds, then pause"),
    "speed": ("SetSpeed", "set the simulated seconds per wall second"),
    "alarms": ("ListAlarms", "show the active alarms and what to do; with ALARM, the runbook's section too"),
    "ack": ("AcknowledgeAlarm", "acknowledge an alarm until it ends"),
    "log": ("ListCommands", "show operators' commands, also those before the controller's start"),
}
"""By subcommand, its method and its summary. Arguments with the name of a field of the request become its values."""
_FILE: dict[str, Any] = dict(type=Path, metavar="FILE")
SHARED_FLAGS: dict[str, dict[str, Any]] = {
    "--address": dict(
        metavar="HOST:PORT",
        help="the controller's --control-address (default: [controller] control_address of --city, else "
        f"{DEFAULT_ADDRESS})",
    ),
    "--city": dict(_FILE, help="the city's description (default: ./city.toml if it exists)"),
    "--json": dict(action="store_true", help="print JSON, for scripts"),
    "--author": dict(metavar="NAME", help="name in log and record (default: the user's name)"),
    "--timeout-s": dict(type=float, default=15.0, metavar="S", help="deadline of each call (default: 15)"),
    "--tls-ca": dict(_FILE, help="TLS: CA bundle (PEM) that verifies the controller"),
    "--tls-certificate": dict(_FILE, help="client certificate (PEM); its name is the author"),
    "--tls-key": dict(_FILE, help="client key (PEM)"),
    "--tls-server-name": dict(default="", metavar="NAME", help="name in the controller's certificate"),
}
"""Flags of every subcommand; --author only of those that command."""


def _duration(text: str) -> float:
    """Seconds of a text such as 90, 90s, 30m or 2h, for argparse's `type`."""
    unit = DURATIONS.get(text[-1:])
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 90, 90s, 30m or 2h")
    return seconds


_SHOWN_TLS: dict[str, Any] = dict(nargs="*", metavar="TL", help="TLs to show (default: all)")
ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "tls": {"tls": _SHOWN_TLS},
    "watch": {
        "tls": _SHOWN_TLS,
        "--interval-s": dict(
            type=float, default=1.0, metavar="S", help="wall time between two updates (default: 1)"
        ),
    },
    "set": {
        "mode": dict(
            choices=("policy", "hold", "fixed"), help="hold keeps the state, fixed is the signals' own programs"
        ),
        "tls": dict(nargs="+", metavar="TL", help="TLs, or all"),
        "--for": dict(
            dest="for_seconds", type=_duration, default=0.0, metavar="TIME",
            help="simulated time such as 90, 90s, 30m or 2h, then policy again (default: until it is taken back)",
        ),
        "--reason": dict(default="", metavar="TEXT", help="reason, for log, record and pages"),
    },
    "pin": {"tl": dict(metavar="TL"), "version": dict(metavar="VERSION", help="model number, or latest")},
    "step": {
        "seconds": dict(nargs="?", type=float, default=1.0, metavar="S", help="simulated seconds (default: 1)")
    },
    "speed": {"factor": dict(type=float, metavar="X", help="1 is real time; 0: as fast as possible")},
    "alarms": {
        "alarms": dict(
            nargs="*", metavar="ALARM",
            help="ids or names of alarms, shown with the runbook's section (default: all, without)",
        ),
        "--all": dict(action="store_true", dest="with_ended", help="show ended alarms too"),
    },
    "ack": {"id": dict(metavar="ALARM", help="id of an active alarm")},
    "log": {"--csv": dict(action="store_true", help="print CSV")},
}  # fmt: skip
"""By subcommand, the arguments that it has for itself."""


def parser(prog: str) -> Parser:
    """The parser of all subcommands."""
    parser = Parser(
        prog=prog, description="Watch a running controller and command it (greenserve control --control-address).",
        epilog="Flags that the commands share, such as --address and --json, may stand before COMMAND too.",
    )  # fmt: skip
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name, (method, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        for argument, options in ARGUMENTS.get(name, {}).items():
            command.add_argument(argument, **options)
        _add_shared_flags(command, is_command="author" in _fields_of(method))
    return parser


def subparser(prog: str) -> argparse.ArgumentParser:
    """The parser of one subcommand. `prog`: ends with its name."""
    ctl, _, name = prog.rpartition(" ")
    (action,) = (each for each in parser(ctl)._actions if isinstance(each, argparse._SubParsersAction))
    found: argparse.ArgumentParser = action.choices[name]
    return found


def _command_first(argv: Sequence[str]) -> list[str]:
    """Move the flags before the subcommand behind it, because only the parser of the subcommand reads them."""
    shared = Parser(add_help=False)
    _add_shared_flags(shared, is_command=True)
    at = 0
    while at < len(argv) and (flag := shared._option_string_actions.get(argv[at].partition("=")[0])) is not None:
        at += 1 if flag.nargs == 0 or "=" in argv[at] else 2
    return [*argv[at : at + 1], *argv[:at], *argv[at + 1 :]]


def _fields_of(method: str) -> Set[str]:
    request_type, _ = METHODS[method]
    return set(request_type.DESCRIPTOR.fields_by_name)


def _add_shared_flags(command: argparse.ArgumentParser, is_command: bool) -> None:
    for flag, options in SHARED_FLAGS.items():
        if is_command or flag != "--author":
            command.add_argument(flag, **options)


def main(argv: list[str] | None = None, prog: str = "python -m controller.operator.ctl") -> int:
    """Run a subcommand. Exit code: 0; 2 if the input is wrong, or no controller is at the address; 1 if the controller
    does not answer."""

    def run() -> int:
        args = parser(prog).parse_args(_command_first(sys.argv[1:] if argv is None else argv))
        if not 0 < args.timeout_s <= MAX_TIMEOUT_S:
            raise InputError(f"--timeout-s {args.timeout_s:g} must be above 0 and at most {MAX_TIMEOUT_S:g}")
        args.tls, args.alarms = (_listed(vars(args).get(name, ())) for name in ("tls", "alarms"))
        files = TlsFiles(args.tls_ca, args.tls_certificate, args.tls_key, args.tls_server_name)
        with ControlClient(_address(args), tls_of(files, "--tls"), args.timeout_s) as client:
            if args.command == "watch":
                return _watch(client, args)
            answer = _call(client, args)
        if args.command == "log" and args.csv:
            print(command_log.as_csv(answer.commands), end="")
            return 0
        print(json.dumps(fields(answer)) if args.json else describe(answer))
        if args.command == "alarms" and answer.alarms and not args.json:
            print(
                _runbook(answer.alarms, text_table.terminal_width())
                if args.alarms
                else "the runbook: greenserve ctl alarms ALARM"
            )
        return 0

    return program.run(run)


def _address(args: argparse.Namespace) -> str:
    if args.address is not None:
        host_and_port(args.address, "--address", DEFAULT_ADDRESS)
        return str(args.address)
    return city_config.load_if_exists(args.city).controller.control_address or DEFAULT_ADDRESS


def tls_of(files: TlsFiles, flags: str) -> Tls | None:
    """The certificates of files; None: plain text. `flags`: begin of their flags. Raises InputError."""
    if (files.certificate is None) != (files.key is None):
        raise InputError(f"{flags}-certificate and {flags}-key belong together; pass both")
    return None if files == TlsFiles() else files.read()


def _call(client: ControlClient, args: argparse.Namespace) -> Any:
    """Call the subcommand's method and return its answer. Raises InputError, ProgramFailed."""
    if args.command == "set" and args.for_seconds and args.mode == "policy":
        raise InputError("--for is for the modes hold and fixed; leave it out")
    values = dict(vars(args))
    if "author" in values:
        values["author"] = args.author or user()
    if args.command == "step":
        if not 0 < args.seconds <= MAX_STEP_S:
            raise InputError(f"S {args.seconds:g} must be greater than 0 and at most {MAX_STEP_S:g}")
        values["until_s"] = client.call("Pause", pb.PauseRequest(author=values["author"])).second + args.seconds
    method, _ = COMMANDS[args.command]
    request_type, _ = METHODS[method]
    answer = client.call(method, request_type(**{name: values[name] for name in _fields_of(method) & values.keys()}))
    return _selected_alarms(answer, args.alarms) if args.command == "alarms" else answer


def _selected_alarms(answer: pb.Alarms, wanted: Sequence[str]) -> pb.Alarms:
    """The answer with the alarms of these ids and names alone. Raises InputError if one is not there.

    Without `wanted`, all.
    """
    for name in wanted:
        if not any(name in (alarm.id, alarm.name) for alarm in answer.alarms):
            ids = [alarm.id for alarm in answer.alarms]
            remedy = (
                f"pass one of {names.listed(ids, 20)}" if ids else "no alarm is listed; --all lists the ended ones too"
            )
            raise InputError(f"{printable(name)}: no listed alarm has this id or name; {remedy}")
    return pb.Alarms(
        run=answer.run,
        alarms=[alarm for alarm in answer.alarms if not wanted or alarm.id in wanted or alarm.name in wanted],
    )


def _watch(client: ControlClient, args: argparse.Namespace) -> int:
    """Print each new step as a line of JSON, or the table of the TLs again and again."""
    if not 0 < args.interval_s <= 60:
        raise InputError(f"--interval-s {args.interval_s:g} must be above 0 and at most 60")
    listed = pb.ListTlsRequest(tls=args.tls)
    # an unknown TL is an error before the first update
    selected = {state.tl for state in client.call("ListTls", listed).tls}
    unread: ProgramFailed | None = None
    for decisions in client.watch(args.interval_s):
        if args.json:
            if args.tls:
                kept = [decision for decision in decisions.decisions if decision.tl in selected]
                del decisions.decisions[:]
                decisions.decisions.extend(kept)
            print(json.dumps(fields(decisions)), flush=True)
        else:
            if unread is not None:
                raise unread
            try:
                state = client.call("ListTls", listed)
            except ProgramFailed as error:
                unread = error  # after the last step the controller ends, and so does the stream
                continue
            alarms = ", ".join(decisions.active_alarms) or "none"
            print(f"{CLEAR if sys.stdout.isatty() else ''}{describe(state)}\nalarms: {alarms}", flush=True)
    print("the run has ended", file=sys.stderr)
    return 0


def _listed(values: Iterable[str]) -> list[str]:
    """The TLs of arguments that may each list several, separated by commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def user() -> str:
    """The user's name, for log and record."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "unnamed"


def describe(answer: Any) -> str:
    """An answer as text for people."""
    width = text_table.terminal_width()
    if isinstance(answer, pb.Run):
        return _header(answer)
    if isinstance(answer, pb.Alarms):
        return "\n".join([_header(answer.run), _alarms(answer.alarms, width)])
    if isinstance(answer, pb.Commands):
        rows = [(command_log.wall_time(c), f"{c.at_s:g}", text) for c, text in command_log.lines(answer.commands)]
        return text_table.render(("TIME", "SECOND", "COMMAND"), rows, width) if rows else "no commands yet"
    if isinstance(answer, pb.ReloadContractsResponse):
        unknown = (
            ""
            if answer.compared or answer.failed
            else ": no TL's own model has answered since the server was reached last"
        )
        lines = [_header(answer.run), f"{answer.compared} contracts compared{unknown}"]
        for text, tls in (("changed, not followed", answer.changed), ("not readable", answer.failed)):
            lines += [f"{text}: {names.listed(tls, 20)}"] if tls else []
        return "\n".join(lines)
    parts = [_header(answer.run), _tls_table(answer.tls, width)]
    if isinstance(answer, pb.ControllerState):
        parts += answer.rollouts
        parts += [f"second {c.at_s:g}: {text}" for c, text in command_log.lines(answer.commands)[-RECENT_COMMANDS:]]
    return "\n".join(parts)


def _header(run: pb.Run) -> str:
    speed = f"{run.speed:g} x real time" if run.speed else "as fast as possible"
    state = (
        "paused"
        if run.is_paused
        else f"stepping to second {run.step_until_s:g}"
        if run.step_until_s
        else f"runs {speed}"
    )
    text = f"second {run.second:g}, {state}, policy {run.policy}"
    if run.speed and not run.is_paused:
        text += f", {run.lateness_s:.2f} s late now, {run.late_steps} late steps, {run.lost_s:.1f} s lost"
    return text


def _tls_table(tls: Sequence[pb.TlState], width: int | None) -> str:
    rows = []
    for state in tls:
        until = f" until {state.until_s:g}" if state.until_s else ""
        model = f"{state.model or '-'}:{state.version}" if state.version else "-"
        left = f" for {state.pinned_for_s:.0f} s" if state.pinned_for_s else ""
        pinned = f" (pinned by {state.pinned_by}: {state.pinned_version}{left})" if state.pinned_version else ""
        rows.append(
            (
                state.tl,
                state.mode,
                f"{state.since_s:g}",
                f"{state.set_by}{until}{f' ({state.set_reason})' if state.set_reason else ''}" or "-",
                f"{model}{pinned}",
                ", ".join(state.shown_names),
                state.reason,
            )
        )
    return text_table.render(("TL", "MODE", "SINCE", "SET BY", "MODEL", "SHOWN", "REASON"), rows, width)


def _alarms(alarms: Sequence[pb.Alarm], width: int | None) -> str:
    if not alarms:
        return "no alarm is active"
    rows = []
    for alarm in alarms:
        ended = "" if alarm.is_active else f" to {alarm.ended_s:g}"
        began = f"{time.strftime('%H:%M:%S', time.localtime(alarm.since_unix_s))} (second {alarm.since_s:g}{ended})"
        more = alarm.subject_count - len(alarm.subjects)
        subjects = ", ".join(alarm.subjects) + (f" and {more} more" if more > 0 else "")
        cause = alarm.consequence_of and f"a consequence of {alarm.consequence_of}"
        rows.append(
            (
                alarm.id,
                alarm.severity,
                began,
                str(alarm.count),
                alarm.acknowledged_by or "-",
                "; ".join(filter(None, (subjects, alarm.text, cause, alarm.remedy))),
            )
        )
    return text_table.render(("ALARM", "SEVERITY", "SINCE", "COUNT", "ACKNOWLEDGED", "WHAT"), rows, width)


def _runbook(alarms: Iterable[pb.Alarm], width: int | None) -> str:
    """The runbook's section of each kind of alarm."""
    lines = []
    for name, instructions in {alarm.name: alarm.instructions for alarm in alarms}.items():
        lines += ["", printable(name)]
        lines += [text_table.wrapped(printable(line), width) for line in instructions.split("\n")]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
