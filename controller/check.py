"""`greenserve check`: compare every TL's contract with the network, without running anything."""

import sys
from pathlib import Path

from city import config as city_config
from city import model_folders, names, network, program, text_table
from city.arguments import Parser, host_and_port
from city.errors import InputError
from city.network import StreetNetwork
from controller.policies.served_contracts import fetch_contracts
from controller.sumo.network import check_contract_matches_network, check_contracts_match_city
from protos import policy_pb2 as pb
from serving.client import Client
from serving.contract import ContractError, from_saved_model
from serving.errors import DeadlineExceeded, ServingError, Unavailable
from signals import contract, dialects
from signals.change_times import (
    ChangeTimes,
    change_times,
    describe_longer,
    describe_slow,
    signal_safeties,
    times_to_train_with,
    times_without_model,
)
from signals.policy_signals import PolicySignal, describe_programs, of_contract
from signals.safety.conflicts import check_phases

MATCHES, LEFT_OUT = "matches", "left on its own program"
Row = tuple[str, str, str, str]
"""(TL, version, dialect, difference or "matches")."""


def main(argv: list[str] | None = None, prog: str = "python -m controller.check") -> int:
    """Print the table. Exit code: 0 if every TL matches; 2 if one does not, or the input is wrong."""

    def check() -> int:
        street, rows, advice = _check(sys.argv[1:] if argv is None else argv, prog)
        width = text_table.terminal_width()
        print(text_table.render(("TL", "VERSION", "DIALECT", "CONTRACT"), rows, width))
        mismatches = sum(row[3] != MATCHES and not row[3].startswith(LEFT_OUT) for row in rows)
        matches = sum(row[3] == MATCHES for row in rows)
        print(f"{matches} of {len(rows)} TLs match the network {street.net_file}")
        for line in filter(None, advice):
            print(text_table.wrapped(line, width))
        return program.WRONG_INPUT if mismatches else 0

    return program.run(check)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Compare every TL's policy contract with the network, without running anything.")
    parser.add_argument(
        "--city", type=Path, metavar="FILE", default=Path("city.toml"), help="the city's description (default: ./city.toml)"
    )
    parser.add_argument(
        "--infer-tl", action="append", metavar="TL", help="TLs to check, separated by commas or repeated (default: all)"
    )
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="read contracts from this model server (default: from [serving] models_dir)"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a TL must be left on its own program")
    parser.add_argument(
        "--model-number", type=int, metavar="N", help="version to check (default: [training] model_number, else the newest)"
    )
    return parser


def _check(argv: list[str], prog: str) -> tuple[StreetNetwork, list[Row], list[str]]:
    """The network, a row per TL, and advice about change times that are longer than in training. Raises InputError."""
    args = parser(prog).parse_args(argv)
    city = city_config.load(args.city)
    if not city.tls:
        raise InputError(f"{args.city}: describes no TL; add tables such as [tl.SA101]")
    dialects.check_city_settings(city)
    street = network.of_city(city)
    tls = names.select(args.infer_tl or ["all"], list(city.tls), "--infer-tl", city.tl_of_signal)
    version = city.training.model_number if args.model_number is None else args.model_number
    if version is not None and version < 0:
        raise InputError(f"--model-number {version} must be a version number, such as 3")
    if args.server is not None:
        _check_server(args.server)
    rows: list[Row] = []
    times: list[ChangeTimes | None] = []
    without_model: list[str] = []
    chosen: list[tuple[str, list[PolicySignal]]] = []
    for tl in tls:
        try:
            _, left_out = contract.controllable(city, [tl], street)
            if left_out and not args.strict:
                rows.append((tl, "-", city.tls[tl].dialect, f"{LEFT_OUT}: {left_out[tl]}"))
                continue
            model = _contract(city, tl, args.server, version)
        except (InputError, ContractError) as error:
            rows.append((tl, "-", city.tls[tl].dialect, str(error)))
            without_model.append(tl)
            continue
        rows.append(_row(city, street, tl, model))
        if rows[-1][3] == MATCHES:
            chosen.append((tl, of_contract(model, street)))
            times.append(change_times(model, signal_safeties(model, street, city.safety)))
    to_train_with = times_to_train_with([*times, *times_without_model(city, street, without_model)])
    return street, rows, [*describe_programs(chosen), describe_slow(times), describe_longer(times), *to_train_with]


def _check_server(address: str) -> None:
    """Raise InputError if no model server answers."""
    if not address.startswith("unix:"):
        host_and_port(address, "--server")
    try:
        with Client(address) as client:
            client.status("")
    except ValueError as error:
        raise InputError(f"--server {address}: {error}") from None
    except (Unavailable, DeadlineExceeded) as error:
        raise InputError(
            f"no model server answers at {address} ({error}); start one (greenserve serve) or pass another --server"
        ) from None
    except ServingError:
        return  # it has answered: there is no model without a name


def _row(city: city_config.City, street: StreetNetwork, tl: str, model: pb.PolicyContract) -> Row:
    number, dialect = str(model.origin.model_number), model.observation.dialect or "-"
    try:
        check_contracts_match_city(city, {tl: model})
        check_contract_matches_network(model, street)
        for expected in model.signals:
            states = [phase.state for phase in expected.phases]
            check_phases(f"{tl}: signal {expected.id}", street.signals[expected.id], expected.program_id, states)
    except InputError as error:
        return tl, number, dialect, str(error)
    return tl, number, dialect, MATCHES


def _contract(city: city_config.City, tl: str, server: str | None, version: int | None) -> pb.PolicyContract:
    """The contract of a TL's model, served or on disk. Raises InputError, ContractError."""
    if server is not None:
        try:
            with Client(server) as client:
                return fetch_contracts(client, [tl], version, city.serving.fleet)[tl]
        except ValueError as error:
            raise InputError(f"--server {error}") from None
    folder = city.serving.models_dir / tl
    versions = model_folders.versions(folder)
    if version is None and not versions:
        raise InputError(f"{folder}: holds no version; export it (greenserve export --tl {tl})")
    if version is not None and version not in versions:
        raise InputError(f"{folder}: holds no version {version}; it holds {', '.join(map(str, versions)) or 'none'}")
    return from_saved_model(folder / str(max(versions) if version is None else version))


if __name__ == "__main__":
    sys.exit(main())
