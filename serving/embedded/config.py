"""Settings of one embedded server, out of flags and city.toml."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from city import config as city_config
from city.errors import InputError


@dataclass(frozen=True)
class ServerConfig:
    models_dir: Path
    host: str = "127.0.0.1"
    port: int = 8500
    """0: the system chooses."""
    poll_s: float = 1.0
    """Between looks at the folder for new versions."""
    threads: int = 8
    """Calls worked on at once, 4 per core as TensorFlow Serving; twice as many more may wait."""
    drain_s: float = 5.0
    """Bound on the wait for calls under way at the end."""


def parse(argv: list[str] | None = None) -> ServerConfig:
    """Read the command line. Raises InputError."""
    parser = argparse.ArgumentParser(
        prog="python -m serving", description="Serve every model of a folder with TensorFlow Serving's gRPC API."
    )
    parser.add_argument("--city", type=Path, help="city.toml (default: ./city.toml)")
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="folder of models (default: [serving] models_dir)")
    parser.add_argument("--port", type=int, help="gRPC port on loopback, 0: the system chooses (default: [serving] address)")
    parser.add_argument("--poll-s", type=float, default=1.0, metavar="S", help="seconds between looks for new versions")
    args = parser.parse_args(argv)
    serving = city_config.Serving()
    alone = args.models_dir is not None and args.city is None and not Path("city.toml").exists()
    if not alone:
        serving = city_config.load(args.city or Path("city.toml")).serving
    host, _, port = serving.address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"[serving] address {serving.address!r} must be HOST:PORT, such as 127.0.0.1:8500")
    models_dir = args.models_dir or serving.models_dir
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export models into it first (python -m export --tl all)")
    chosen = int(port) if args.port is None else args.port
    if not 0 <= chosen <= 65535:
        raise InputError(f"port {chosen} must lie between 0 and 65535")
    if not 0 < args.poll_s <= 86400:
        raise InputError(f"--poll-s {args.poll_s:g} must be more than 0 and at most 86400")
    return ServerConfig(models_dir, host, chosen, args.poll_s)
