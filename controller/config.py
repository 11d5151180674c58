"""Settings of one controller, from flags and city.toml."""

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from city import config as city_config
from city import logs, names, whole_files
from city.arguments import Parser, host_and_port, simulated_second, split_arguments
from city.config import MAX_DEADLINE_MS, MAX_SPEED, City
from city.errors import InputError, os_errors
from controller import control_address, model_settings
from controller.control_address import ControlAddress
from controller.model_settings import ModelSettings
from controller.policies import no_policies
from controller.sumo import access
from controller.sumo.access import MAX_INT32, SumoAccess
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from serving.client.tls_files import FLAGS as TLS_FLAGS
from signals import dialects
from signals.fallback.scored_greens import Greedy, MaxPressure

SERVED = "served"
BASELINES = (MaxPressure.name, Greedy.name)
"""Baselines that control the TLs without a model."""


@dataclass(frozen=True)
class ControllerConfig:
    city: City
    infer_tls: tuple[str, ...]
    models: ModelSettings
    sumo: SumoAccess
    libsumo: bool
    guard: bool
    """True if a guard holds the connection to SUMO, so that the simulation goes on for other clients if this process
    dies."""
    end_s: float | None
    tripinfo: Path | None
    http: tuple[str, int] | None
    summary: Path | None
    log_level: str
    strict: bool = False
    """True if a TL that must be left on its own program is an error."""
    policy: str = SERVED
    """Control of the TLs: `served` policies of the model server, or one of BASELINES, without a server."""
    record: Path | None = None
    """Folder of the run's record."""
    control: ControlAddress | None = None
    """Where operators reach this controller; None: nowhere."""
    speed: float = 0.0
    """Simulated seconds per wall second; 0: as fast as possible."""
    page: tuple[str, int] | None = None
    """(host, port) of the live page, on loopback; None: there is none."""

    @property
    def driver(self) -> str | None:
        """The baseline that controls in the place of served policies; None with these."""
        return None if self.policy == SERVED else self.policy


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Control a city's signals with served policies, or by a baseline without a model.",
        epilog="Arguments after -- are passed to the SUMO that is started.",
    )
    parser.add_city()
    parser.add_argument(
        "--infer-tl",
        action="append",
        metavar="TL",
        help="TLs to control, separated by commas or repeated (default: all)",
    )
    parser.add_argument(
        "--policy", choices=(SERVED, *BASELINES), default=SERVED,
        help="what controls the TLs: models of the server; or max-pressure or greedy, which need neither server nor "
        "models and control every signal with two greens or more if the city's description has no TL (default: "
        "served)",
    )  # fmt: skip
    model_settings.add_flags(parser)
    parser.add_argument(
        "--deadline-ms", type=float, metavar="MS", help="bound on one decision (default: [controller] deadline_ms)"
    )
    access.add_flags(parser, clients=1)
    parser.add_argument(
        "--no-guard",
        action="store_true",
        help="hold the connection to SUMO in this process even if there are other clients",
    )
    parser.add_argument(
        "--libsumo", action="store_true", help="run SUMO inside this process; no other client can attach"
    )
    parser.add_strict()
    parser.add_argument("--seed", type=int, metavar="N", help="SUMO's random seed (default: SUMO's)")
    parser.add_argument(
        "--end", type=simulated_second, metavar="TIME",
        help="simulated time to stop at, s or h:m:s such as 08:15:00 (default: the simulation's)",
    )  # fmt: skip
    parser.add_argument(
        "--tripinfo", type=Path, metavar="FILE", help="write SUMO's tripinfo, including vehicles that never arrive"
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /healthz and /livez there (default: [controller] http_address)",
    )
    parser.add_argument(
        "--record", type=_folder, metavar="FOLDER",
        help="record every decision in MCAP files there (default: [controller] record)",
    )  # fmt: skip
    control_address.add_flags(parser)
    parser.add_argument(
        "--page",
        metavar="HOST:PORT",
        help="serve the live page there, on loopback, such as 127.0.0.1:8080 (default: no page)",
    )
    parser.add_argument(
        "--models-dir", type=Path, metavar="DIR",
        help="folder of models on this machine, whose export manifests the page shows (default: [serving] models_dir)",
    )  # fmt: skip
    parser.add_argument(
        "--speed", type=float, metavar="X",
        help="simulated seconds per wall second: 1 is real time, 0 as fast as possible (default: [controller] speed)",
    )  # fmt: skip
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the run's figures as JSON")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info",
        help="debug explains every override and missing answer (default: info)",
    )  # fmt: skip
    logs.add_flag(parser)
    return parser


def parse(argv: list[str], prog: str = "python -m controller") -> ControllerConfig:
    """Read the command line. Raises InputError."""
    flags, sumo_options = split_arguments(argv)
    args = parser(prog).parse_args(flags)
    _check_flags(args, sumo_options)
    is_served = args.policy == SERVED
    city, tls = model_settings.in_district(_city(args), args.district, is_required=args.server is None and is_served)
    sumo = access.from_flags(args, _sumo_arguments(args, city, sumo_options))
    # With --no-guard too: --sumo may be the address of a guard, which cuts off a controller that waits for an answer.
    if sumo.has_other_clients and city.controller.watchdog_s < 2 * city.controller.deadline_ms / 1000:
        raise InputError(
            f"a decision may take {city.controller.deadline_ms:g} ms (deadline_ms), but a guard cuts off a controller "
            f"that is silent for {city.controller.watchdog_s:g} s: set watchdog_s to at least twice the deadline"
        )
    http = args.http or city.controller.http_address
    record = args.record or city.controller.record
    if record is not None:
        _check_record("--record" if args.record else f"{args.city}: [controller] record", record)
    return ControllerConfig(
        city=city,
        infer_tls=tuple(names.select(args.infer_tl or ["all"], list(tls), "--infer-tl", city.tl_of_signal)),
        models=model_settings.read(args, city),
        sumo=sumo,
        libsumo=args.libsumo,
        guard=sumo.has_other_clients and not args.no_guard and not args.libsumo,
        end_s=args.end,
        tripinfo=args.tripinfo,
        http=host_and_port(http, "--http") if http else None,
        summary=args.summary,
        log_level=args.log_level,
        strict=args.strict,
        policy=args.policy,
        record=record,
        control=control_address.from_flags(args, city),
        page=page_address(args.page) if args.page else None,
        speed=city.controller.speed if args.speed is None else args.speed,
    )


def _sumo_arguments(args: argparse.Namespace, city: City, options: Sequence[str]) -> list[str]:
    """The arguments of the SUMO that is started. `options`: the user's."""
    files = city.network
    source = ["-c", str(files.sumocfg)] if files.sumocfg else ["-n", str(files.net)]
    if files.begin_s is not None:
        source += ["--begin", f"{files.begin_s:.15g}"]
    seed = [] if args.seed is None else ["--seed", str(args.seed)]
    trips = [] if args.tripinfo is None else ["--tripinfo-output", str(args.tripinfo), *TRIPINFO_OPTIONS]
    return [*source, "--no-step-log", "true", "--no-warnings", "true", *seed, *trips, *options]


def page_address(text: str) -> tuple[str, int]:
    """The address of the live page. Raises InputError."""
    host, port = host_and_port(text, "--page", "127.0.0.1:8080")
    if not control_address.is_loopback(host):
        raise InputError(
            f"--page {text}: any computer that reaches it would see the page; listen on 127.0.0.1, and let other "
            f"computers in with ssh -L {port}:127.0.0.1:{port}"
        )
    return host, port


def _check_flags(args: argparse.Namespace, sumo_options: Sequence[str]) -> None:
    start_only = {
        "--seed": args.seed,
        "--tripinfo": args.tripinfo,
        "--libsumo": args.libsumo or None,
        "--gui": args.gui or None,
        "arguments after --": sumo_options or None,
    }
    passed = [flag for flag, value in start_only.items() if value is not None]
    if args.sumo and passed:
        raise InputError(f"{passed[0]} is for a SUMO started here; it cannot be combined with --sumo {args.sumo}")
    if args.libsumo and (args.clients > 1 or args.order is not None):
        raise InputError("--libsumo has no other clients; leave --clients and --order out")
    if args.libsumo and args.gui:
        raise InputError("--libsumo has no window; leave it or --gui out")
    _check_policy(args)
    if args.models_dir is not None and args.page is None:
        raise InputError(
            "--models-dir is for the live page, which shows the models' export manifests; pass --page, or leave it out"
        )
    _check_ranges(args)
    model_settings.check_version(args)
    for flag, path in (("--summary", args.summary), ("--tripinfo", args.tripinfo)):
        if path is not None:
            whole_files.check_writable(flag, path)


def _check_policy(args: argparse.Namespace) -> None:
    of_server = ("server", "models_dir", "fleet", "model_number", "version_label", "deadline_ms", *TLS_FLAGS)
    passed = [f"--{name.replace('_', '-')}" for name in of_server if getattr(args, name) is not None]
    if args.policy != SERVED and passed:
        raise InputError(f"{passed[0]} is for served policies; leave it out, or leave --policy {args.policy} out")


def _check_ranges(args: argparse.Namespace) -> None:
    for flag, value, low, high, rule in (
        ("--seed", args.seed, 0, MAX_INT32, f"lie between 0 and {MAX_INT32}"),
        ("--end", args.end, 0, 1e9, "be a simulated second, such as 3600"),
        ("--speed", args.speed, 0, MAX_SPEED, f"lie between 0 and {MAX_SPEED}"),
        ("--deadline-ms", args.deadline_ms, 1e-6, MAX_DEADLINE_MS, f"be above 0 and at most {MAX_DEADLINE_MS}"),
    ):
        if value is not None and not low <= value <= high:
            text = f"{value:g}" if isinstance(value, float) else value
            raise InputError(f"{flag} {text} must {rule}")


def _city(args: argparse.Namespace) -> City:
    """The city with the values of --models-dir and --deadline-ms, if they are passed. Raises InputError.

    For a baseline, every signal is a TL if none is described.
    """
    city = city_config.load(args.city)
    if args.policy != SERVED:
        city = no_policies.with_tls(city)
    if not city.tls:
        raise InputError(f"{args.city}: describes no TL; add tables such as [tl.SA101]")
    dialects.check_city_settings(city)
    if args.models_dir is not None:
        city = replace(city, serving=replace(city.serving, models_dir=args.models_dir))
    if args.deadline_ms is None:
        return city
    return replace(city, controller=replace(city.controller, deadline_ms=args.deadline_ms))


def _folder(text: str) -> Path:
    """A folder's name; an empty one, such as an unset variable of a script, is not the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the folder has no name; pass one such as records")
    return Path(text)


def _check_record(where: str, folder: Path) -> None:
    """Raise InputError if there can be no record in a folder, which need not exist yet."""
    if importlib.util.find_spec("mcap") is None:
        raise InputError(f"{where} {folder}: a record needs the extra record: pip install greenserve[record]")
    if not folder.parent.is_dir():
        raise InputError(f"{where} {folder}: there is no folder {folder.parent}; create it")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{where} {folder}: is a file; name a folder")


def make_record_folder(folder: Path) -> None:
    """Create the folder of a record, and write to it. Raises InputError."""
    with os_errors(f"record folder {folder}: cannot be written", "name another folder"):
        folder.mkdir(exist_ok=True)
        # os.access knows neither full nor read-only disks
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"\0")
