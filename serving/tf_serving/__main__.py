"""`greenserve serve config`: write TensorFlow Serving's configuration files for a folder of models.

    greenserve serve config --models-dir models --out config

TensorFlow Serving reads models.config again every --model_config_file_poll_wait_seconds.
After an export, run this command once to load the new versions, and again with --loaded to
move the labels once they are AVAILABLE; or once with --server, which waits in between.
The versions that labels have left stay listed until the next call, because controllers
request them by number until they have moved.
"""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from city import config as city_config
from city import pem, program, whole_files
from city.arguments import Parser, host_and_port
from city.config import District
from city.errors import InputError
from protos.model_server_config_pb2 import SSLConfig
from serving.client import Client
from serving.embedded.models import version_files
from serving.tf_serving import config_files
from serving.tf_serving.config_files import GRPC_PORT, ServerFiles, Versions
from serving.tf_serving.loaded_versions import failed_loads, loaded_versions, wait_until_loaded

MAX_SHARDS = 1000


def main(argv: list[str] | None = None, prog: str = "python -m serving.tf_serving") -> int:
    def write() -> int:
        _write(_parse(argv, prog))
        return 0

    return program.run(write)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Write TensorFlow Serving's configuration files for a folder of models.")
    parser.add_argument(
        "--city",
        type=Path,
        metavar="FILE",
        help="the city's description, for its districts (default: ./city.toml if it exists)",
    )
    parser.add_argument(
        "--models-dir",
        "--models_dir",
        type=Path,
        metavar="DIR",
        help="folder of models (default: [serving] models_dir)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--mounted-at", "--mounted_at", default="/models", metavar="PATH",
        help="path of the models inside the container (default: /models)",
    )  # fmt: skip
    parser.add_argument(
        "--config-at",
        default="/config",
        metavar="PATH",
        help="path of the files inside the container (default: /config)",
    )
    parser.add_argument("--latest", action="store_true", help="serve the newest version of each model, without labels")
    parser.add_argument(
        "--model", action="append", default=[], metavar="MODEL=STABLE[,CANARY]",
        help="versions of a model, labelled stable and canary (default: the newest is stable)",
    )  # fmt: skip
    parser.add_argument("--all-models", action="store_true", help="also serve the models of TLs that a fleet holds")
    parser.add_argument(
        "--server", metavar="HOST:PORT",
        help="server of these files: wait until it has loaded the versions that labels move to, then move them",
    )  # fmt: skip
    parser.add_argument(
        "--loaded",
        action="store_true",
        help="the versions in --out's models.config are AVAILABLE: labels may move to them",
    )
    parser.add_argument("--shards", type=int, metavar="N", help="divide the TLs among this number of servers")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="TLS: certificate of the server (PEM)")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="TLS: its key (PEM)")
    parser.add_argument(
        "--tls-client-ca", type=Path, metavar="FILE", help="mTLS: CA bundle that verifies clients (PEM)"
    )
    return parser


def _parse(argv: list[str] | None, prog: str) -> argparse.Namespace:
    args = parser(prog).parse_args(argv)
    if (args.tls_certificate is None) != (args.tls_key is None):
        raise InputError("--tls-certificate and --tls-key belong together; pass both")
    if args.tls_client_ca is not None and args.tls_key is None:
        raise InputError("--tls-client-ca needs --tls-certificate and --tls-key")
    if args.latest and args.model:
        raise InputError("--latest serves the newest versions and --model chosen ones; pass one of them")
    if args.server is not None and not args.server.startswith("unix:"):
        host_and_port(args.server, "--server")
    if args.latest and args.loaded:
        raise InputError("--loaded moves labels, and --latest writes none; pass one of them")
    if args.server is not None and (args.loaded or args.tls_key is not None):
        raise InputError(
            "--server does not go with --loaded or --tls-key: it needs a server without TLS; leave one of them out"
        )
    if args.shards is not None and not 1 <= args.shards <= MAX_SHARDS:
        raise InputError(f"--shards {args.shards} must lie between 1 and {MAX_SHARDS}")
    for name in ("mounted_at", "config_at"):
        if not getattr(args, name).startswith("/"):
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)} must be an absolute path, such as /models"
            )
    return args


def _write(args: argparse.Namespace) -> None:
    city_file = args.city or Path("city.toml")
    city = city_config.load(city_file) if args.city is not None or city_file.exists() else city_config.City(city_file)
    models_dir = args.models_dir or city.serving.models_dir
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export models into it first (greenserve export --tl all)")
    available = {name: sorted(versions) for name, versions in version_files.scan(models_dir).items()}
    if not available:
        raise InputError(f"{models_dir}: no models in this folder; export some first (greenserve export --tl all)")
    selected = _select_versions(args.model, available, args.latest, models_dir)
    districts = city.serving.districts
    if args.shards is not None:
        if districts:
            raise InputError(
                f"--shards: {city_file} has districts already; leave --shards out, or remove them from the file"
            )
        districts = _shards(list(city.tls) or list(available), args.shards)
    if args.server is not None and districts:
        raise InputError(
            f"--server is for one server, and {city_file} has districts; leave it out, and run this again with --loaded"
        )
    fleets = {district.fleet for district in districts.values()} if districts else None
    members = set() if args.all_models else config_files.fleet_members(models_dir, selected, fleets)
    if fleet_tls := members.intersection(item.partition("=")[0] for item in args.model):
        raise InputError(
            f"--model: {', '.join(sorted(fleet_tls))} is in a fleet, which is served instead; pass --all-models too"
        )
    ssl = _ssl(args)
    for folder, models in _models_by_server(list(available), districts).items():
        _write_server(args, models_dir, args.out / folder, {model: selected[model] for model in models}, fleets, ssl)
    if args.shards is not None:
        whole_files.write(args.out / "districts.toml", _districts_text(districts), "pass another --out")
        print(f"{args.out / 'districts.toml'}: add these tables to {city_file}")


def _write_server(
    args: argparse.Namespace, models_dir: Path, out: Path, target: Mapping[str, Versions],
    fleets: Collection[str] | None,
    ssl: SSLConfig | None,
) -> None:  # fmt: skip
    """Write the files of one server. Raises InputError, NotLoaded."""

    def write(models: Mapping[str, Versions]) -> int:
        members = set() if args.all_models else config_files.fleet_members(models_dir, models, fleets)
        served = {name: versions for name, versions in models.items() if name not in members}
        config_files.write(ServerFiles(served, args.mounted_at.rstrip("/"), args.config_at.rstrip("/"), ssl), out)
        return len(served)

    current = config_files.read(out)
    if args.server is None:
        loaded = {name: versions.numbers for name, versions in current.items()} if args.loaded else {}
        steps = _intermediate_steps(current, target, loaded)
    else:
        with _client(args.server) as client:
            states = {name: loaded_versions(client, name) for name in target}
            current = {name: state for name, state in states.items() if state is not None} or current
            steps = _intermediate_steps(current, target, {name: versions.numbers for name, versions in current.items()})
            if steps:
                errors = failed_loads(client, steps)
                write({**target, **steps})
                wait_until_loaded(client, {name: target[name] for name in steps}, errors)
        steps = {}
    final = {
        name: config_files.with_previous_versions(
            current.get(name), versions, version_files.versions(models_dir / name)
        )
        for name, versions in target.items()
    }
    print(f"{out}: {write({**final, **steps})} models")
    for name, versions in target.items():
        change = config_files.describe_labels(current.get(name), versions)
        if name in steps:
            print(
                f"{name}: {change} once it is loaded: run this again with --loaded when greenserve status says "
                "AVAILABLE"
            )
        elif change:
            print(f"{name}: {change}")
    if any(final[name] != target[name] for name in target.keys() - steps.keys()):
        print(
            "versions that a label has left stay listed until this command runs again; run it once controllers have "
            "moved"
        )


def _intermediate_steps(
    current: Mapping[str, Versions], target: Mapping[str, Versions], loaded: Mapping[str, Collection[int]]
) -> dict[str, Versions]:
    """The versions to serve first of each model with a label that must not move yet."""
    steps = {
        name: config_files.intermediate_versions(current.get(name), versions, loaded.get(name, ()))
        for name, versions in target.items()
    }
    return {name: step for name, step in steps.items() if step is not None}


def _client(server: str) -> Client:
    try:
        return Client(server)
    except ValueError as error:
        raise InputError(f"--server {server}: {error}") from None


def _select_versions(
    items: Sequence[str], available: Mapping[str, Sequence[int]], latest: bool, models_dir: Path
) -> dict[str, Versions]:
    """The versions to serve of all models. Raises InputError.

    Args:
        items: values of --model.
        available: model -> versions in its folder, ascending.
        latest: serve the newest versions without labels.
        models_dir: folder of the models, for errors.
    """
    selected = {
        name: Versions() if latest else config_files.labelled_versions(versions[-1])
        for name, versions in available.items()
    }
    for item in items:
        name, _, versions_text = item.partition("=")
        parts = versions_text.split(",")
        if not 1 <= len(parts) <= 2 or not all(part.isascii() and part.isdigit() for part in parts):
            raise InputError(f"--model {item!r} must be MODEL=STABLE or MODEL=STABLE,CANARY, such as SA101=3,4")
        if name not in available:
            raise InputError(f"--model: there is no model {name} in {models_dir}; it has {', '.join(available)}")
        for part in parts:
            if int(part) not in available[name]:
                raise InputError(
                    f"--model: {models_dir / name} has no version {part}; it has {', '.join(map(str, available[name]))}"
                )
        if len(set(parts)) < len(parts):
            raise InputError(f"--model {item!r}: stable and canary are the same version; name two")
        selected[name] = config_files.labelled_versions(*map(int, parts))
    return selected


def _shards(tls: Sequence[str], count: int) -> dict[str, District]:
    """Divide the TLs, in order, among this number of districts. Raises InputError."""
    if count > len(tls):
        raise InputError(f"--shards {count}: there are {len(tls)} TLs only; pass at most that number")
    bounds = [k * len(tls) // count for k in range(count + 1)]
    shards = {f"shard-{k + 1}": tuple(tls[bounds[k] : bounds[k + 1]]) for k in range(count)}
    return {name: District(f"tf-serving-{name}:{GRPC_PORT}", shard, name) for name, shard in shards.items()}


def _models_by_server(models: Sequence[str], districts: Mapping[str, District]) -> dict[str, list[str]]:
    """The models of each server by its folder's name, which is empty without districts. Raises InputError."""
    if not districts:
        return {"": list(models)}
    by_server: dict[str, list[str]] = {}
    for name, district in districts.items():
        by_server[name] = [model for model in models if model in district.tls or model == district.fleet]
        if not by_server[name]:
            raise InputError(f"district {name}: none of its TLs has a model; export them (greenserve export --tl all)")
    return by_server


def _districts_text(districts: Mapping[str, District]) -> str:
    tables = []
    for name, district in districts.items():
        tls = ", ".join(f'"{tl}"' for tl in district.tls)
        tables.append(f'[serving.districts.{name}]\naddress = "{district.address}"\ntls = [{tls}]\n')
    return "\n".join(tables)


def _ssl(args: argparse.Namespace) -> SSLConfig | None:
    if args.tls_key is None:
        return None
    client_ca = pem.read(args.tls_client_ca) if args.tls_client_ca is not None else b""
    key, certificate = pem.read(args.tls_key), pem.read(args.tls_certificate)
    pem.check_pair(certificate, key, f"{args.tls_certificate} and {args.tls_key}")
    return SSLConfig(
        server_key=key.decode(),
        server_cert=certificate.decode(),
        custom_ca=client_ca.decode(),
        client_verify=bool(client_ca),
    )


if __name__ == "__main__":
    sys.exit(main())
