"""The embedded server's command line, with the names of tensorflow_model_server's flags, and city.toml."""

import argparse
import math
import re
from pathlib import Path

from city import config as city_config
from city import logs
from city.arguments import CITY_FILE, Parser, host_and_port
from city.errors import InputError, refuse
from city.signatures import Signers
from city.version import VERSION
from protos.model_server_config_pb2 import SSLConfig
from serving.client.channel import MAX_MESSAGE_BYTES
from serving.embedded.config import (
    MAX_MESSAGE_MB,
    RestConfig,
    ServerConfig,
    default_threads,
    metrics_path_from_file,
    ssl_from_file,
)
from serving.embedded.models import model_config
from serving.embedded.models.manager import LoadOptions
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.rest.request_body import MAX_BODY_BYTES

MAX_COUNT = 100_000
"""Maximum of thread, retry and queue counts."""
MAX_INTERVAL_S = 86_400
"""Maximum of every interval and timeout: one day."""
MAX_BODY_BYTES_LIMIT = 1 << 26
"""Maximum of --rest_api_max_body_bytes: while JSON of 64 MiB is parsed, about a second, gRPC calls wait."""
MAX_MESSAGE_MB_LIMIT = 2048
"""Maximum of --grpc_max_message_mb: protobuf's limit of a message."""
DEFAULT_NAME = "default"
"""tensorflow_model_server's default of --model_name."""
_BOUNDS = (
    ("port", 0, 65_535),
    ("rest_api_port", 0, 65_535),
    ("grpc_max_threads", 1, MAX_COUNT),
    ("num_load_threads", 0, MAX_COUNT),
    ("max_num_load_retries", 0, MAX_COUNT),
    ("max_queued_calls", 1, MAX_COUNT),
    ("rest_api_num_threads", 1, MAX_COUNT),
    ("rest_api_max_body_bytes", 1, MAX_BODY_BYTES_LIMIT),
    ("grpc_max_message_mb", 1, MAX_MESSAGE_MB_LIMIT),
    ("file_system_poll_wait_seconds", -MAX_INTERVAL_S, MAX_INTERVAL_S),
    ("model_config_file_poll_wait_seconds", -MAX_INTERVAL_S, MAX_INTERVAL_S),
    ("rest_api_timeout_in_ms", -1000 * MAX_INTERVAL_S, 1000 * MAX_INTERVAL_S),
    ("load_retry_interval_micros", -1_000_000 * MAX_INTERVAL_S, 1_000_000 * MAX_INTERVAL_S),
)
"""(flag, its minimum, its maximum)."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Serve models with TensorFlow Serving's gRPC and REST APIs; flags have its names.",
        epilog="Without model flags every model of [serving] models_dir is served.",
    )
    parser.add_city(is_optional=True)
    parser.add_argument(
        "--models-dir",
        "--models_dir",
        type=Path,
        metavar="DIR",
        help="serve every model of this folder (default: [serving] models_dir)",
    )
    parser.add_argument(
        "--model_name",
        default=DEFAULT_NAME,
        metavar="NAME",
        help="name of the one model at --model_base_path (default: default)",
    )
    parser.add_argument(
        "--model_base_path", type=_path, metavar="DIR", help="folder of one model's versions, an absolute path"
    )
    parser.add_argument(
        "--model_config_file",
        type=_path,
        metavar="FILE",
        help="ModelServerConfig as text: several models, version policies, labels",
    )
    parser.add_argument(
        "--model_config_file_poll_wait_seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="interval at which that file is read again (default: 0, only at the start)",
    )
    parser.add_argument(
        "--models_root",
        type=_path,
        metavar="DIR",
        help="folder in which the models of reload requests must lie, links resolved (default: that of the models at "
        "the start)",
    )
    _add_switch(
        parser,
        "--enable_reload_config_request",
        True,
        "answer HandleReloadConfigRequest, by which a client replaces the models",
    )
    _add_switch(
        parser,
        "--allow_any_operation",
        False,
        "also load models that do more than an actor, such as reading files; only for trusted models",
    )
    parser.add_argument(
        "--require_signed_by",
        type=_path,
        metavar="FILE",
        help="load only versions that are signed by the owner of one of these public keys (P-256), of one of these "
        "certificates, or of one that they issued, as PEM (default: all versions)",
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default: that of [serving] address, loopback)"
    )
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="gRPC port, 0: the system chooses (default: [serving] address)"
    )
    parser.add_argument(
        "--file_system_poll_wait_seconds",
        "--poll-s",
        type=float,
        default=1.0,
        metavar="S",
        help="interval between polls for new versions; 0: poll once, negative: never (default: 1)",
    )
    parser.add_argument(
        "--grpc_max_threads",
        type=int,
        metavar="N",
        help="concurrent calls (default: one per core, at least 2; tensorflow_model_server: 4 per core)",
    )
    parser.add_argument(
        "--max_queued_calls",
        type=int,
        default=1000,
        metavar="N",
        help="calls that may wait for a thread; further ones are answered RESOURCE_EXHAUSTED (default: 1000)",
    )
    parser.add_argument(
        "--grpc_max_message_mb",
        type=int,
        default=MAX_MESSAGE_MB,
        metavar="MB",
        help="largest request over gRPC in MiB; larger ones are answered RESOURCE_EXHAUSTED (default: "
        f"{MAX_MESSAGE_MB})",
    )
    parser.add_argument(
        "--rest_api_port", type=int, default=0, metavar="PORT", help="port of the REST API, 0: off (default: 0)"
    )
    parser.add_argument(
        "--rest_api_num_threads", type=int, default=8, metavar="N", help="threads of the REST API (default: 8)"
    )
    parser.add_argument(
        "--rest_api_timeout_in_ms",
        type=int,
        default=30_000,
        metavar="MS",
        help="REST requests that take longer are answered 504; 0 or negative: no bound (default: 30000)",
    )
    parser.add_argument(
        "--rest_api_max_body_bytes",
        type=int,
        default=MAX_BODY_BYTES,
        metavar="BYTES",
        help=f"largest body of a REST request, also after gzip is unpacked (default: {MAX_BODY_BYTES})",
    )
    _add_switch(
        parser,
        "--allow_rest_api_without_tls",
        False,
        "serve REST, which is plain HTTP for any client, although gRPC requires client certificates",
    )
    parser.add_argument(
        "--monitoring_config_file",
        type=_path,
        metavar="FILE",
        help="MonitoringConfig as text: path of the Prometheus metrics on the REST port",
    )
    _add_switch(parser, "--enable_grpc_healthcheck_service", True, "serve grpc.health.v1.Health")
    parser.add_argument(
        "--num_load_threads",
        type=int,
        default=1,
        metavar="N",
        help="models loaded at once while serving; 0: as 1 (default: 1)",
    )
    parser.add_argument(
        "--max_num_load_retries",
        type=int,
        default=5,
        metavar="N",
        help="retries of a version that fails to load (default: 5)",
    )
    parser.add_argument(
        "--load_retry_interval_micros",
        type=int,
        default=60_000_000,
        metavar="US",
        help="interval between those retries; negative: none (default: 60000000)",
    )
    _add_switch(
        parser,
        "--allow_version_labels_for_unavailable_models",
        True,
        "whether a new label may name a version that is not available yet",
    )
    parser.add_argument(
        "--grpc_socket_path",
        type=_path,
        metavar="PATH",
        help="also listen on this Unix socket; one in use is refused (default: [serving] grpc_socket_path)",
    )
    parser.add_argument(
        "--grpc_channel_arguments",
        default="",
        metavar="K=V,...",
        help="gRPC settings, such as grpc.max_connection_age_ms=2000",
    )
    parser.add_argument(
        "--ssl_config_file",
        type=_path,
        metavar="FILE",
        help="SSLConfig as text: TLS keys, certificates and the clients' CA bundle",
    )
    _add_switch(parser, "--enable_model_warmup", True, "run a model's warm-up records before it serves")
    logs.add_flag(parser)
    parser.add_argument("--version", action="version", version=VERSION, help="print the version and exit")
    return parser


def _add_switch(parser: Parser, flag: str, default: bool, text: str) -> None:
    """Add a flag that takes true or false, and means true without a value, as in tensorflow_model_server."""
    parser.add_argument(
        flag,
        type=_boolean,
        nargs="?",
        const=True,
        default=default,
        metavar="BOOL",
        help=f"{text} (default: {str(default).lower()})",
    )


def parse(argv: list[str] | None = None, prog: str = "python -m serving") -> ServerConfig:
    """Read the command line. Raises InputError; SystemExit after --version."""
    args, unknown = parser(prog).parse_known_args(argv)
    if unknown:
        raise InputError(f"{unknown[0]} is not a flag of this server; {prog} --help lists them")
    values = vars(args)
    refuse(
        *(
            (
                values[name] is not None and not minimum <= values[name] <= maximum,
                f"--{name} {values[name]} must lie between {minimum} and {maximum}",
            )
            for name, minimum, maximum in _BOUNDS
        ),
        (
            args.rest_api_port and args.rest_api_port == args.port,
            f"--rest_api_port cannot be the same as --port {args.port}",
        ),
    )
    if args.model_config_file is not None:
        # as in tensorflow_model_server: its official image always passes these flags, and this one overrides them
        args.model_name, args.model_base_path = DEFAULT_NAME, None
    return _config(args)


def _config(args: argparse.Namespace) -> ServerConfig:
    """The settings of parsed flags and city.toml. Raises InputError."""
    serving = _serving(args)
    host, port = host_and_port(serving.address, "[serving] address")
    models = _models(args)
    models_dir = args.models_dir or serving.models_dir
    if models is None and not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export models into it first (greenserve export --tl all)")
    if args.models_root is not None and not args.models_root.is_dir():
        raise InputError(f"--models_root {args.models_root}: no such folder; name the folder of the models")
    ssl = None if args.ssl_config_file is None else ssl_from_file(args.ssl_config_file)
    return ServerConfig(
        models_dir=models_dir if models is None else None,
        host=args.host or host,
        port=port if args.port is None else args.port,
        poll_s=args.file_system_poll_wait_seconds,
        threads=args.grpc_max_threads or default_threads(),
        max_queued_calls=args.max_queued_calls,
        models=models or {},
        model_config_file=args.model_config_file,
        config_poll_s=args.model_config_file_poll_wait_seconds,
        loading=LoadOptions(
            num_load_threads=max(args.num_load_threads, 1),
            max_num_load_retries=args.max_num_load_retries,
            load_retry_interval_s=max(args.load_retry_interval_micros, 0) / 1e6,
            allow_labels_for_unavailable=args.allow_version_labels_for_unavailable_models,
        ),
        socket_path=args.grpc_socket_path or serving.grpc_socket_path,
        channel_arguments=_channel_arguments(args.grpc_channel_arguments),
        ssl=ssl,
        ssl_file=args.ssl_config_file,
        warm_up=args.enable_model_warmup,
        health=args.enable_grpc_healthcheck_service,
        rest=_rest(args, ssl),
        allow_any_operation=args.allow_any_operation,
        signers=None if args.require_signed_by is None else Signers.read(args.require_signed_by),
        reload_rpc=args.enable_reload_config_request,
        models_root=args.models_root,
        max_message_bytes=min(args.grpc_max_message_mb << 20, MAX_MESSAGE_BYTES),
    )


def _serving(args: argparse.Namespace) -> city_config.Serving:
    """[serving] of city.toml, which may be missing if flags name the models. Raises InputError."""
    sources = [
        flag for flag in ("models_dir", "model_base_path", "model_config_file") if getattr(args, flag) is not None
    ]
    if len(sources) > 1:
        raise InputError(f"--{sources[0]} and --{sources[1]} both name the models; pass one of them")
    return (city_config.load_if_exists(args.city) if sources else city_config.load(args.city or CITY_FILE)).serving


def _models(args: argparse.Namespace) -> dict[str, ModelConfig] | None:
    """The models that flags name one by one; None: all of a folder are served. Raises InputError."""
    if args.model_config_file is not None:
        return model_config.from_file(args.model_config_file)
    if args.model_base_path is None:
        if args.model_name != DEFAULT_NAME:
            raise InputError("--model_name needs --model_base_path, the folder of its versions")
        return None
    if not args.model_base_path.is_absolute():
        # as in tensorflow_model_server: a relative path depends on the working directory
        raise InputError(f"--model_base_path {args.model_base_path} must be an absolute path")
    return {args.model_name: ModelConfig(args.model_name, args.model_base_path)}


def _rest(args: argparse.Namespace, ssl: SSLConfig | None) -> RestConfig | None:
    """The settings of the REST API; None without it. Raises InputError."""
    file = args.monitoring_config_file
    if not args.rest_api_port:
        if file is not None:
            raise InputError("--monitoring_config_file needs --rest_api_port, the port that serves the metrics")
        return None
    if ssl is not None and ssl.client_verify and not args.allow_rest_api_without_tls:
        raise InputError(
            f"--rest_api_port {args.rest_api_port}: REST is plain HTTP and would answer any client, although "
            f"client_verify of {args.ssl_config_file} requires certificates; leave it out, or pass "
            "--allow_rest_api_without_tls"
        )
    return RestConfig(
        port=args.rest_api_port,
        threads=args.rest_api_num_threads,
        timeout_s=args.rest_api_timeout_in_ms / 1000 if args.rest_api_timeout_in_ms > 0 else math.inf,
        metrics_path=None if file is None else metrics_path_from_file(file),
        max_body_bytes=args.rest_api_max_body_bytes,
    )


def _channel_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    arguments: list[tuple[str, int | str]] = []
    for pair in filter(None, map(str.strip, text.split(","))):
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(
                f"--grpc_channel_arguments {pair!r} must be NAME=VALUE, such as grpc.max_connection_age_ms=2000"
            )
        arguments.append((key, int(value) if re.fullmatch(r"-?\d+", value) else value))
    return tuple(arguments)


def _path(text: str) -> Path | None:
    """A path; an empty one counts as not passed, as in tensorflow_model_server."""
    return Path(text) if text else None


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return _BOOLEANS[text.lower()]
