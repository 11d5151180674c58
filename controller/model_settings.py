"""The models of one controller: their server, fleet and version, from flags and city.toml."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from city import names
from city.arguments import Parser
from city.config import City
from city.errors import InputError
from serving.client import tls_files
from serving.client.channel import grpc_target
from serving.client.messages import Version
from serving.client.tls_files import TlsFiles

SERVER_HELP = "model server, or unix:PATH (default: [serving] grpc_socket_path or address)"


@dataclass(frozen=True)
class ModelSettings:
    """Which models a controller uses, and where it requests them."""

    server: str
    tls_files: TlsFiles | None
    """Certificates for the model server; without them, the connection is plain text."""
    fleet: str
    """The fleet that is queried for all TLs at once, if it is served; "" for no fleet."""
    version: Version


def add_flags(parser: Parser, server_help: str = SERVER_HELP) -> None:
    """Add the flags that select the models."""
    parser.add_argument(
        "--district",
        metavar="NAME",
        help="use this district's TLs, server and fleet; to control a city with districts, pass it or --server",
    )
    parser.add_argument("--server", metavar="HOST:PORT", help=server_help)
    tls_files.add_flags(parser)
    parser.add_argument(
        "--fleet", metavar="NAME", help="fleet to query for all TLs at once, '' for none (default: [serving] fleet)"
    )
    parser.add_argument(
        "--model-number",
        type=int,
        metavar="N",
        help="version to request (default: [training] model_number, else the newest served)",
    )
    parser.add_argument("--version-label", metavar="LABEL", help="request the version of this label, such as stable")


def check_version(args: argparse.Namespace) -> None:
    """Raise InputError if the flags of the version contradict each other or have an invalid value."""
    if args.version_label is not None and args.model_number is not None:
        raise InputError("--model-number and --version-label both select the version; pass one of them")
    if args.version_label == "":
        raise InputError("--version-label is empty; pass a label, such as stable, or leave it out")
    if args.model_number is not None and not 0 <= args.model_number < 1 << 63:
        raise InputError(f"--model-number {args.model_number} must be a version number, such as 3")


def read(args: argparse.Namespace, city: City) -> ModelSettings:
    """The settings for the flags of `add_flags`. `city`: that of the district. Raises InputError."""
    return ModelSettings(
        _server(args.server, city),
        tls_files.from_flags(args, city.serving),
        _fleet(args.fleet, city),
        args.version_label or (city.training.model_number if args.model_number is None else args.model_number),
    )


def _server(flag: str | None, city: City) -> str:
    server: str = flag or city.serving.local_address
    try:
        grpc_target(server)
    except ValueError as error:
        raise InputError(f"{'--server' if flag else '[serving]'} {error}") from None
    return server


def in_district(city: City, name: str | None, is_required: bool) -> tuple[City, Sequence[str]]:
    """The city with the server and fleet of a district, and the district's TLs. Raises InputError.

    Args:
        city: the whole city.
        name: the district's; None for the city and all its TLs.
        is_required: whether a city with districts needs the name of one.
    """
    districts = city.serving.districts
    if name is None:
        if districts and is_required:
            raise InputError(f"{city.path}: has districts; pass --district ({', '.join(districts)}), or --server")
        return city, list(city.tls)
    if name not in districts:
        remedy = f"its districts are {', '.join(districts)}" if districts else "add [serving.districts.NAME] to it"
        raise InputError(f"--district {name}: is not in {city.path}; {remedy}")
    district = districts[name]
    serving = replace(city.serving, address=district.address, grpc_socket_path=None, fleet=district.fleet)
    return replace(city, serving=serving), district.tls


def _fleet(flag: str | None, city: City) -> str:
    """The fleet's name from --fleet or city.toml, "" for no fleet. Raises InputError."""
    source, name = (f"{city.path}: [serving] fleet", city.serving.fleet) if flag is None else ("--fleet", flag)
    try:
        return names.canonical(name) if name else ""
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
