"""`python -m export fleet NAME --tl all`: one SavedModel from exported models, so that one Predict serves many TLs.

Without NAME: the fleet of city.toml, or that of each of its districts.
"""

import argparse
import datetime
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf
from tqdm import tqdm

from city import config as city_config
from city import model_folders, names, program
from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.version import VERSION
from export import config, quiet, single_model
from export.fleets import fleet_graph
from export.fleets.fleet_graph import FleetActor, Group
from export.saved_model import manifest, meta_graph, publish, read, verify, warmup
from protos import policy_pb2 as pb
from serving.contract import ACTION, CATEGORICAL, FLEET, ContractError, check_fleet, from_saved_model

T = TypeVar("T")


@dataclass(frozen=True)
class FleetJob:
    """Resolved settings of a call."""

    name: str
    tls: tuple[str, ...]
    models_dir: Path
    number: int | None
    """Version of the fleet. None: one more than the newest."""
    overwrite: bool
    keep: int | None
    skip_existing: bool = False
    """Leave the newest version as it is if it holds the newest versions of the TLs."""


INTERRUPTED = "interrupted; the fleets published before are complete, and no draft remains"


def main(argv: list[str], prog: str = "python -m export fleet") -> int:
    """Build fleets; the exit code: 0, 1 if the verification of one fails, 2 if the input is wrong."""

    def build() -> int:
        quiet.first_session()
        for job in prepare(parse(argv, prog)):
            try:
                print(export(job), flush=True)
            except (verify.ParityError, verify.NotInferenceOnly) as error:
                raise ProgramFailed(f"{job.name}: not published: {error}") from None
        return 0

    return program.run(build, lambda: INTERRUPTED)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Build one SavedModel from exported models, so that one Predict serves many TLs.")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the fleet's name (default: that of city.toml, or of each district)"
    )
    parser.add_argument(
        "--tl", action="append", metavar="TL", help="a TL, several with commas, or all; may be repeated; required with NAME"
    )
    parser.add_argument("--city", type=Path, metavar="FILE", help="the city's description (default: ./city.toml, if it exists)")
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="folder of the models (default: [serving] models_dir)")
    parser.add_argument("--model-number", type=int, metavar="N", help="version of the fleet (default: one more than the newest)")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace a version that exists")
    existing.add_argument(
        "--skip-existing", action="store_true", help="leave the newest version if it holds the newest versions of the TLs"
    )
    parser.add_argument("--keep", type=int, metavar="N", help="versions of the fleet to keep, the newest (default: all)")
    return parser


def parse(argv: list[str], prog: str = "python -m export fleet") -> argparse.Namespace:
    """Read the command line; no file is looked at. Raises InputError."""
    args = parser(prog).parse_args(argv)
    config.check_versions(args)
    if args.name is None and args.model_number is not None:
        raise InputError("--model-number is for one fleet; pass its NAME too, or leave it out")
    if args.name is not None and not args.tl:
        raise InputError("--tl is missing; pass the fleet's TLs, or --tl all")
    return args


def prepare(args: argparse.Namespace) -> list[FleetJob]:
    """Read city.toml and list the exported TLs. Raises InputError."""
    city = city_config.load(args.city or Path("city.toml")) if args.city or Path("city.toml").is_file() else None
    if args.name is not None:
        return [_job(args, city, args.name, args.tl)]
    if city is None:
        raise InputError("there is no city.toml to name the fleets; pass NAME, or --city FILE")
    tls = names.select(args.tl or ["all"], list(city.tls), "--tl")
    districts = city.serving.districts
    selected = set(tls)
    fleets = {district.fleet: [tl for tl in district.tls if tl in selected] for district in districts.values()}
    fleets = fleets or ({city.serving.fleet: tls} if city.serving.fleet else {})
    if not fleets:
        print(f"{city.path}: [serving] fleet is empty, so there is no fleet to build")
    return [_job(args, city, name, own) for name, own in fleets.items() if own]


def _job(args: argparse.Namespace, city: city_config.City | None, name: str, tl_values: Sequence[str]) -> FleetJob:
    models_dir = args.models_dir or (city.serving.models_dir if city else Path("models"))
    name = names.canonical(name)
    if city is not None and names.find(name, city.tls):
        raise InputError(f"fleet {name}: {city.path} has a TL of that name; choose another name for the fleet")
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export the TLs first, or pass their folder with --models-dir")
    exported = _exported(models_dir)
    if name in exported:
        raise InputError(f"fleet {name}: {models_dir / name} is a TL's model; choose another name for the fleet")
    if not exported:
        raise InputError(f"{models_dir}: holds no TL's model; export the TLs first (greenserve export --tl all)")
    known = [tl for tl in exported if tl != name and (city is None or not city.tls or tl in city.tls)]
    requested = [word.strip() for value in tl_values for word in value.split(",")]
    by_key = names.by_key(known)
    missing = [names.canonical(word) for word in requested if word not in ("", "all") and names.key(word) not in by_key]
    if missing:
        raise InputError(f"{missing[0]} has no model under {models_dir}; export it first (greenserve export --tl {missing[0]})")
    tls = tuple(names.select(tl_values, known, "--tl"))
    return FleetJob(name, tls, models_dir, args.model_number, args.overwrite, args.keep, args.skip_existing)


def _exported(models_dir: Path) -> list[str]:
    """The TLs that have a version, without fleets."""
    tls = []
    for home in model_folders.subfolders(models_dir):
        if not (versions := model_folders.versions(home)):
            continue
        path = versions[max(versions)] / "assets.extra" / manifest.FILE_NAME
        try:
            is_fleet = json.loads(path.read_text(encoding="utf-8")).get("source", {}).get("format") == FLEET
        except (OSError, ValueError, AttributeError):
            is_fleet = False  # export() reads its contract
        if not is_fleet:
            tls.append(home.name)
    return tls


def export(job: FleetJob) -> str:
    """Stack, write, verify and publish a fleet; return a one-line summary. Raises InputError, ParityError, NotInferenceOnly."""
    begin = time.perf_counter()
    home = job.models_dir / job.name
    existing = list(model_folders.versions(home))
    number = job.number if job.number is not None else (existing[-1] + 1 if existing else 1)
    if number >= single_model.MAX_MODEL_NUMBER:
        raise InputError(f"fleet {job.name}: number {number} is too large for a version; pass a smaller --model-number")
    single_models = {tl: _newest(job.models_dir / tl) for tl in job.tls}
    if job.skip_existing and existing and _holds(home / str(existing[-1]), single_models):
        return f"{job.name}: version {existing[-1]} holds the newest versions of its {len(job.tls)} TLs; left as it is"
    publish.check_version_absent(job.models_dir, job.name, number, job.overwrite)
    contracts, members = {}, []
    for tl, folder in _bar(single_models.items(), "read"):
        contract, actor = read.read(folder)
        if contract.members:
            raise InputError(f"{folder}: is a fleet; a fleet contains single TLs' models only")
        if contract.tl != tl:
            raise InputError(f"{folder}: its contract names {contract.tl}, not {tl}; export {tl} again")
        contracts[tl] = contract
        members.append(FleetActor(tl, actor, contract.action.kind == CATEGORICAL))
    groups = fleet_graph.group_members(members)
    contract = _contract(job.name, number, groups, contracts, single_models)
    with publish.new_version(job.models_dir, job.name, number, job.overwrite, job.keep) as draft:
        size = contract.observation.size
        template = meta_graph.assemble(size, lambda x, v: {ACTION: fleet_graph.build(groups, x, v)})
        weights = fleet_graph.weights(groups)
        meta_graph.write(draft, template, contract, weights)
        warmup.write(draft, contract, number)
        parity = verify.compare_with_single_models(draft, contract, single_models, lambda members: _bar(members, "verify"))
        operations = verify.count_operations(draft)
        results = manifest.Verification(
            operations, verify.PARITY_OBSERVATIONS, parity, "the single models, each loaded separately"
        )
        manifest.write_fleet(draft, contract, single_models, _groups_in_manifest(groups), results)
    stacked = sum(len(group.members) for group in groups if group.stacked)
    return (
        f"{job.name}: {len(members)} TLs -> {job.models_dir / job.name / str(number)} "
        f"({len(groups)} group{'' if len(groups) == 1 else 's'}, {stacked} TLs stacked, "
        f"{contract.observation.size} numbers in, {contract.action.size} out), largest difference from single models "
        f"{parity.difference:.1e}, {time.perf_counter() - begin:.1f} s"
    )


def _holds(version: Path, single_models: Mapping[str, Path]) -> bool:
    """Whether a fleet was built from exactly these models."""
    try:
        members = {member.tl: member for member in from_saved_model(version).members}
        own = {tl: from_saved_model(folder) for tl, folder in single_models.items()}
    except ContractError:
        return False  # it is built again, and the error is raised then if it is a TL's
    return members.keys() == own.keys() and all(
        members[tl].version == int(single_models[tl].name) and members[tl].contract.origin == contract.origin
        for tl, contract in own.items()
    )


def _newest(home: Path) -> Path:
    return home / str(max(model_folders.versions(home)))


def _contract(
    name: str, number: int, groups: Sequence[Group], contracts: Mapping[str, pb.PolicyContract], single_models: Mapping[str, Path]
) -> pb.PolicyContract:
    """The fleet's contract: every TL's columns and contract, in the order of the groups."""
    members: list[pb.Member] = []
    observation = action = 0
    for member in (member for group in groups for member in group.members):
        members.append(
            pb.Member(
                tl=member.tl,
                version=int(single_models[member.tl].name),
                observation_begin=observation,
                observation_size=member.actor.inputs,
                action_begin=action,
                action_size=member.columns,
                contract=contracts[member.tl],
            )
        )
        observation += member.actor.inputs
        action += member.columns
    digest = hashlib.sha256()
    for entry in members:
        digest.update(bytes.fromhex(entry.contract.origin.sha256))
    origin = pb.Origin(
        source_format=FLEET,
        file_name=f"{len(members)} TLs",
        sha256=digest.hexdigest(),
        model_number=number,
        exporter_version=VERSION,
        tensorflow_version=tf.__version__,
        exported_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    contract = pb.PolicyContract(
        tl=name,
        observation=pb.Observation(size=observation),
        action=pb.Action(kind=FLEET, size=action),
        origin=origin,
        members=members,
    )
    try:
        check_fleet(contract)
    except ContractError as error:
        raise InputError(str(error)) from None
    return contract


def _groups_in_manifest(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [
        {"tls": [member.tl for member in group.members], "widths": group.members[0].actor.widths, "stacked": group.stacked}
        for group in groups
    ]


def _bar(items: Iterable[T], label: str) -> Iterable[T]:
    bar: Iterable[T] = tqdm(items, desc=label, unit="TL", disable=not sys.stderr.isatty(), leave=False)
    return bar
