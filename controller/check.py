"""`greenserve check`: compare every TL's contract with the network, without running anything."""

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from city import config as city_config
from city import model_folders, names, network, program, text_table
from city.arguments import Parser
from city.config import City
from city.errors import InputError
from city.ledger_file import FILE as LEDGER
from city.ledger_file import LedgerFile
from city.network import StreetNetwork
from controller import ledger_check, model_settings
from controller.model_settings import ModelSettings
from controller.policies.served_contracts import ContractSource
from controller.sumo.network import check_contract_matches_network, check_contracts_match_city
from protos import policy_pb2 as pb
from serving.client import Client, Version, tls_files
from serving.contract import ACTION, INPUT, ContractError, from_saved_model
from serving.errors import DeadlineExceeded, ServingError, Unavailable
from signals import dialects, varied_observations
from signals.change_times import (
    change_times,
    describe_longer,
    describe_other_changes,
    describe_short_reds,
    signal_safeties,
    times_to_train_with,
    times_without_model,
)
from signals.contract import build, controllable, max_red_notes
from signals.dialects import street as street_dialect
from signals.movement_names import MovementNames
from signals.movement_names import of_city as names_of_city
from signals.policy_signals import PolicySignal, describe_programs, of_contract, of_tl
from signals.safety.signal_safety import SignalSafety

MANIFEST = Path("assets.extra") / "export.json"
ONLY_ACTION_TIMEOUT_S = 10.0
MATCHES, LEFT_OUT = "matches", "left on its own program"
SERVER_HELP = (
    "read contracts from this model server (default: the district's server, else the folder [serving] models_dir)"
)
Row = tuple[str, str, str, str]
"""(TL, version, dialect, "matches", a difference, or why the TL is left on its own program)."""


def main(argv: list[str] | None = None, prog: str = "python -m controller.check") -> int:
    """Print the table. Exit code: 0 if every TL matches; 2 if one does not, or the input is wrong."""
    return program.run(lambda: _check(parser(prog).parse_args(argv)))


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Compare every TL's policy contract with the network, and its model with the ledger, without "
        "running anything.",
    )
    parser.add_city()
    parser.add_argument(
        "--infer-tl", action="append", metavar="TL", help="TLs to check, separated by commas or repeated (default: all)"
    )
    model_settings.add_flags(parser, SERVER_HELP)
    parser.add_argument(
        "--ledger", type=Path, metavar="FILE",
        help=f"compare the served or stored models with this ledger too (default: {LEDGER} beside the city's "
        "description, if it exists)",
    )  # fmt: skip
    parser.add_argument("--greens", action="store_true", help="also print each TL's greens, by their movements")
    parser.add_argument("--strict", action="store_true", help="fail if a TL must be left on its own program")
    return parser


def _check(args: argparse.Namespace) -> int:
    """Compare and print; return the exit code. Raises InputError."""
    _check_flags(args)
    city = city_config.load(args.city)
    if not city.tls:
        raise InputError(f"{args.city}: describes no TL; add tables such as [tl.SA101]")
    dialects.check_city_settings(city)
    city, own_tls = model_settings.in_district(city, args.district, is_required=False)
    models = model_settings.read(args, city)
    street = network.of_city(city)
    movement_names = names_of_city(city, street)
    tls = names.select(args.infer_tl or ["all"], list(own_tls), "--infer-tl", city.tl_of_signal)
    stable: ContractSource | None = None
    with contextlib.ExitStack() as closing:
        contract_of: Callable[[str], pb.PolicyContract] = functools.partial(_stored, city, street, models.version)
        only_action_of: Callable[[pb.PolicyContract], str] = functools.partial(_stored_only_action, city)
        if _uses_server(args):
            client = closing.enter_context(_client(models))
            served = ContractSource(client, models.version, models.fleet)
            contract_of = served.contract
            stable = ContractSource(client, ledger_check.STABLE, models.fleet)
            only_action_of = functools.partial(_served_only_action, client, models.version, served, movement_names)
        rows, advice, chosen = _compare(city, street, tls, contract_of, only_action_of, args.strict)
        ledger = LedgerFile(args.ledger or city.path.parent / LEDGER)
        if args.ledger is not None and not ledger.lines:
            raise InputError(f"--ledger {args.ledger}: there is no ledger; leave --ledger out, or pass another one")
        others = ledger_check.differences(ledger, tls, stable, city.serving.models_dir)
    width = text_table.terminal_width()
    print(text_table.render(("TL", "VERSION", "DIALECT", "CONTRACT"), rows, width))
    matches = sum(row[3] == MATCHES for row in rows)
    print(f"{matches} of {len(rows)} TLs match the network {street.net_file}")
    if args.greens and (greens := _greens(chosen, movement_names)):
        print(text_table.render(("TL", "SIGNAL", "GREEN", "STATE", "MOVEMENTS"), greens, width))
    for line in filter(None, [*(f"{tl}: {reason}" for tl, reason in others.items()), *advice]):
        print(text_table.wrapped(line, width))
    left_out = sum(row[3].startswith(LEFT_OUT) for row in rows)
    return program.WRONG_INPUT if others or matches + left_out < len(rows) else 0


def _compare(
    city: City,
    street: StreetNetwork,
    tls: Iterable[str],
    contract_of: Callable[[str], pb.PolicyContract],
    only_action_of: Callable[[pb.PolicyContract], str],
    is_strict: bool,
) -> tuple[list[Row], list[str], list[tuple[str, list[PolicySignal]]]]:
    """Compare the TLs: (a row per TL, lines about programs, change times and policies that never react, the signals of
    those that match or have no model yet).

    Args:
        city: describes the TLs.
        street: the network.
        tls: the TLs.
        contract_of: the contract of a TL's model; raises InputError, ContractError.
        only_action_of: the only action of a contract's model, or "".
        is_strict: True if no TL may be left out.
    """
    rows: list[Row] = []
    never_react: list[str] = []
    without_model: list[str] = []
    unexported: list[tuple[str, list[PolicySignal]]] = []
    chosen: list[tuple[str, list[PolicySignal]]] = []
    with_safeties: list[tuple[pb.PolicyContract, list[SignalSafety]]] = []
    for tl in tls:
        dialect = city.tls[tl].dialect
        try:
            _, left_out = controllable(city, [tl], street)
            if left_out:
                rows.append((tl, "-", dialect, left_out[tl] if is_strict else f"{LEFT_OUT}: {left_out[tl]}"))
                continue
            contract = contract_of(tl)
        except (InputError, ContractError) as error:
            rows.append((tl, "-", dialect, str(error)))
            without_model.append(tl)
            with contextlib.suppress(InputError):  # its row says why
                unexported.append((tl, of_tl(city.tls[tl], network.signals_of(city, city.tls[tl], street))))
            continue
        row = _row(city, street, tl, contract)
        rows.append(row)
        if row[3] == MATCHES:
            chosen.append((tl, of_contract(contract, street)))
            with_safeties.append((contract, signal_safeties(contract, street, city.safety)))
            if action := only_action_of(contract):
                never_react.append(f"{tl}: {varied_observations.warning(action)}")
    times = [change_times(contract, safeties) for contract, safeties in with_safeties]
    to_train_with = times_to_train_with([*times, *times_without_model(city, street, without_model)])
    changes = [
        *describe_longer(times),
        *describe_other_changes(with_safeties),
        *describe_short_reds(with_safeties),
    ]
    programs = describe_programs(chosen)
    chosen += unexported
    return rows, [*programs, *max_red_notes(city, chosen), *changes, *to_train_with, *never_react], chosen


def _greens(
    chosen: Iterable[tuple[str, Sequence[PolicySignal]]], movement_names: Mapping[str, MovementNames]
) -> list[Sequence[str]]:
    """(TL, signal, number, state, movements) of each green."""
    return [
        (tl, signal.id, str(k), green, name)
        for tl, signals in chosen
        for signal in signals
        for k, (green, name) in enumerate(
            zip(signal.greens, movement_names[signal.id].of_states(signal.greens), strict=True)
        )
    ]


def _uses_server(args: argparse.Namespace) -> bool:
    """True if contracts are read from a model server, not from the models' folder."""
    return args.server is not None or args.district is not None


def _check_flags(args: argparse.Namespace) -> None:
    model_settings.check_version(args)
    of_server = [name for name in ("fleet", "version_label", *tls_files.FLAGS) if getattr(args, name) is not None]
    if of_server and not _uses_server(args):
        raise InputError(f"--{of_server[0].replace('_', '-')} is for a model server; pass --server or --district too")


@contextlib.contextmanager
def _client(models: ModelSettings) -> Iterator[Client]:
    """A client of the model server. Raises InputError if no model server answers."""
    with Client(models.server, tls=None if models.tls_files is None else models.tls_files.read()) as client:
        try:
            client.status("")
        except (Unavailable, DeadlineExceeded) as error:
            remedy = (
                "pass another --server"
                if models.tls_files is None
                else "pass another --server, or check the TLS settings"
            )
            raise InputError(
                f"no model server answers at {client.address} ({error}); start one (greenserve serve) or {remedy}"
            ) from None
        except ServingError:
            pass  # it has answered: there is no model without a name
        yield client


def _row(city: City, street: StreetNetwork, tl: str, contract: pb.PolicyContract) -> Row:
    number, dialect = str(contract.origin.model_number), contract.observation.dialect or "-"
    try:
        check_contracts_match_city(city, {tl: contract})
        check_contract_matches_network(contract, street)
    except InputError as error:
        return tl, number, dialect, str(error)
    return tl, number, dialect, MATCHES


def _stored(city: City, street: StreetNetwork, version: Version, tl: str) -> pb.PolicyContract:
    """The contract of a TL's model on disk. Raises InputError, ContractError."""
    assert not isinstance(version, str), "a label is for a server"
    folder = city.serving.models_dir / tl
    versions = model_folders.versions(folder)
    if version is None and not versions:
        raise InputError(_no_model(city, street, tl, folder))
    if version is not None and version not in versions:
        raise InputError(f"{folder}: holds no version {version}; it holds {', '.join(map(str, versions)) or 'none'}")
    return from_saved_model(folder / str(max(versions) if version is None else version))


def _stored_only_action(city: City, contract: pb.PolicyContract) -> str:
    """The only action of a model on disk, as its export has found it; "" if it gives several."""
    version = city.serving.models_dir / contract.tl / str(contract.origin.model_number)
    try:
        return str(json.loads((version / MANIFEST).read_text(encoding="utf-8"))["parity"].get("only_action", ""))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""  # a model without a manifest is served all the same


def _served_only_action(
    client: Client,
    version: Version,
    served: ContractSource,
    movement_names: Mapping[str, MovementNames],
    contract: pb.PolicyContract,
) -> str:
    """The only action of a TL's own model on a server; "" if it gives several, or is in a fleet alone."""
    if contract.tl in served.in_fleet or contract.observation.dialect == street_dialect.DIALECT.name:
        return ""  # its export has compared them: many rows of a fleet are too large, rules wait for other values
    inputs = {INPUT: varied_observations.varied(contract)}
    try:
        outputs = client.run(contract.tl, inputs, outputs=(ACTION,), version=version, timeout_s=ONLY_ACTION_TIMEOUT_S)
    except ServingError:
        return ""
    return varied_observations.only_action(contract, outputs[ACTION], movement_names)


def _no_model(city: City, street: StreetNetwork, tl: str, folder: Path) -> str:
    """The remedy for a TL without a model; for dialect street, with what the shipped policy fits. Raises
    InputError."""
    if city.tls[tl].dialect != street_dialect.DIALECT.name:
        return f"{folder}: holds no version; export it (greenserve export --tl {tl})"
    built = build(city, city.tls[tl], street)
    (signal,) = built.signals
    lanes = sum(not approach.walking_areas for approach in signal.approaches)
    return (
        f"no model yet; the shipped policy fits its {built.action.size} greens and {lanes} lanes: "
        f"greenserve export --pretrained --tl {tl}"
    )


if __name__ == "__main__":
    sys.exit(main())
