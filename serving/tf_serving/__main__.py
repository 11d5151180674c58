"""`greenserve serve config`: write TensorFlow Serving's configuration files for a folder of models.

    greenserve serve config --models-dir models --out config

TensorFlow Serving reads models.config again every --model_config_file_poll_wait_seconds,
so run this again after an export: a first time to load the new versions, and with --loaded
to move the labels once they are AVAILABLE. With --server it waits in between.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from city import config as city_config
from city import pem, program, whole_files
from city.arguments import Parser, host_and_port
from city.config import District
from city.errors import InputError, ProgramFailed
from protos.model_server_config_pb2 import SSLConfig
from protos.predict_pb2 import ModelVersionStatus
from serving.client import Client
from serving.embedded.models import version_files
from serving.errors import BadRequest, ModelNotFound, ServingError
from serving.tf_serving import config_files
from serving.tf_serving.config_files import GRPC_PORT, ServerFiles, Versions

MAX_SHARDS = 1000
LOAD_TIMEOUT_S, STATUS_INTERVAL_S = 300.0, 1.0
"""A server reads models.config every 30 s, and then loads."""


class NotLoaded(ProgramFailed):
    """A server has not loaded a version in time."""


def main(argv: list[str] | None = None, prog: str = "python -m serving.tf_serving") -> int:
    def write() -> int:
        _write(_parse(argv, prog))
        return 0

    return program.run(write)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Write TensorFlow Serving's configuration files for a folder of models.")
    parser.add_argument(
        "--city", type=Path, metavar="FILE", help="the city's description, for its districts (default: ./city.toml if it exists)"
    )
    parser.add_argument(
        "--models-dir", "--models_dir", type=Path, metavar="DIR", help="folder of models (default: [serving] models_dir)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--mounted-at", "--mounted_at", default="/models", metavar="PATH",
        help="path of the models inside the container (default: /models)",
    )  # fmt: skip
    parser.add_argument(
        "--config-at", default="/config", metavar="PATH", help="path of the files inside the container (default: /config)"
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
        "--loaded", action="store_true", help="the versions in --out's models.config are AVAILABLE: labels may move to them"
    )
    parser.add_argument("--shards", type=int, metavar="N", help="divide the TLs among this number of servers")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="TLS: certificate of the server (PEM)")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="TLS: its key (PEM)")
    parser.add_argument("--tls-client-ca", type=Path, metavar="FILE", help="mTLS: CA bundle that verifies clients (PEM)")
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
        raise InputError("--server asks a server without TLS what it has loaded; leave --loaded and --tls-key out, or --server")
    if args.shards is not None and not 1 <= args.shards <= MAX_SHARDS:
        raise InputError(f"--shards {args.shards} must lie between 1 and {MAX_SHARDS}")
    for name in ("mounted_at", "config_at"):
        if not getattr(args, name).startswith("/"):
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)} must be an absolute path, such as /models")
    return args


def _write(args: argparse.Namespace) -> None:
    city_file = args.city or Path("city.toml")
    city = city_config.load(city_file) if args.city is not None or city_file.exists() else city_config.City(city_file)
    models_dir = args.models_dir or city.serving.models_dir
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: there is no such folder; export models into it first (greenserve export --tl all)")
    available = {name: sorted(versions) for name, versions in version_files.scan(models_dir).items()}
    if not available:
        raise InputError(f"{models_dir}: holds no models; export some first (greenserve export --tl all)")
    chosen = _versions(args.model, available, args.latest, models_dir)
    districts = city.serving.districts
    if args.shards is not None:
        if districts:
            raise InputError(f"--shards: {city_file} has districts already; leave --shards out, or remove them")
        districts = _shards(list(city.tls) or list(available), args.shards)
    if args.server is not None and districts:
        raise InputError(
            f"--server is for one server, and {city_file} has districts; leave it out, and run this again with --loaded"
        )
    fleets = {district.fleet for district in districts.values()} if districts else None
    members = set() if args.all_models else config_files.fleet_members(models_dir, chosen, fleets)
    if missing := [name for name in _named(args.model) if name in members]:
        raise InputError(f"--model: {', '.join(missing)} is in a fleet, which is served instead; pass --all-models too")
    ssl = _ssl(args)
    for name, models in _by_server(list(available), districts).items():
        _write_server(args, models_dir, args.out / name, {each: chosen[each] for each in models}, fleets, ssl)
    if args.shards is not None:
        whole_files.write(args.out / "districts.toml", _districts_text(districts), "pass another --out")
        print(f"{args.out / 'districts.toml'}: add these tables to {city_file}")


def _write_server(
    args: argparse.Namespace, models_dir: Path, out: Path, wanted: Mapping[str, Versions], fleets: Collection[str] | None,
    ssl: SSLConfig | None,
) -> None:  # fmt: skip
    """Write the files of one server. Raises InputError, NotLoaded."""

    def write(models: Mapping[str, Versions]) -> int:
        members = set() if args.all_models else config_files.fleet_members(models_dir, models, fleets)
        served = {name: versions for name, versions in models.items() if name not in members}
        config_files.write(ServerFiles(served, args.mounted_at.rstrip("/"), args.config_at.rstrip("/"), ssl), out)
        return len(served)

    current = config_files.read(out)
    loaded = {name: set(versions.numbers) if args.loaded else set() for name, versions in current.items()}
    if args.server is not None:
        with _client(args.server) as client:
            states = {name: _state(client, name) for name in wanted}
            current = {name: state for name, state in states.items() if state is not None} or current
            before = _steps_before(current, wanted, {name: set(versions.numbers) for name, versions in current.items()})
            if before:
                write({**wanted, **before})
                _wait_until_loaded(client, {name: wanted[name] for name in before})
        before = {}
    else:
        before = _steps_before(current, wanted, loaded)
    print(f"{out}: {write({**wanted, **before})} models")
    for name, versions in wanted.items():
        change = config_files.describe_labels(current.get(name), versions)
        if name in before:
            print(f"{name}: {change} once it is loaded: run this again with --loaded when greenserve status says AVAILABLE")
        elif change:
            print(f"{name}: {change}")


def _steps_before(
    current: Mapping[str, Versions], wanted: Mapping[str, Versions], loaded: Mapping[str, Collection[int]]
) -> dict[str, Versions]:
    """By model whose label must not move yet, what is served before it does."""
    steps = {name: config_files.step_before(current.get(name), each, loaded.get(name, ())) for name, each in wanted.items()}
    return {name: step for name, step in steps.items() if step is not None}


def _client(server: str) -> Client:
    try:
        return Client(server)
    except ValueError as error:
        raise InputError(f"--server {server}: {error}") from None


def _state(client: Client, model: str) -> Versions | None:
    """The versions that a server has loaded of a model, and its labels; None: none. Raises NotLoaded."""
    try:
        numbers = tuple(sorted(state.version for state in client.status(model) if state.state == ModelVersionStatus.AVAILABLE))
        labels = {}
        for label in config_files.LABELS:
            with contextlib.suppress(BadRequest):  # it has no such label
                labels[label] = client.version_number(model, label)
    except ModelNotFound:
        return None
    except ServingError as error:
        raise NotLoaded(f"--server {client.address}: does not answer ({error}); start it, or leave --server out") from None
    return Versions(numbers, labels) if numbers else None


def _wait_until_loaded(client: Client, models: Mapping[str, Versions]) -> None:
    """Wait until a server has loaded these versions. Raises NotLoaded."""
    deadline_s = time.monotonic() + LOAD_TIMEOUT_S
    for name, versions in models.items():
        while missing := set(versions.numbers) - set((_state(client, name) or Versions()).numbers):
            if time.monotonic() > deadline_s:
                raise NotLoaded(
                    f"{name}/{min(missing)} is not AVAILABLE at {client.address} after {LOAD_TIMEOUT_S:g} s; no label was "
                    "moved; look at the server's log"
                )
            time.sleep(STATUS_INTERVAL_S)


def _named(items: Sequence[str]) -> list[str]:
    return [item.partition("=")[0] for item in items]


def _versions(
    items: Sequence[str], available: Mapping[str, Sequence[int]], latest: bool, models_dir: Path
) -> dict[str, Versions]:
    """The versions to serve of every model. Raises InputError."""
    chosen = {name: Versions() if latest else config_files.labelled(versions[-1]) for name, versions in available.items()}
    for item in items:
        name, _, numbers = item.partition("=")
        parts = numbers.split(",")
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
        chosen[name] = config_files.labelled(*map(int, parts))
    return chosen


def _shards(tls: Sequence[str], count: int) -> dict[str, District]:
    """The TLs in order, divided among a number of districts. Raises InputError."""
    if count > len(tls):
        raise InputError(f"--shards {count}: there are {len(tls)} TLs only")
    bounds = [k * len(tls) // count for k in range(count + 1)]
    shards = {f"shard-{k + 1}": tls[bounds[k] : bounds[k + 1]] for k in range(count)}
    return {name: District(f"tf-serving-{name}:{GRPC_PORT}", tuple(own), name) for name, own in shards.items()}


def _by_server(models: Sequence[str], districts: Mapping[str, District]) -> dict[str, list[str]]:
    """The models of each server, by the name of its folder; "": there is one. Raises InputError."""
    if not districts:
        return {"": list(models)}
    by_server = {name: [each for each in models if each in d.tls or each == d.fleet] for name, d in districts.items()}
    if empty := [name for name, own in by_server.items() if not own]:
        raise InputError(f"district {empty[0]}: none of its TLs has a model; export them (greenserve export --tl all)")
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
    return SSLConfig(
        server_key=pem.read(args.tls_key).decode(),
        server_cert=pem.read(args.tls_certificate).decode(),
        custom_ca=client_ca.decode(),
        client_verify=bool(client_ca),
    )


if __name__ == "__main__":
    sys.exit(main())
