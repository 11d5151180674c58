"""The embedded server's command line: tensorflow_model_server's flags by their names, and city.toml."""

import argparse
import re
from pathlib import Path

from city import config as city_config
from city.arguments import Parser
from city.errors import InputError, looking_at_files
from serving.embedded import batching, model_config
from serving.embedded.batching import Batching
from serving.embedded.config import RestConfig, ServerConfig, default_threads, metrics_path_of_file, ssl_of_file
from serving.embedded.model_config import ModelConfig
from serving.embedded.model_manager import Loading

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# fmt: off
NOT_HERE = frozenset({
    "allow_version_labels", "enable_model_warmup_in_background", "enable_per_model_metrics", "enable_profiler",
    "enable_serialization_as_tensor_content", "enable_signature_method_name_check", "fingerprint", "flush_filesystem_caches",
    "mixed_precision", "num_request_iterations_for_warmup", "num_tflite_pools", "num_unload_threads",
    "per_process_gpu_memory_fraction", "platform_config_file", "prefer_tflite_model",
    "remove_unused_fields_from_bundle_metagraph", "rest_api_enable_cors_support", "saved_model_tags", "skip_initialize_tpu",
    "tensorflow_inter_op_parallelism", "tensorflow_intra_op_parallelism", "tensorflow_session_parallelism",
    "thread_pool_factory_config_file", "use_alts_credentials", "xla_cpu_compilation_enabled",
})
# fmt: on
"""Flags of tensorflow_model_server that this server does not have (yet)."""


@looking_at_files()
def parse(argv: list[str] | None = None) -> ServerConfig:
    """Read the command line. Raises InputError."""
    parser = Parser(
        prog="python -m serving",
        description="Serve models with TensorFlow Serving's gRPC API; flags are tensorflow_model_server's.",
        epilog="Without model flags every model of [serving] models_dir is served. "
        "python -m serving predict --help and python -m serving status --help: a running server asked from a shell.",
        allow_abbrev=False,
    )
    parser.add_argument("--city", type=Path, help="city.toml (default: ./city.toml)")
    parser.add_argument("--models-dir", "--models_dir", type=Path, metavar="DIR", help="serve every model of this folder")
    parser.add_argument("--model_name", metavar="NAME", help="name of the one model at --model_base_path (default: default)")
    parser.add_argument("--model_base_path", type=Path, metavar="DIR", help="folder of one model's versions")
    parser.add_argument("--model_config_file", type=Path, metavar="FILE", help="ModelServerConfig as text: several models")
    parser.add_argument(
        "--model_config_file_poll_wait_seconds", type=float, default=0.0, metavar="S",
        help="seconds between readings of that file (default: 0, at the start only)",
    )  # fmt: skip
    parser.add_argument("--port", type=int, help="gRPC port on loopback, 0: the system chooses (default: [serving] address)")
    parser.add_argument(
        "--file_system_poll_wait_seconds", "--poll-s", type=float, default=1.0, metavar="S",
        help="seconds between looks for new versions; 0: one look, negative: none (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--grpc_max_threads", type=int, metavar="N",
        help="calls worked on at once (default: a core each, with batching 64; tensorflow_model_server: 4 a core)",
    )  # fmt: skip
    parser.add_argument(
        "--max_queued_calls", type=int, default=1000, metavar="N",
        help="calls that may wait for a thread, more are answered RESOURCE_EXHAUSTED (default: 1000)",
    )  # fmt: skip
    parser.add_argument("--rest_api_port", type=int, default=0, help="port of the REST API, 0: none (default: 0)")
    parser.add_argument("--rest_api_num_threads", type=int, default=8, metavar="N", help="threads of it (default: 8)")
    parser.add_argument(
        "--rest_api_timeout_in_ms",
        type=int,
        default=30_000,
        metavar="MS",
        help="what takes longer is answered 504 (default: 30000)",
    )
    parser.add_argument(
        "--monitoring_config_file", type=Path, metavar="FILE", help="MonitoringConfig as text: where the REST port tells metrics"
    )
    parser.add_argument(
        "--enable_batching", type=_boolean, nargs="?", const=True, default=False, metavar="BOOL",
        help="run calls that wait at the same moment as one (default: false)",
    )  # fmt: skip
    parser.add_argument("--batching_parameters_file", type=Path, metavar="FILE", help="BatchingParameters as text")
    parser.add_argument(
        "--enable_grpc_healthcheck_service", type=_boolean, nargs="?", const=True, default=True, metavar="BOOL",
        help="gRPC health (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--num_load_threads", type=int, default=1, metavar="N", help="models loaded at once while serving (default: 1)"
    )
    parser.add_argument(
        "--max_num_load_retries", type=int, default=5, metavar="N", help="times a version that fails is tried again (default: 5)"
    )
    parser.add_argument(
        "--load_retry_interval_micros", type=int, default=60_000_000, metavar="US", help="between those (default: a minute)"
    )
    parser.add_argument(
        "--allow_version_labels_for_unavailable_models", type=_boolean, nargs="?", const=True, default=True, metavar="BOOL",
        help="whether a new label may name a version that is not served yet (default: true)",
    )  # fmt: skip
    parser.add_argument(
        "--grpc_socket_path", type=Path, metavar="PATH", help="listen on this Unix socket too (default: [serving]'s)"
    )
    parser.add_argument(
        "--grpc_channel_arguments", default="", metavar="K=V,...", help="gRPC settings, such as grpc.max_connection_age_ms=2000"
    )
    parser.add_argument("--ssl_config_file", type=Path, metavar="FILE", help="SSLConfig as text: TLS, and whom to trust")
    parser.add_argument(
        "--enable_model_warmup",
        type=_boolean,
        nargs="?",
        const=True,
        default=True,
        metavar="BOOL",
        help="replay a model's warm-up records (default: true)",
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    args, rest = parser.parse_known_args(argv)
    if rest:
        raise InputError(_unknown(rest[0]))
    if args.version:
        from serving.embedded import VERSION

        print(VERSION)
        raise SystemExit(0)
    _check(args)
    return _config(args)


def _config(args: argparse.Namespace) -> ServerConfig:
    told = [flag for flag in ("models_dir", "model_base_path", "model_config_file") if getattr(args, flag) is not None]
    if len(told) > 1:
        raise InputError(f"--{told[0]} and --{told[1]} both tell the models; give one of them")
    if args.model_name is not None and args.model_base_path is None:
        raise InputError("--model_name needs --model_base_path, the folder of its versions")
    serving = city_config.Serving()
    if not told or args.city is not None or Path("city.toml").exists():
        serving = city_config.load(args.city or Path("city.toml")).serving
    host, _, port = serving.address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"[serving] address {serving.address!r} must be HOST:PORT, such as 127.0.0.1:8500")
    models_dir, models = None, {}
    if args.model_config_file is not None:
        models = model_config.of_file(args.model_config_file)
    elif args.model_base_path is not None:
        name = args.model_name or "default"
        models = {name: ModelConfig(name, args.model_base_path)}
    else:
        models_dir = args.models_dir or serving.models_dir
        if not models_dir.is_dir():
            raise InputError(f"{models_dir}: no such folder; export models into it first (python -m export --tl all)")
    return ServerConfig(
        models_dir=models_dir,
        host=host,
        port=int(port) if args.port is None else args.port,
        poll_s=args.file_system_poll_wait_seconds,
        threads=args.grpc_max_threads or default_threads(args.enable_batching),
        max_queued_calls=args.max_queued_calls,
        models=models,
        model_config_file=args.model_config_file,
        config_poll_s=args.model_config_file_poll_wait_seconds,
        loading=Loading(
            args.num_load_threads,
            args.max_num_load_retries,
            args.load_retry_interval_micros / 1e6,
            args.allow_version_labels_for_unavailable_models,
        ),
        socket_path=args.grpc_socket_path or serving.grpc_socket_path,
        channel_arguments=_channel_arguments(args.grpc_channel_arguments),
        ssl=None if args.ssl_config_file is None else ssl_of_file(args.ssl_config_file),
        warm_up=args.enable_model_warmup,
        batching=_batching(args),
        health=args.enable_grpc_healthcheck_service,
        rest=_rest(args),
    )


def _batching(args: argparse.Namespace) -> Batching | None:
    if args.batching_parameters_file is None:
        return Batching() if args.enable_batching else None
    if not args.enable_batching:
        raise InputError("--batching_parameters_file needs --enable_batching")
    return batching.of_file(args.batching_parameters_file)


def _rest(args: argparse.Namespace) -> RestConfig | None:
    path = None
    if args.monitoring_config_file is not None:
        if not args.rest_api_port:
            raise InputError("--monitoring_config_file needs --rest_api_port, where metrics are told")
        path = metrics_path_of_file(args.monitoring_config_file)
    if not args.rest_api_port:
        return None
    return RestConfig(args.rest_api_port, args.rest_api_num_threads, args.rest_api_timeout_in_ms / 1000, path)


def _channel_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    found: list[tuple[str, int | str]] = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(f"--grpc_channel_arguments {pair!r} must be NAME=VALUE, such as grpc.max_connection_age_ms=2000")
        found.append((key, int(value) if re.fullmatch(r"-?\d+", value) else value))
    return tuple(found)


def _check(args: argparse.Namespace) -> None:
    if args.port is not None and not 0 <= args.port <= 65535:
        raise InputError(f"port {args.port} must lie between 0 and 65535")
    if not 0 <= args.rest_api_port <= 65535:
        raise InputError(f"--rest_api_port {args.rest_api_port} must lie between 0 and 65535")
    if args.rest_api_port and args.rest_api_port == args.port:
        raise InputError(f"--rest_api_port cannot be the same as --port {args.port}")
    bounds = (
        ("grpc_max_threads", 1), ("num_load_threads", 1), ("max_num_load_retries", 0), ("max_queued_calls", 1),
        ("rest_api_num_threads", 1),
    )  # fmt: skip
    for name, least in bounds:
        if getattr(args, name) is not None and not least <= getattr(args, name) <= 100_000:
            raise InputError(f"--{name} {getattr(args, name)} must lie between {least} and 100000")
    for name in ("file_system_poll_wait_seconds", "model_config_file_poll_wait_seconds"):
        if not abs(getattr(args, name)) <= 86400:
            raise InputError(f"--{name} {getattr(args, name):g} must be at most 86400")
    if not 1 <= args.rest_api_timeout_in_ms <= 86_400_000:
        raise InputError(f"--rest_api_timeout_in_ms {args.rest_api_timeout_in_ms} must lie between 1 and a day")
    if not 0 <= args.load_retry_interval_micros <= 86_400_000_000:
        raise InputError(f"--load_retry_interval_micros {args.load_retry_interval_micros} must be a day at most")


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return _BOOLEANS[text.lower()]


def _unknown(word: str) -> str:
    name = re.sub(r"^--?|=.*$", "", word)
    if name in NOT_HERE:
        return f"--{name} is a flag of tensorflow_model_server that this server does not have; leave it out"
    return f"unknown argument {word}; python -m serving --help lists what there is"
