"""Settings of one embedded server: tensorflow_model_server's flags by their names, and city.toml."""

import argparse
import re
from dataclasses import dataclass, field
from pathlib import Path

from city import config as city_config
from city.errors import InputError
from serving.embedded import model_config
from serving.embedded.model_config import ModelConfig
from serving.embedded.model_manager import Loading

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# fmt: off
NOT_HERE = frozenset({
    "enable_model_warmup_in_background", "flush_filesystem_caches", "fingerprint", "grpc_socket_path", "rest_api_port",
    "rest_api_timeout_in_ms", "rest_api_num_threads", "rest_api_enable_cors_support", "enable_batching", "batching_parameters_file",
    "allow_version_labels", "monitoring_config_file", "ssl_config_file", "platform_config_file", "tensorflow_session_parallelism",
    "tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism", "per_process_gpu_memory_fraction", "saved_model_tags",
    "grpc_channel_arguments", "enable_model_warmup", "num_request_iterations_for_warmup", "remove_unused_fields_from_bundle_metagraph",
    "prefer_tflite_model", "num_tflite_pools", "enable_signature_method_name_check", "xla_cpu_compilation_enabled",
    "enable_profiler", "mixed_precision", "skip_initialize_tpu", "enable_grpc_healthcheck_service", "thread_pool_factory_config_file",
    "num_unload_threads", "enable_per_model_metrics", "enable_serialization_as_tensor_content", "use_alts_credentials",
})
# fmt: on
"""Flags of tensorflow_model_server that this server does not have (yet)."""


@dataclass(frozen=True)
class ServerConfig:
    models_dir: Path | None = None
    """Folder whose models are all served. None: `models` or `model_config_file` tells them."""
    host: str = "127.0.0.1"
    port: int = 8500
    """0: the system chooses."""
    poll_s: float = 1.0
    """Between looks for new versions; 0: one look only; negative: none at all."""
    threads: int = 8
    """Calls worked on at once, 4 per core as TensorFlow Serving; twice as many more may wait."""
    drain_s: float = 5.0
    """Bound on the wait for calls under way at the end."""
    models: dict[str, ModelConfig] = field(default_factory=dict)
    model_config_file: Path | None = None
    config_poll_s: float = 0.0
    """Between readings of model_config_file; 0: at the start only."""
    loading: Loading = field(default_factory=Loading)


def parse(argv: list[str] | None = None) -> ServerConfig:
    """Read the command line. Raises InputError."""
    parser = argparse.ArgumentParser(
        prog="python -m serving",
        description="Serve models with TensorFlow Serving's gRPC API; flags are tensorflow_model_server's.",
        epilog="Without model flags every model of [serving] models_dir is served.",
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
    parser.add_argument("--grpc_max_threads", type=int, default=8, metavar="N", help="calls worked on at once (default: 8)")
    parser.add_argument("--num_load_threads", type=int, default=2, metavar="N", help="models loaded at once (default: 2)")
    parser.add_argument(
        "--max_num_load_retries", type=int, default=5, metavar="N", help="times a version that fails is tried again (default: 5)"
    )
    parser.add_argument(
        "--load_retry_interval_micros", type=int, default=60_000_000, metavar="US", help="between those (default: a minute)"
    )
    parser.add_argument(
        "--allow_version_labels_for_unavailable_models", type=_boolean, default=True, metavar="BOOL",
        help="whether a new label may name a version that is not served yet (default: true)",
    )  # fmt: skip
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
        threads=args.grpc_max_threads,
        models=models,
        model_config_file=args.model_config_file,
        config_poll_s=args.model_config_file_poll_wait_seconds,
        loading=Loading(
            args.num_load_threads,
            args.max_num_load_retries,
            args.load_retry_interval_micros / 1e6,
            args.allow_version_labels_for_unavailable_models,
        ),
    )


def _check(args: argparse.Namespace) -> None:
    if args.port is not None and not 0 <= args.port <= 65535:
        raise InputError(f"port {args.port} must lie between 0 and 65535")
    for name, least in (("grpc_max_threads", 1), ("num_load_threads", 1), ("max_num_load_retries", 0)):
        if not least <= getattr(args, name) <= 100_000:
            raise InputError(f"--{name} {getattr(args, name)} must lie between {least} and 100000")
    for name in ("file_system_poll_wait_seconds", "model_config_file_poll_wait_seconds"):
        if not abs(getattr(args, name)) <= 86400:
            raise InputError(f"--{name} {getattr(args, name):g} must be at most 86400")
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
