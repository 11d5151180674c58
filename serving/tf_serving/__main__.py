"""`greenserve serve config`: write TensorFlow Serving's configuration files for a folder of models.

    greenserve serve config --models-dir models --out config

TensorFlow Serving reads models.config again every --model_config_file_poll_wait_seconds.
After an export, run this command once to load the new versions, and again with --loaded to
move the labels once they are AVAILABLE. With --server it makes the server do both now, and
ends once the labels have moved.
The versions that labels have left stay listed until the next call, because controllers
request them by number until they have moved.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from city import config as city_config
from city import model_folders, pem, program, whole_files
from city.arguments import Parser, bounded, check_server
from city.config import District
from city.errors import InputError, refuse
from protos.model_server_config_pb2 import ModelServerConfig, SSLConfig
from serving.client import Client
from serving.embedded.models import version_files
from serving.errors import ServingError
from serving.tf_serving import config_files, publication
from serving.tf_serving.config_files import GRPC_PORT, ServerFiles, Versions

MAX_SHARDS = 1000


def main(argv: list[str] | None = None, prog: str = "python -m serving.tf_serving") -> int:
    def write() -> int:
        _write(_parse(argv, prog))
        return 0

    return program.run(write)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Write TensorFlow Serving's configuration files for a folder of models.")
    parser.add_city(is_optional=True)
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
        help="server of these files, or a name of several replicas: make it load the versions and move the labels now",
    )  # fmt: skip
    parser.add_argument(
        "--loaded",
        action="store_true",
        help="the versions in --out's models.config are AVAILABLE: labels may move to them",
    )
    shards = bounded(int, 1, MAX_SHARDS)
    parser.add_argument("--shards", type=shards, metavar="N", help="divide the TLs among this number of servers")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="TLS: certificate of the server (PEM)")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="TLS: its key (PEM)")
    parser.add_argument(
        "--tls-client-ca", type=Path, metavar="FILE", help="mTLS: CA bundle that verifies clients (PEM)"
    )
    return parser


def _parse(argv: list[str] | None, prog: str) -> argparse.Namespace:
    args = parser(prog).parse_args(argv)
    check_server(args.server, "--server")
    has_key, folders = args.tls_key is not None, {"mounted": args.mounted_at, "config": args.config_at}
    refuse(
        ((args.tls_certificate is not None) != has_key, "--tls-certificate and --tls-key belong together; pass both"),
        (args.tls_client_ca and not has_key, "--tls-client-ca needs --tls-certificate and --tls-key"),
        (
            args.latest and args.model,
            "--latest serves the newest versions and --model chosen ones; pass one of them",
        ),
        (args.latest and args.loaded, "--loaded moves labels, and --latest writes none; pass one of them"),
        (
            args.server and args.loaded,
            "--server waits until the versions are loaded, and --loaded says so; pass one of them",
        ),
        *(
            (not folder.startswith("/"), f"--{name}-at {folder} must be an absolute path, such as /models")
            for name, folder in folders.items()
        ),
    )
    return args


def _write(args: argparse.Namespace) -> None:
    """Write the files of all servers. Raises InputError, NotLoaded."""
    city = city_config.load_if_exists(args.city)
    models_dir = args.models_dir or city.serving.models_dir
    available = _available_versions(models_dir)
    selected = _select_versions(args, available, models_dir)
    districts = _districts(args, city, available)
    fleets = {district.fleet for district in districts.values()} if districts else None

    def fleet_members(models: Mapping[str, Versions]) -> set[str]:
        return set() if args.all_models else config_files.fleet_members(models_dir, models, fleets)

    if fleet_tls := fleet_members(selected).intersection(item.partition("=")[0] for item in args.model):
        raise InputError(
            f"--model: {', '.join(sorted(fleet_tls))} is in a fleet, which is served instead; pass --all-models too"
        )
    files = ServerFiles({}, args.mounted_at.rstrip("/"), args.config_at.rstrip("/"), _ssl(args))
    for folder, target in _models_by_server(selected, districts).items():
        files_of_server = _Publication(models_dir, fleet_members, files, args.out / folder, target)
        if args.server is None:
            files_of_server.write(args.loaded)
            continue
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(each) for each in publication.clients(args.server, city.serving)]
            try:
                files_of_server.write_with_servers(clients)
            except ServingError as error:
                raise publication.NotLoaded(
                    f"--server {args.server}: does not answer ({error}); start it, or leave --server out"
                ) from None
    if args.shards is not None:
        whole_files.write(args.out / "districts.toml", _districts_text(districts), "pass another --out")
        print(f"{args.out / 'districts.toml'}: add these tables to {city.path}")


def _available_versions(models_dir: Path) -> dict[str, list[int]]:
    """Model -> versions in its folder, ascending. Raises InputError if there is none."""
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export models into it first (greenserve export --tl all)")
    found = {folder.name: list(version_files.versions(folder)) for folder in model_folders.subfolders(models_dir)}
    available = {name: versions for name, versions in found.items() if versions}
    if not available:
        raise InputError(f"{models_dir}: no models in this folder; export some first (greenserve export --tl all)")
    return available


def _districts(args: argparse.Namespace, city: city_config.City, available: Collection[str]) -> Mapping[str, District]:
    """The districts of the city, or those of --shards; empty for one server. Raises InputError."""
    districts = city.serving.districts
    if args.shards is not None:
        if districts:
            raise InputError(
                f"--shards: {city.path} has districts already; leave --shards out, or remove them from the file"
            )
        districts = _shards(list(city.tls) or list(available), args.shards)
    if args.server is not None and districts:
        asked = {name: district for name, district in districts.items() if district.address == args.server}
        if not asked:
            addresses = ", ".join(district.address for district in districts.values())
            raise InputError(f"--server {args.server}: no district has this address; pass one of {addresses}")
        return asked
    return districts


@dataclass(frozen=True)
class _Publication:
    """The versions and labels that one server is to have."""

    models_dir: Path
    fleet_members: Callable[[Mapping[str, Versions]], set[str]]
    """Returns which of these models are not served, because a fleet holds them."""
    files: ServerFiles
    """The server's files, without models."""
    out: Path
    """Folder of the files."""
    target: Mapping[str, Versions]

    def write(self, is_loaded: bool) -> None:
        """Write the files. `is_loaded`: the server has loaded the versions in the present ones, so labels may move."""
        current = config_files.read(self.out)
        loaded = {name: current[name].numbers for name in current} if is_loaded else {}
        steps = publication.steps(self.target, current, loaded)
        final = self._final(current)
        self._report(current, final, steps, self._write_files({**final, **steps}))

    def write_with_servers(self, clients: Sequence[Client]) -> None:
        """Make servers of the same files load new versions, then move the labels; return once all have moved them."""
        in_file = config_files.read(self.out)
        if not in_file:
            raise InputError(
                f"--server: {self.out} has no models.config, so no server was started with it; leave --server out, and "
                "start the server with these files"
            )
        states = publication.states(clients, self.target, in_file)
        final = self._final(states[0])
        files: list[ServerFiles] = []

        def write(versions: Mapping[str, Versions]) -> ModelServerConfig:
            files.append(self._write_files(versions))
            return config_files.models_config(files[-1])

        publication.publish(clients, states, self.out / config_files.MODELS_CONFIG, self.target, final, write)
        self._report(states[0], final, {}, files[-1])

    def _final(self, current: Mapping[str, Versions]) -> dict[str, Versions]:
        """The target versions, and those that labels leave."""
        return {
            name: config_files.with_previous_versions(
                current.get(name), versions, version_files.versions(self.models_dir / name)
            )
            for name, versions in self.target.items()
        }

    def _write_files(self, versions: Mapping[str, Versions]) -> ServerFiles:
        """Write the files for these versions, without models that a fleet holds."""
        members = self.fleet_members(versions)
        files = replace(self.files, models={name: each for name, each in versions.items() if name not in members})
        config_files.write(files, self.out)
        return files

    def _report(
        self,
        current: Mapping[str, Versions],
        final: Mapping[str, Versions],
        steps: Mapping[str, Versions],
        files: ServerFiles,
    ) -> None:
        """Print what has changed.

        Args:
            current: the versions and labels until now.
            final: those to reach.
            steps: the versions of models with a label that must not move yet.
            files: the files as written.
        """
        print(f"{self.out}: {len(files.models)} models")
        for name, versions in self.target.items():
            change = config_files.describe_labels(current.get(name), versions)
            if name in steps:
                change += " once it is loaded: run this again with --loaded when greenserve status says AVAILABLE"
            if change:
                print(f"{name}: {change}")
        if any(final[name] != self.target[name] for name in self.target.keys() - steps.keys()):
            print(
                "versions that a label has left stay listed until this command runs again; run it once controllers "
                "have moved"
            )


def _select_versions(
    args: argparse.Namespace, available: Mapping[str, Sequence[int]], models_dir: Path
) -> dict[str, Versions]:
    """The versions to serve of all models; `available`: model -> its versions, ascending. Raises InputError."""
    selected = {
        name: Versions() if args.latest else config_files.labelled_versions(versions[-1])
        for name, versions in available.items()
    }
    for item in args.model:
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


def _models_by_server(
    models: Mapping[str, Versions], districts: Mapping[str, District]
) -> dict[str, Mapping[str, Versions]]:
    """The models of each server by its folder's name, which is empty without districts. Raises InputError."""
    by_server = {"": models} if not districts else {}
    for name, district in districts.items():
        by_server[name] = {model: models[model] for model in models if model in (*district.tls, district.fleet)}
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
