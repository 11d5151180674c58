"""What one call of the exporter is to do, out of flags and city.toml."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from city import config as city_config
from city import names, network
from city.config import City
from city.errors import InputError
from city.network import StreetNetwork
from export import locate


@dataclass(frozen=True)
class Job:
    """Resolved settings of a call."""

    city: City | None
    street: StreetNetwork | None
    """None: no city, or one without a network; contracts stay incomplete."""
    tls: tuple[str, ...]
    model_path: Path
    model_number: int | None
    models_dir: Path
    scope: str | None
    actor: str | None
    """Architecture; None: city.toml's, or recognised."""
    overwrite: bool


def parse(argv: list[str] | None = None) -> Job:
    """Read the command line. Raises InputError."""
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Turn trained actors into SavedModels that TensorFlow Serving can host.",
        epilog="Also: python -m export describe MODEL/VERSION; python -m export inspect CHECKPOINT.",
    )
    parser.add_argument("--city", type=Path, help="city.toml (default: ./city.toml)")
    parser.add_argument(
        "--tl", action="append", required=True, metavar="TL", help="a TL, several with commas, or all; may be repeated"
    )
    parser.add_argument("--model-path", type=Path, metavar="DIR", help="folder of checkpoints (default: [training] model_path)")
    parser.add_argument("--model-number", type=int, metavar="N", help="trial or round to export (default: the newest)")
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="where models go (default: [serving] models_dir)")
    parser.add_argument("--scope", metavar="NAME", help="the actor's scope in a checkpoint of several agents, such as Actor_0")
    parser.add_argument("--actor", metavar="NAME", help="architecture, where the checkpoint does not tell: mlp, mlp-res, ...")
    parser.add_argument("--overwrite", action="store_true", help="replace a version that exists")
    args = parser.parse_args(argv)
    city = _city(args.city, args.model_path)
    model_path = args.model_path or (city.training.model_path if city else None)
    if model_path is None:
        raise InputError("no folder of checkpoints: say --model-path DIR, or [training] model_path in city.toml")
    if args.model_number is not None and not 0 <= args.model_number < 1 << 63:
        raise InputError(f"--model-number {args.model_number} must be a version, such as 3")
    known = list(city.tls) if city and city.tls else None
    tls = names.select(args.tl, known or _from_names(args.tl, model_path), "--tl")
    if args.scope and len(tls) > 1:
        raise InputError(
            f"--scope names one actor, but --tl asks for {len(tls)} TLs; export them one by one, or set scope in city.toml"
        )
    has_network = city is not None and (city.network.sumocfg or city.network.net)
    return Job(
        city=city,
        street=network.of_city(city) if city and has_network else None,
        tls=tuple(tls),
        model_path=model_path,
        model_number=args.model_number if args.model_number is not None else (city.training.model_number if city else None),
        models_dir=args.models_dir or (city.serving.models_dir if city else Path("models")),
        scope=args.scope,
        actor=args.actor,
        overwrite=args.overwrite,
    )


def _city(path: Path | None, model_path: Path | None) -> City | None:
    if path is None and model_path is not None and not Path("city.toml").exists():
        return None  # a folder of checkpoints alone: exported with incomplete contracts
    return city_config.load(path or Path("city.toml"))


def _from_names(asked: list[str], model_path: Path) -> list[str]:
    """Without a city every TL asked for is a TL; `all` are those that file names tell."""
    told = locate.tls_named(model_path)
    words = [word.strip() for value in asked for word in value.split(",") if word.strip() and word.strip() != "all"]
    return list(dict.fromkeys([*told, *map(names.canonical, words)]))
