"""The commands `predict` and `status`: clients of a running model server."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from city import config as city_config
from city import model_folders, program, text_table
from city.arguments import Parser, bounded
from city.errors import InputError, ProgramFailed, first_line
from city.interrupts import interruptible
from protos import predict_pb2 as pb
from serving import contract
from serving.client import Client, tls_files
from serving.errors import BadRequest, DeadlineExceeded, ModelNotFound, ServingError, Unavailable

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 3600.0
NOT_SERVED = "NOT SERVED"
MAX_SHOWN_CHARS = 40


def predict_parser(prog: str) -> Parser:
    """The flags of `predict`."""
    parser = Parser(prog=prog, description="Request a prediction from a model, and print its outputs as JSON.")
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_argument(
        "--observation", required=True, metavar="X",
        help="numbers separated by commas, a .npy or .json file, - for JSON on stdin, or zeros",
    )  # fmt: skip
    parser.add_argument(
        "--model-number", "--model_version", dest="model_version", type=int, metavar="N",
        help="version of the model (default: the newest)",
    )  # fmt: skip
    parser.add_argument(
        "--version-label", "--version_label", default="", metavar="LABEL", help="version label of the model"
    )
    _add_client_flags(parser)
    return parser


def status_parser(prog: str) -> Parser:
    """The flags of `status`."""
    parser = Parser(prog=prog, description="Show the states of models' versions.")
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="name of a model (default: every model in [serving] models_dir)"
    )
    _add_client_flags(parser)
    return parser


def predict(argv: list[str], prog: str = "python -m serving predict") -> int:
    """Print a model's outputs for one observation. Exit code: 0; 2 if the input is wrong; 1 if the server does not
    answer."""

    def run() -> int:
        args = predict_parser(prog).parse_args(argv)
        if args.model_version is not None and args.version_label:
            raise InputError("--model-number and --version-label both select the version; pass one of them")
        (address,) = _models_by_address(args, [args.model])
        with _client(args, address, f"{args.model} at ") as client:
            print(json.dumps(_predict(client, args)))
        return 0

    return program.run(run)


def status(argv: list[str], prog: str = "python -m serving status") -> int:
    """Print the states of models' versions. Exit code: 0; 2 if the input is wrong; 1 if a server does not answer."""

    def run() -> int:
        args = status_parser(prog).parse_args(argv)
        rows: list[tuple[str, str, str, str]] = []
        for address, models in _models_by_address(args, args.models or _models(args)).items():
            with _client(args, address) as client:
                rows += interruptible(partial(_status_rows, client, models, args.timeout_s))
        print(text_table.render(("MODEL", "VERSION", "STATE", ""), rows))
        missing = [model for model, _, state, _ in rows if state == NOT_SERVED]
        if args.models and missing:
            raise InputError(f"{', '.join(missing)}: not served; export it, or pass another --server")
        return 0

    return program.run(run)


def _add_client_flags(parser: Parser) -> None:
    parser.add_city(is_optional=True)
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        help="model server, or unix:PATH (default: [serving] grpc_socket_path or address)",
    )
    timeout = bounded(float, MIN_TIMEOUT_S, MAX_TIMEOUT_S)
    parser.add_argument(
        "--timeout-s", "--timeout_s", type=timeout, default=5.0, metavar="S", help="deadline of the call (default: 5)"
    )
    tls_files.add_flags(parser)


def _models_by_address(args: argparse.Namespace, models: Sequence[str]) -> dict[str, list[str]]:
    """The models by the address of their server, which is their district's in a city with districts. Raises
    InputError."""
    if args.server is not None:
        return {args.server: list(models)}
    serving = city_config.load_if_exists(args.city).serving
    if not serving.districts:
        is_remote = args.tls_ca is not None or args.tls_certificate is not None
        return {serving.address if is_remote else serving.local_address: list(models)}
    models_by_address: dict[str, list[str]] = {}
    for model in models:
        for district in serving.districts.values():
            if model in district.tls or model == district.fleet:
                models_by_address.setdefault(district.address, []).append(model)
                break
        else:
            raise InputError(f"{model} is not in any district of city.toml; add it to one, or pass --server")
    return models_by_address


@contextlib.contextmanager
def _client(args: argparse.Namespace, address: str, prefix: str = "") -> Iterator[Client]:
    """A client of a server. Raises InputError or ProgramFailed, with the address, for errors of its calls.

    `prefix`: text before the address if the request is invalid.
    """
    files = tls_files.from_flags(args, city_config.load_if_exists(args.city).serving)
    try:
        client = Client(address, tls=None if files is None else files.read())
    except ValueError as error:
        raise InputError(str(error)) from None
    try:
        with client:
            yield client
    except DeadlineExceeded:
        raise ProgramFailed(
            f"{client.address}: no answer within {args.timeout_s:g} s; pass a longer --timeout-s, or another --server"
        ) from None
    except Unavailable as error:
        hint = (
            "pass --server, or check its TLS settings"
            if args.tls_ca
            else "start one (greenserve serve) or pass --server"
        )
        raise ProgramFailed(f"no model server answers at {address} ({error}); {hint}") from None
    except BadRequest as error:
        raise InputError(f"{prefix}{address}: {error}") from None
    except ModelNotFound as error:
        raise InputError(f"{address}: {error}; greenserve status lists the served models") from None
    except ServingError as error:
        raise ProgramFailed(str(error)) from None


def _predict(client: Client, args: argparse.Namespace) -> dict[str, Any]:
    """Request the prediction that the flags describe, and return the outputs by key."""
    model, version = args.model, args.version_label or args.model_version
    # an invalid --observation is reported even if no server answers
    observation = None if args.observation == "zeros" else _observation(args.observation)
    signatures = interruptible(lambda: client.signatures(model, version, args.timeout_s))
    size = _observation_size(model, signatures.signature_def)
    if observation is None:
        observation = np.zeros(size, np.float32)
    if not np.isfinite(observation).all():
        raise InputError(f"--observation {args.observation!r} has values that are not finite; replace them")
    if observation.size != size:
        raise InputError(f"--observation has {observation.size} values; {model} takes {size}")
    inputs = {contract.INPUT: observation[None]}
    outputs = interruptible(lambda: client.run(model, inputs, version=version, timeout_s=args.timeout_s))
    return {key: value[0].tolist() for key, value in sorted(outputs.items())}


def _observation_size(model: str, signatures: Mapping[str, pb.SignatureDef]) -> int:
    """The size of a model's observation. Raises InputError if the model is not a policy."""
    if contract.DEFAULT_SIGNATURE not in signatures:
        raise InputError(f"{model} has no signature {contract.DEFAULT_SIGNATURE!r}; it is not an exported policy")
    inputs = signatures[contract.DEFAULT_SIGNATURE].inputs
    if set(inputs) != {contract.INPUT} or len(inputs[contract.INPUT].tensor_shape.dim) != 2:
        raise InputError(
            f"{model} does not take one {contract.INPUT} [-1, O], but {', '.join(sorted(inputs))}; it is not an "
            "exported policy"
        )
    return int(inputs[contract.INPUT].tensor_shape.dim[1].size)


def _observation(text: str) -> NDArray[np.float32]:
    """Read the value of --observation, float32 [O]. Raises InputError."""
    path = Path(text)
    try:
        if text == "-":
            values = json.load(sys.stdin)
        elif path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            values = json.loads(path.read_text(encoding="utf-8"))
        else:
            values = [float(number) for number in text.split(",")]
        return np.asarray(values, np.float32).reshape(-1)
    except (OSError, ValueError, TypeError, EOFError, OverflowError, RecursionError, BadZipFile) as error:
        raise InputError(
            f"--observation {text[:MAX_SHOWN_CHARS]!r}: not a list of numbers ({first_line(error)}); "
            "pass numbers separated by commas, a .npy or .json file, - for JSON on stdin, or zeros"
        ) from None


def _status_rows(client: Client, models: Sequence[str], timeout_s: float) -> list[tuple[str, str, str, str]]:
    """(model, version, state, error) of every version."""
    rows: list[tuple[str, str, str, str]] = []
    for model in models:
        try:
            for status in client.status(model, timeout_s):
                state = pb.ModelVersionStatus.State.Name(status.state)
                rows.append((model, str(status.version), state, status.status.error_message))
        except ModelNotFound:
            rows.append((model, "-", NOT_SERVED, ""))
    return rows


def _models(args: argparse.Namespace) -> list[str]:
    """Names of the models in [serving] models_dir: TensorFlow Serving's API cannot list models. Raises InputError."""
    models_dir = city_config.load_if_exists(args.city).serving.models_dir
    reason = f"the folder {models_dir} is missing or has no models"
    try:
        if names := [folder.name for folder in model_folders.subfolders(models_dir)]:
            return names
    except OSError as error:
        reason = f"the folder {models_dir} cannot be read ({error.strerror})"
    raise InputError(
        f"no model is named, the server's API cannot list models, and {reason}; pass their names: status MODEL [MODEL "
        "...]"
    )
