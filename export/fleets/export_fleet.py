"""`python -m export fleet NAME --tl all`: one SavedModel from exported models, so that one Predict serves many TLs.

Without NAME: the fleet of city.toml, or that of each of its districts.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from city import config as city_config
from city import model_folders, names, program
from city.arguments import CITY_FILE, Parser
from city.errors import InputError, ProgramFailed, errors_about
from export import config, quiet, single_model
from export.checkpoints import regular_files
from export.fleets import fleet_graph
from export.fleets.fleet_graph import FleetActor, Group
from export.saved_model import manifest, publish, read, sign, verify, write
from protos import policy_pb2 as pb
from serving import signed_models
from serving.contract import CATEGORICAL, FLEET, ContractError, check_fleet, from_saved_model

T = TypeVar("T")

INTERRUPTED = "interrupted; the fleets published before are complete, and no draft remains"


def main(argv: list[str], prog: str = "python -m export fleet") -> int:
    """Build fleets and return the exit code: 0, 1 if the verification of one fails, 2 if the input is wrong."""

    def build() -> int:
        quiet.first_session()
        args = parse(argv, prog)
        models_dir, fleets = prepare(args)
        signer = sign.signer(args)
        for name, tls in fleets.items():
            try:
                print(export(args, models_dir, name, tls, signer), flush=True)
            except (verify.ParityError, verify.NotInferenceOnly) as error:
                raise ProgramFailed(f"{name}: not published: {error}") from None
        return 0

    return program.run(build, lambda: INTERRUPTED)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog, description="Build one SavedModel from exported models, so that one Predict serves many TLs."
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the fleet's name (default: that of city.toml, or of each district)"
    )
    parser.add_argument(
        "--tl",
        action="append",
        metavar="TL",
        help="a TL, several with commas, or all; may be repeated; required with NAME",
    )
    parser.add_city(is_optional=True)
    parser.add_argument(
        "--models-dir", type=Path, metavar="DIR", help="folder of the models (default: [serving] models_dir)"
    )
    parser.add_argument(
        "--model-number", type=int, metavar="N", help="version of the fleet (default: one more than the newest)"
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace a version that exists")
    existing.add_argument(
        "--skip-existing",
        action="store_true",
        help="leave the newest version if it holds the newest versions of the TLs",
    )
    parser.add_argument(
        "--keep", type=int, metavar="N", help="versions of the fleet to keep, the newest (default: all)"
    )
    sign.add_flags(parser)
    return parser


def parse(argv: list[str], prog: str = "python -m export fleet") -> argparse.Namespace:
    """Parse and check the command line; read no files. Raises InputError."""
    args = parser(prog).parse_args(argv)
    config.check_versions(args)
    if args.name is None and args.model_number is not None:
        raise InputError("--model-number is for one fleet; pass its NAME too, or leave it out")
    if args.name is not None and not args.tl:
        raise InputError("--tl is missing; pass the fleet's TLs, or --tl all")
    return args


def prepare(args: argparse.Namespace) -> tuple[Path, dict[str, list[str]]]:
    """Read city.toml and list the exported TLs: the folder of models, and the TLs by fleet. Raises InputError."""
    city = city_config.load(args.city or CITY_FILE) if args.city or CITY_FILE.is_file() else None
    models_dir = args.models_dir or (city.serving.models_dir if city else Path("models"))
    if args.name is not None:
        requested = {args.name: args.tl}
    elif city is None:
        raise InputError("the fleet has no name, and there is no city.toml here; pass NAME, or --city FILE")
    else:
        tls = names.select(args.tl or ["all"], list(city.tls), "--tl", city.tl_of_signal)
        if city.serving.districts:
            districts = city.serving.districts.values()
            requested = {each.fleet: own for each in districts if (own := [tl for tl in each.tls if tl in tls])}
        elif city.serving.fleet:
            requested = {city.serving.fleet: tls}
        else:
            print(f"{city.path}: [serving] fleet is empty, so there is no fleet to build")
            return models_dir, {}
    fleets = {names.canonical(name): values for name, values in requested.items()}
    return models_dir, {name: _tls(city, models_dir, name, values) for name, values in fleets.items()}


def _tls(city: city_config.City | None, models_dir: Path, name: str, tl_values: Sequence[str]) -> list[str]:
    """The TLs of a fleet; `tl_values`: as --tl has them. Raises InputError."""
    if city is not None and names.Index(city.tls).find(name):
        raise InputError(f"fleet {name}: {city.path} has a TL of that name; choose another name for the fleet")
    exported = _exported_tls(models_dir)
    if name in exported:
        raise InputError(f"fleet {name}: {models_dir / name} is a TL's model; choose another name for the fleet")
    available = [tl for tl in exported if city is None or not city.tls or tl in city.tls]
    index = names.Index(available)
    for requested in config.split_commas(tl_values):
        if requested != "all" and index.find(requested) is None:
            tl = names.canonical(requested)
            raise InputError(f"{tl} has no model under {models_dir}; export it first (greenserve export --tl {tl})")
    return names.select(tl_values, available, "--tl")


def _exported_tls(models_dir: Path) -> list[str]:
    """The TLs that have a version, without fleets. Raises InputError if there is none."""
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export the TLs first, or pass their folder with --models-dir")
    tls = []
    for home in model_folders.subfolders(models_dir):
        versions = model_folders.versions(home)
        if versions and not _is_fleet(versions[max(versions)]):
            tls.append(home.name)
    if not tls:
        raise InputError(f"{models_dir}: holds no TL's model; export the TLs first (greenserve export --tl all)")
    return tls


def _is_fleet(version: Path) -> bool:
    try:
        regular_files.check_folder(version)
    except InputError:
        return False  # export() checks the files again, and its error names the TL
    try:
        return bool(from_saved_model(version).members)
    except ContractError:
        return False  # export() reads the contract again, and its error names the TL


def export(
    args: argparse.Namespace, models_dir: Path, name: str, tls: Sequence[str], signer: sign.Signer | None
) -> str:
    """Stack, write, verify and publish a fleet; return a one-line summary.

    Args:
        args: the flags.
        models_dir: the folder of models.
        name: the fleet's.
        tls: its TLs.
        signer: signs it, and has signed the TLs' models.

    Raises:
        InputError: a model is missing or damaged, or the version exists.
        ParityError, NotInferenceOnly: the written fleet fails its verification.
    """
    begin = time.perf_counter()
    home = models_dir / name
    newest = max(model_folders.versions(home), default=None)
    number = args.model_number if args.model_number is not None else (newest or 0) + 1
    if number >= single_model.MAX_MODEL_NUMBER:
        raise InputError(f"fleet {name}: number {number} is too large for a version; pass a smaller --model-number")
    versions = {tl: model_folders.versions(models_dir / tl) for tl in tls}
    single_models = {tl: own[max(own)] for tl, own in versions.items()}
    for folder in single_models.values():
        regular_files.check_folder(folder)
    if args.skip_existing and newest is not None and _is_built_from(home / str(newest), single_models):
        return f"{name}: version {newest} holds the newest versions of its {len(tls)} TLs; left as it is"
    publish.check_version_absent(models_dir, name, number, args.overwrite)
    if signer is not None:
        for tl, folder in single_models.items():
            signed_models.verify(folder, tl, int(folder.name), signer.signers)
    contracts, members = _read_members(single_models)
    groups = fleet_graph.group_members(members)
    contract = _contract(name, number, groups, contracts, single_models)
    inputs, outputs = contract.observation.size, contract.action.size
    with publish.new_version(models_dir, name, number, args.overwrite, args.keep) as draft:
        template = write.assemble(inputs, lambda x, v: fleet_graph.build(groups, x, v))
        write.write_model(draft, template, contract, fleet_graph.weights(groups))
        results = verify.compare_with_single_models(draft, contract, single_models, _bar(contract.members, "verify"))
        recorded_groups = [
            {
                "tls": [member.tl for member in group.members],
                "widths": group.members[0].actor.widths,
                "stacked": group.stacked,
            }
            for group in groups
        ]
        manifest.write_fleet(draft, contract, single_models, recorded_groups, results)
        if signer is not None:
            signer.sign(draft, name, number)
    stacked = sum(len(group.members) for group in groups if group.stacked)
    return (
        f"{name}: {len(members)} TLs -> {home / str(number)} "
        f"({len(groups)} group{'' if len(groups) == 1 else 's'}, {stacked} TLs stacked, "
        f"{inputs} inputs, {outputs} outputs), largest difference from single models "
        f"{results.difference:.1e}, {time.perf_counter() - begin:.1f} s"
    )


def _is_built_from(version: Path, single_models: Mapping[str, Path]) -> bool:
    try:
        regular_files.check_folder(version)
        members = {member.tl: member for member in read.contract_of(read.meta_graph(version)).members}
        contracts = {tl: from_saved_model(folder) for tl, folder in single_models.items()}
    except (ContractError, InputError):
        return False  # if it is a TL's, building the fleet raises it again
    return members.keys() == contracts.keys() and all(
        members[tl].version == int(single_models[tl].name) and members[tl].contract.origin == contract.origin
        for tl, contract in contracts.items()
    )


def _read_members(single_models: Mapping[str, Path]) -> tuple[dict[str, pb.PolicyContract], list[FleetActor]]:
    contracts, members = {}, []
    known: read.Arrays = {}
    for tl, folder in _bar(single_models.items(), "read"):
        with errors_about(folder):
            contract, actor = read.read(folder, known)
            if contract.members:
                raise InputError("is a fleet; a fleet contains single TLs' models only; pass these with --tl")
            if contract.tl != tl:
                raise InputError(f"its contract names {contract.tl}, not {tl}; export {tl} again")
        contracts[tl] = contract
        members.append(FleetActor(tl, actor, contract.action.kind == CATEGORICAL))
    return contracts, members


def _contract(
    name: str,
    number: int,
    groups: Sequence[Group],
    contracts: Mapping[str, pb.PolicyContract],
    single_models: Mapping[str, Path],
) -> pb.PolicyContract:
    """The fleet's contract: every TL's columns and contract, in the order of the groups."""
    members: list[pb.Member] = []
    inputs = outputs = scores = 0
    for member in (member for group in groups for member in group.members):
        members.append(
            pb.Member(
                tl=member.tl,
                version=int(single_models[member.tl].name),
                observation_begin=inputs,
                observation_size=member.actor.inputs,
                action_begin=outputs,
                action_size=member.columns,
                contract=contracts[member.tl],
                score_begin=scores if member.categorical else 0,
                score_size=member.score_columns,
            )
        )
        inputs += member.actor.inputs
        outputs += member.columns
        scores += member.score_columns
    sha256s = [member.contract.origin.sha256 for member in members]
    contract = pb.PolicyContract(
        tl=name,
        observation=pb.Observation(size=inputs),
        action=pb.Action(kind=FLEET, size=outputs),
        origin=manifest.origin(FLEET, f"{len(members)} TLs", sha256s, number),
        members=members,
    )
    try:
        check_fleet(contract)
    except ContractError as error:
        raise InputError(str(error)) from None
    return contract


def _bar(items: Iterable[T], label: str) -> Iterable[T]:
    bar: Iterable[T] = tqdm(items, desc=label, unit="TL", disable=not sys.stderr.isatty(), leave=False)
    return bar
