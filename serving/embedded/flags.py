"""The embedded server's command line, with the names of tensorflow_model_server's flags, and city.toml."""

import argparse
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from city import config as city_config
from city.arguments import Parser, host_and_port
from city.errors import InputError
from city.version import VERSION
from serving.client.channel import MAX_MESSAGE_BYTES
from serving.embedded.config import (
    MAX_LOGS_MB,
    MAX_MESSAGE_MB,
    RestConfig,
    ServerConfig,
    metrics_path_from_file,
    ssl_from_file,
)
from serving.embedded.models import model_config
from serving.embedded.models.manager import LoadOptions
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.prediction_log import logging_config
from serving.embedded.rest.request_body import MAX_BODY_BYTES
from serving.embedded.status import StatusError

MAX_COUNT = 100_000
"""Maximum of thread, retry and queue counts."""
MAX_INTERVAL_S = 86_400
"""Maximum of every interval and timeout: one day."""
MAX_BODY_BYTES_LIMIT = 1 << 26
"""Maximum of --rest_api_max_body_bytes: parsing 64 MiB takes seconds, during which gRPC calls are slower."""
MAX_MESSAGE_MB_LIMIT = 2048
"""Maximum of --grpc_max_message_mb: protobuf's limit of a message."""
MIN_LOGS_MB, MAX_LOGS_MB_LIMIT = 128, 1 << 30
"""Bounds of --logs_max_mb: at least one file and one full queue."""
DEFAULT_NAME = "default"
"""tensorflow_model_server's default of --model_name."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# fmt: off
MISSING_FLAGS = {
    "batching_parameters_file": "", "enable_per_model_batching_parameters": "false", "enable_profiler": "true",
    "enable_serialization_as_tensor_content": "false",
    "enable_signature_method_name_check": "false", "flush_filesystem_caches": "true", "mixed_precision": "",
    "num_request_iterations_for_warmup": "0", "num_tflite_interpreters_per_pool": "1", "num_tflite_pools": "2",
    "num_unload_threads": "0", "per_process_gpu_memory_fraction": "0", "platform_config_file": "",
    "prefer_tflite_model": "false", "remove_unused_fields_from_bundle_metagraph": "true",
    "rest_api_enable_cors_support": "false", "saved_model_tags": "serve", "skip_initialize_tpu": "false",
    "tensorflow_inter_op_parallelism": "0", "tensorflow_intra_op_parallelism": "0",
    "tensorflow_session_config_file": "",
    "tensorflow_session_parallelism": "0", "thread_pool_factory_config_file": "", "use_alts_credentials": "false",
    "xla_cpu_compilation_enabled": "false", "xla_gpu_compilation_enabled": "false",
}
# fmt: on
"""Flags of tensorflow_model_server that this server lacks -> their defaults, the only values that it accepts."""


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Serve models with TensorFlow Serving's gRPC and REST APIs; flags are tensorflow_model_server's.",
        epilog="Without model flags every model of [serving] models_dir is served.",
    )
    parser.add_argument("--city", type=Path, metavar="FILE", help="the city's description (default: ./city.toml)")
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
        "--model_config_file_poll_wait_seconds", type=float, default=0.0, metavar="S",
        help="interval at which that file is read again (default: 0, only at the start)",
    )  # fmt: skip
    parser.add_argument(
        "--models_root", type=_path, metavar="DIR",
        help="folder in which the models of reload requests must lie, links resolved (default: that of the models at "
        "the start)",
    )  # fmt: skip
    parser.add_argument(
        "--logs_root", type=_path, metavar="DIR",
        help="folder in which the files of logging_config must lie, links resolved (default: none, logging_config is "
        "refused)",
    )  # fmt: skip
    parser.add_argument(
        "--logs_max_mb", type=int, default=MAX_LOGS_MB, metavar="MB",
        help="limit of all prediction logs in that folder in MiB; the oldest are deleted first (default: "
        f"{MAX_LOGS_MB})",
    )  # fmt: skip
    parser.add_argument(
        "--enable_reload_config_request", type=_boolean, nargs="?", const=True, default=True, metavar="BOOL",
        help="answer HandleReloadConfigRequest, by which a client replaces the models (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--allow_any_operation", type=_boolean, nargs="?", const=True, default=False, metavar="BOOL",
        help="also load models that do more than an actor, such as reading files; only for trusted models (default: "
        "false)",
    )  # fmt: skip
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default: that of [serving] address, loopback)"
    )
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="gRPC port, 0: the system chooses (default: [serving] address)"
    )
    parser.add_argument(
        "--file_system_poll_wait_seconds", "--poll-s", type=float, default=1.0, metavar="S",
        help="interval between polls for new versions; 0: poll once, negative: never (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--grpc_max_threads", type=int, metavar="N",
        help="concurrent calls (default: one per core, at least 2; tensorflow_model_server: 4 per core)",
    )  # fmt: skip
    parser.add_argument(
        "--max_queued_calls", type=int, default=1000, metavar="N",
        help="calls that may wait for a thread; further ones are answered RESOURCE_EXHAUSTED (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--grpc_max_message_mb", type=int, default=MAX_MESSAGE_MB, metavar="MB",
        help="largest request over gRPC in MiB; larger ones are answered RESOURCE_EXHAUSTED (default: "
        f"{MAX_MESSAGE_MB})",
    )  # fmt: skip
    parser.add_argument(
        "--rest_api_port", type=int, default=0, metavar="PORT", help="port of the REST API, 0: off (default: 0)"
    )
    parser.add_argument(
        "--rest_api_num_threads", type=int, default=8, metavar="N", help="threads of the REST API (default: 8)"
    )
    parser.add_argument(
        "--rest_api_timeout_in_ms", type=int, default=30_000, metavar="MS",
        help="REST requests that take longer are answered 504; 0 or negative: no bound (default: 30000)",
    )  # fmt: skip
    parser.add_argument(
        "--rest_api_max_body_bytes", type=int, default=MAX_BODY_BYTES, metavar="BYTES",
        help=f"largest body of a REST request, also after gzip is unpacked (default: {MAX_BODY_BYTES})",
    )  # fmt: skip
    parser.add_argument(
        "--allow_rest_api_without_tls", type=_boolean, nargs="?", const=True, default=False, metavar="BOOL",
        help="serve REST, which is plain HTTP for any client, although gRPC requires client certificates (default: "
        "false)",
    )  # fmt: skip
    parser.add_argument(
        "--monitoring_config_file", type=_path, metavar="FILE",
        help="MonitoringConfig as text: path of the Prometheus metrics on the REST port",
    )  # fmt: skip
    parser.add_argument(
        "--enable_batching", type=_boolean, nargs="?", const=True, default=False, metavar="BOOL",
        help="only false: this server does not batch (default: false)",
    )  # fmt: skip
    parser.add_argument(
        "--enable_grpc_healthcheck_service", type=_boolean, nargs="?", const=True, default=True, metavar="BOOL",
        help="serve grpc.health.v1.Health (default: true)",
    )  # fmt: skip
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
        "--load_retry_interval_micros", type=int, default=60_000_000, metavar="US",
        help="interval between those retries; negative: none (default: 60000000)",
    )  # fmt: skip
    parser.add_argument(
        "--allow_version_labels_for_unavailable_models", type=_boolean, nargs="?", const=True, default=True,
        metavar="BOOL",
        help="whether a new label may name a version that is not available yet (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--grpc_socket_path", type=_path, metavar="PATH",
        help="also listen on this Unix socket; one in use is refused (default: [serving] grpc_socket_path)",
    )  # fmt: skip
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
    parser.add_argument(
        "--enable_model_warmup", type=_boolean, nargs="?", const=True, default=True, metavar="BOOL",
        help="run a model's warm-up records before it serves (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--version",
        type=_boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="BOOL",
        help="print the version and exit",
    )
    return parser


def parse(argv: list[str] | None = None, prog: str = "python -m serving") -> ServerConfig:
    """Read the command line. Raises InputError; SystemExit after --version."""
    args, unknown = parser(prog).parse_known_args(argv)
    for argument in unknown:
        _check_missing_flag(argument, prog)
    if args.version:
        print(VERSION)
        raise SystemExit(0)
    _check(args)
    return _config(args)


def _config(args: argparse.Namespace) -> ServerConfig:
    if args.model_config_file is not None:
        # as in tensorflow_model_server: its official image always passes these flags, and this one overrides them
        args.model_name, args.model_base_path = DEFAULT_NAME, None
    sources = [
        flag for flag in ("models_dir", "model_base_path", "model_config_file") if getattr(args, flag) is not None
    ]
    if len(sources) > 1:
        raise InputError(f"--{sources[0]} and --{sources[1]} both name the models; pass one of them")
    if args.model_name != DEFAULT_NAME and args.model_base_path is None:
        raise InputError("--model_name needs --model_base_path, the folder of its versions")
    serving = city_config.Serving()
    if not sources or args.city is not None or Path("city.toml").exists():
        serving = city_config.load(args.city or Path("city.toml")).serving
    host, port = host_and_port(serving.address, "[serving] address")
    models_dir, models = None, {}
    if args.model_config_file is not None:
        models = model_config.from_file(args.model_config_file)
    elif args.model_base_path is not None:
        if not args.model_base_path.is_absolute():
            # as in tensorflow_model_server: a relative path depends on the working directory
            raise InputError(f"--model_base_path {args.model_base_path} must be an absolute path")
        models = {args.model_name: ModelConfig(args.model_name, args.model_base_path)}
    else:
        models_dir = args.models_dir or serving.models_dir
        if not models_dir.is_dir():
            raise InputError(f"{models_dir}: no such folder; export models into it first (greenserve export --tl all)")
    ssl = None if args.ssl_config_file is None else ssl_from_file(args.ssl_config_file)
    if ssl is not None and ssl.client_verify and args.rest_api_port and not args.allow_rest_api_without_tls:
        raise InputError(
            f"--rest_api_port {args.rest_api_port}: REST is plain HTTP and would answer any client, although "
            f"client_verify of {args.ssl_config_file} requires certificates; leave it out, or pass "
            "--allow_rest_api_without_tls"
        )
    if args.models_root is not None and not args.models_root.is_dir():
        raise InputError(f"--models_root {args.models_root}: no such folder; name the folder of the models")
    if args.logs_root is not None and not (args.logs_root.is_dir() and os.access(args.logs_root, os.W_OK | os.X_OK)):
        raise InputError(f"--logs_root {args.logs_root}: not a writable folder; create it, or correct its permissions")
    if args.logs_root is not None:
        _check_apart(args.logs_root, [models_dir, args.models_root, *(model.base_path for model in models.values())])
    try:
        logging_config.check(model_config.logging_configs(models), args.logs_root)
    except StatusError as error:
        raise InputError(f"{args.model_config_file}: {error}") from None
    return ServerConfig(
        models_dir=models_dir,
        host=args.host or host,
        port=port if args.port is None else args.port,
        poll_s=args.file_system_poll_wait_seconds,
        max_queued_calls=args.max_queued_calls,
        models=models,
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
        rest=_rest(args),
        allow_any_operation=args.allow_any_operation,
        reload_rpc=args.enable_reload_config_request,
        models_root=args.models_root,
        logs_root=args.logs_root,
        logs_max_bytes=args.logs_max_mb << 20,
        max_message_bytes=min(args.grpc_max_message_mb << 20, MAX_MESSAGE_BYTES),
        **({"threads": args.grpc_max_threads} if args.grpc_max_threads else {}),
    )


def _rest(args: argparse.Namespace) -> RestConfig | None:
    file = args.monitoring_config_file
    if not args.rest_api_port:
        if file is not None:
            raise InputError("--monitoring_config_file needs --rest_api_port, the port that serves the metrics")
        return None
    timeout_s = args.rest_api_timeout_in_ms / 1000 if args.rest_api_timeout_in_ms > 0 else math.inf
    metrics_path = None if file is None else metrics_path_from_file(file)
    return RestConfig(
        args.rest_api_port, args.rest_api_num_threads, timeout_s, metrics_path, args.rest_api_max_body_bytes
    )


def _check_apart(logs_root: Path, folders: Sequence[Path | None]) -> None:
    """Raise InputError if log files could lie among models: a log's folder would be taken for a version of a model."""
    logs = logs_root.resolve()
    for folder in folders:
        if folder is not None and (logs.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(logs)):
            raise InputError(
                f"--logs_root {logs_root}: shares folders with the models in {folder}; pass a folder of its own"
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


def _check(args: argparse.Namespace) -> None:
    if args.enable_batching:
        raise InputError(
            "--enable_batching=true: this server does not batch, and small actors are faster without; "
            "host the model with TensorFlow Serving to use it"
        )
    if args.port is not None and not 0 <= args.port <= 65535:
        raise InputError(f"--port {args.port} must lie between 0 and 65535")
    if not 0 <= args.rest_api_port <= 65535:
        raise InputError(f"--rest_api_port {args.rest_api_port} must lie between 0 and 65535")
    if args.rest_api_port and args.rest_api_port == args.port:
        raise InputError(f"--rest_api_port cannot be the same as --port {args.port}")
    bounds = (
        ("grpc_max_threads", 1), ("num_load_threads", 0), ("max_num_load_retries", 0), ("max_queued_calls", 1),
        ("rest_api_num_threads", 1),
    )  # fmt: skip
    if not 1 <= args.rest_api_max_body_bytes <= MAX_BODY_BYTES_LIMIT:
        raise InputError(
            f"--rest_api_max_body_bytes {args.rest_api_max_body_bytes} must lie between 1 and {MAX_BODY_BYTES_LIMIT} "
            "(64 MiB)"
        )
    for name, minimum in bounds:
        if getattr(args, name) is not None and not minimum <= getattr(args, name) <= MAX_COUNT:
            raise InputError(f"--{name} {getattr(args, name)} must lie between {minimum} and {MAX_COUNT}")
    if not 1 <= args.grpc_max_message_mb <= MAX_MESSAGE_MB_LIMIT:
        raise InputError(
            f"--grpc_max_message_mb {args.grpc_max_message_mb} must lie between 1 and {MAX_MESSAGE_MB_LIMIT} (2 GiB)"
        )
    if not MIN_LOGS_MB <= args.logs_max_mb <= MAX_LOGS_MB_LIMIT:
        raise InputError(f"--logs_max_mb {args.logs_max_mb} must lie between {MIN_LOGS_MB} and {MAX_LOGS_MB_LIMIT}")
    for name in ("file_system_poll_wait_seconds", "model_config_file_poll_wait_seconds"):
        if not abs(getattr(args, name)) <= MAX_INTERVAL_S:
            raise InputError(f"--{name} {getattr(args, name):g} must be at most {MAX_INTERVAL_S} s (a day)")
    if args.rest_api_timeout_in_ms > 1000 * MAX_INTERVAL_S:
        raise InputError(
            f"--rest_api_timeout_in_ms {args.rest_api_timeout_in_ms} must be at most {1000 * MAX_INTERVAL_S} (a day)"
        )
    if args.load_retry_interval_micros > 1_000_000 * MAX_INTERVAL_S:
        raise InputError(
            f"--load_retry_interval_micros {args.load_retry_interval_micros} must be at most "
            f"{1_000_000 * MAX_INTERVAL_S} (a day)"
        )


def _path(text: str) -> Path | None:
    """A path; an empty one counts as not passed, as in tensorflow_model_server."""
    return Path(text) if text else None


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return _BOOLEANS[text.lower()]


def _check_missing_flag(argument: str, prog: str) -> None:
    """Accept a flag of `MISSING_FLAGS` with its default value, which changes nothing.

    Raises InputError for another value, and for an unknown flag.
    """
    name, equals, value = argument.partition("=")
    name = re.sub(r"^--?", "", name)
    if name not in MISSING_FLAGS or not argument.startswith("-"):
        raise InputError(f"unknown argument {argument}; {prog} --help lists the flags")
    default = MISSING_FLAGS[name]
    if not _is_equal(value if equals else "true", default):
        raise InputError(
            f"{argument}: this server has tensorflow_model_server's --{name} at its default only, "
            f"{default or 'empty'}; leave it out, or host the models with TensorFlow Serving"
        )


def _is_equal(value: str, default: str) -> bool:
    """Whether a flag's value, as text, equals its default."""
    if default in ("true", "false"):
        return _BOOLEANS.get(value.lower()) is _BOOLEANS[default]
    try:
        return float(value) == float(default)
    except ValueError:
        return value == default
