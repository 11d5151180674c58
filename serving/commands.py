"""`python -m serving predict` and `python -m serving status`: a model server asked from a shell."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city import config as city_config
from city.arguments import Parser
from city.errors import InputError, path_errors_as_input_errors
from protos import predict_pb2 as pb
from serving import contract
from serving.client.channel import Tls
from serving.client.client import Client
from serving.errors import BadRequest, DeadlineExceeded, ModelNotFound, ServingError, Unavailable

COMMANDS = ("predict", "status")


def main(argv: list[str]) -> int:
    """Exit code: 0; 2 where the input is wrong; 1 where the server does not answer."""
    try:
        args = _parse(argv)
        with _client(args) as client:
            try:
                return _predict(client, args) if args.command == "predict" else _show_status(client, args)
            except (Unavailable, DeadlineExceeded) as error:
                words = f"no model server answers at {client.address} ({error}); start one (python -m serving) or say --server"
                raise type(error)(words) from None
    except (InputError, ModelNotFound, BadRequest) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ServingError, contract.ContractError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m serving", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    predict = commands.add_parser("predict", help="ask a model for an action", allow_abbrev=False)
    predict.add_argument("model", metavar="MODEL")
    predict.add_argument(
        "--observation", required=True, metavar="X",
        help="numbers with commas between, a .npy or .json file, - for JSON on standard input, or zeros",
    )  # fmt: skip
    predict.add_argument("--model_version", type=int, metavar="N", help="that version (default: the newest)")
    predict.add_argument("--version_label", default="", metavar="LABEL", help="the version of that label")
    status = commands.add_parser("status", help="states of models' versions", allow_abbrev=False)
    status.add_argument("models", nargs="*", metavar="MODEL", help="default: every model of [serving] models_dir")
    for command in (predict, status):
        command.add_argument("--city", type=Path, help="city.toml (default: ./city.toml)")
        command.add_argument(
            "--server", metavar="HOST:PORT", help="or unix:PATH (default: [serving] grpc_socket_path, or its address)"
        )
        command.add_argument("--timeout_s", type=float, default=5.0, metavar="S")
        command.add_argument("--tls_ca", type=Path, metavar="FILE", help="TLS: certificates of who signs the server's, as PEM")
        command.add_argument("--tls_certificate", type=Path, metavar="FILE", help="mTLS: this client's certificate")
        command.add_argument("--tls_key", type=Path, metavar="FILE", help="mTLS: its key")
    args = parser.parse_args(argv)
    if not 0 < args.timeout_s <= 3600:
        raise InputError(f"--timeout_s {args.timeout_s:g} must lie between 0 and 3600")
    if (args.tls_certificate is None) != (args.tls_key is None):
        raise InputError("--tls_certificate and --tls_key belong together; give both")
    return args


@path_errors_as_input_errors()
def _serving(args: argparse.Namespace) -> city_config.Serving:
    path = args.city or Path("city.toml")
    return city_config.load(path).serving if args.city is not None or path.exists() else city_config.Serving()


def _client(args: argparse.Namespace) -> Client:
    tls = None
    if args.tls_ca is not None or args.tls_certificate is not None:
        ca, certificate, key = (
            None if path is None else _read(path) for path in (args.tls_ca, args.tls_certificate, args.tls_key)
        )
        tls = Tls(ca, certificate, key)
    try:
        return Client(args.server or (_serving(args).local_address if tls is None else _serving(args).address), tls=tls)
    except ValueError as error:
        raise InputError(str(error)) from None


def _predict(client: Client, args: argparse.Namespace) -> int:
    told = None if args.observation == "zeros" else _observation(args.observation)
    signatures = client.signatures(args.model, args.model_version, args.version_label, timeout_s=args.timeout_s).signature_def
    size = _size(args.model, signatures)
    observation = np.zeros(size, np.float32) if told is None else told
    if observation.shape != (size,):
        raise InputError(f"--observation has {observation.size} numbers; {args.model} takes {size}")
    outputs = client.run(
        args.model, {contract.INPUT: observation[None]}, version=args.model_version, label=args.version_label,
        timeout_s=args.timeout_s,
    )  # fmt: skip
    print(json.dumps({key: value[0].tolist() for key, value in sorted(outputs.items())}))
    return 0


def _size(model: str, signatures: object) -> int:
    """Numbers in one observation of a model. Raises InputError where it takes none."""
    if contract.SIGNATURE not in signatures:  # type: ignore[operator]
        raise InputError(f"{model} has no signature {contract.SIGNATURE!r}")
    inputs = signatures[contract.SIGNATURE].inputs  # type: ignore[index]
    if set(inputs) != {contract.INPUT} or len(inputs[contract.INPUT].tensor_shape.dim) != 2:
        raise InputError(f"{model} does not take one {contract.INPUT} [-1, O], but {', '.join(sorted(inputs))}")
    return int(inputs[contract.INPUT].tensor_shape.dim[1].size)


def _observation(text: str) -> NDArray[np.float32]:
    """float32 [O]. Raises InputError."""
    path = Path(text)
    try:
        if text == "-":
            found = json.load(sys.stdin)
        elif path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
        else:
            found = [float(part) for part in text.split(",")]
        return np.asarray(found, np.float32).reshape(-1)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"--observation {text!r} is neither numbers with commas between, a .npy or .json file of them, -, nor zeros: {error}"
        ) from None


def _show_status(client: Client, args: argparse.Namespace) -> int:
    models = args.models or _models(_serving(args).models_dir)
    rows, unknown = [], 0
    for model in models:
        try:
            states = client.status(model, timeout_s=args.timeout_s)
        except ModelNotFound:
            states, unknown = [], unknown + 1
            rows.append((model, "-", "NOT SERVED", ""))
        rows += [
            (model, str(state.version), pb.ModelVersionStatus.State.Name(state.state), state.status.error_message)
            for state in states
        ]
    widths = [max(len(row[i]) for row in (("MODEL", "VERSION", "STATE", ""), *rows)) for i in range(3)]
    for row in (("MODEL", "VERSION", "STATE", ""), *rows):
        print("  ".join((*(text.ljust(width) for text, width in zip(row[:3], widths, strict=True)), row[3])).rstrip())
    return 2 if args.models and unknown else 0


def _models(models_dir: Path) -> list[str]:
    try:
        found = sorted(path.name for path in models_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{models_dir}: cannot be read ({error.strerror}); name the models to show") from None
    if not found:
        raise InputError(f"{models_dir}: holds no models; name the models to show")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
