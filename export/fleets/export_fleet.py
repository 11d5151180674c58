"""`python -m export fleet NAME --tl all`: one SavedModel out of exported models, so that one Predict answers for all."""

import datetime
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from city import config as city_config
from city import names
from city.arguments import Parser
from city.errors import InputError, path_errors_as_input_errors
from city.version import VERSION
from export import quiet, single_model
from export.fleets import fleet_graph
from export.fleets.fleet_graph import Group, Member
from export.saved_model import manifest, meta_graph, publish, read, verify, warmup
from protos import policy_pb2 as pb
from serving.contract import ACTION, CATEGORICAL, FLEET, INPUT, SIGNATURE, ContractError, check_fleet

TOLERANCE = 1e-6
"""Largest difference between a fleet's answers and the single models'."""


@dataclass(frozen=True)
class FleetJob:
    name: str
    tls: tuple[str, ...]
    models_dir: Path
    number: int | None
    """Version of the fleet. None: one more than the newest."""
    overwrite: bool
    keep: int | None


def main(argv: list[str], prog: str = "python -m export fleet") -> int:
    """Exit code 0; 1 where the fleet did not answer like its models. Raises InputError."""
    quiet.first_session()
    job = parse(argv, prog)
    try:
        print(export(job))
    except (verify.ParityError, manifest.NotInferenceOnly) as error:
        print(f"error: {job.name}: not published: {error}", file=sys.stderr)
        return 1
    return 0


@path_errors_as_input_errors()
def parse(argv: list[str], prog: str = "python -m export fleet") -> FleetJob:
    parser = Parser(
        prog=prog, description="Build one SavedModel out of exported models: one Predict answers for all."
    )
    parser.add_argument("name", metavar="NAME", help="the fleet's name, such as city")
    parser.add_argument(
        "--tl", action="append", required=True, metavar="TL", help="a TL, several with commas, or all; may be repeated"
    )
    parser.add_argument("--city", type=Path, help="city.toml (default: ./city.toml, where there is one)")
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="where the models are (default: [serving] models_dir)")
    parser.add_argument("--model-number", type=int, metavar="N", help="version of the fleet (default: one more than the newest)")
    parser.add_argument("--overwrite", action="store_true", help="replace a version that exists")
    parser.add_argument("--keep", type=int, metavar="N", help="versions of the fleet to keep, the newest (default: all)")
    args = parser.parse_args(argv)
    city = city_config.load(args.city or Path("city.toml")) if args.city or Path("city.toml").is_file() else None
    models_dir = args.models_dir or (city.serving.models_dir if city else Path("models"))
    if args.model_number is not None and not 0 <= args.model_number < 1 << 63:
        raise InputError(f"--model-number {args.model_number} must be a version, such as 3")
    if args.keep is not None and args.keep < 1:
        raise InputError(f"--keep {args.keep} must be 1 at least: the newest version is never removed")
    name = names.canonical(args.name)
    if city is not None and name in city.tls:
        raise InputError(f"fleet {name}: there is a TL of that name in {city.path}; name the fleet otherwise")
    if not models_dir.is_dir():
        raise InputError(f"{models_dir}: no such folder; export the TLs first, or name their folder with --models-dir")
    exported = _exported(models_dir)
    if name in exported:
        raise InputError(f"fleet {name}: {models_dir / name} is a TL's model; name the fleet otherwise")
    known = [tl for tl in exported if tl != name and (city is None or not city.tls or tl in city.tls)]
    asked = [word.strip() for value in args.tl for word in value.split(",")]
    missing = [tl for tl in map(names.canonical, filter(lambda w: w not in ("", "all"), asked)) if tl not in known]
    if missing:
        raise InputError(f"{missing[0]} has no model under {models_dir}; export it first (python -m export --tl {missing[0]})")
    return FleetJob(name, tuple(names.select(args.tl, known, "--tl")), models_dir, args.model_number, args.overwrite, args.keep)


def _exported(models_dir: Path) -> list[str]:
    """The TLs that have a version, fleets aside."""
    found = []
    for home in sorted(models_dir.iterdir()):
        if home.name.startswith(".") or not home.is_dir() or not (numbers := publish.versions(home)):
            continue
        extra = home / str(numbers[-1]) / "assets.extra" / manifest.FILE_NAME
        try:
            is_fleet = json.loads(extra.read_text(encoding="utf-8")).get("source", {}).get("format") == FLEET
        except (OSError, ValueError, AttributeError):
            is_fleet = False  # read for its contract below, if it is asked for
        if not is_fleet:
            found.append(home.name)
    return found


def export(job: FleetJob) -> str:
    """Stack, write, prove and publish; a line that says what was done. Raises InputError, ParityError."""
    begin = time.perf_counter()
    home = job.models_dir / job.name
    existing = publish.versions(home) if home.is_dir() else []
    number = job.number if job.number is not None else (existing[-1] + 1 if existing else 1)
    if number >= single_model.MAX_MODEL_NUMBER:
        raise InputError(f"fleet {job.name}: number {number} is more than a version can be; say --model-number")
    publish.check_free(job.models_dir, job.name, number, job.overwrite)
    own = {tl: _newest(job.models_dir / tl) for tl in job.tls}
    contracts, members = {}, []
    for tl, folder in _bar(own.items(), "read"):
        contract, actor = read.read(folder)
        if contract.members:
            raise InputError(f"{folder}: is a fleet itself; a fleet is made of single TLs' models")
        if contract.tl != tl:
            raise InputError(f"{folder}: its contract names {contract.tl}, not {tl}; export {tl} again")
        contracts[tl] = contract
        members.append(Member(tl, actor, contract.action.kind == CATEGORICAL))
    groups = fleet_graph.group(members)
    policy = _contract(job.name, number, groups, contracts, own)
    with publish.version(job.models_dir, job.name, number, job.overwrite, job.keep) as draft:
        size = policy.observation.size
        template = meta_graph.assemble(size, lambda x, v: {ACTION: fleet_graph.build(groups, x, v)})
        weights = fleet_graph.weights(groups)
        meta_graph.write(draft, template, policy, weights)
        warmup.write(draft, policy, number)
        difference = _prove(draft, policy, own)
        _certify(draft, policy, groups, own, difference)
    stacked = sum(len(one.members) for one in groups if one.stacked)
    return (
        f"{job.name}: {len(members)} TLs -> {job.models_dir / job.name / str(number)} ({len(groups)} groups, {stacked} TLs "
        f"stacked, {policy.observation.size} numbers in, {policy.action.size} out), largest difference from the single models "
        f"{difference:.1e}, {time.perf_counter() - begin:.1f} s"
    )


def _newest(home: Path) -> Path:
    return home / str(publish.versions(home)[-1])


def _contract(
    name: str, number: int, groups: Sequence[Group], contracts: dict[str, pb.PolicyContract], own: dict[str, Path]
) -> pb.PolicyContract:
    """The fleet's contract: every TL's columns and its own contract, in the order of the groups."""
    members: list[pb.Member] = []
    observation = action = 0
    for member in (member for one in groups for member in one.members):
        contract = contracts[member.tl]
        members.append(
            pb.Member(
                tl=member.tl,
                version=int(own[member.tl].name),
                observation_begin=observation,
                observation_size=member.actor.inputs,
                action_begin=action,
                action_size=member.columns,
                contract=contract,
            )
        )
        observation += member.actor.inputs
        action += member.columns
    digest = hashlib.sha256()
    for one in members:
        digest.update(bytes.fromhex(one.contract.origin.sha256))
    origin = pb.Origin(
        source_format=FLEET,
        file_name=f"{len(members)} TLs",
        sha256=digest.hexdigest(),
        model_number=number,
        exporter_version=VERSION,
        tensorflow_version=tf.__version__,
        exported_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    policy = pb.PolicyContract(
        tl=name,
        observation=pb.Observation(size=observation),
        action=pb.Action(kind=FLEET, size=action),
        origin=origin,
        members=members,
    )
    try:
        check_fleet(policy)
    except ContractError as error:
        raise InputError(f"{error}; export its TLs again") from None
    return policy


def _prove(draft: Path, policy: pb.PolicyContract, own: dict[str, Path]) -> float:
    """The largest difference to the single models, each loaded as TensorFlow Serving loads it. Raises ParityError."""
    x = verify.observations(policy.observation.size)
    with verify.session(draft) as run:
        verify.replay(draft, run)
        answers = run(SIGNATURE, {INPUT: x})[ACTION]
        verify.check_contract(run, policy)
        # one row at a time must give what many give: a server may batch, or not
        alone = run(SIGNATURE, {INPUT: x[:1]})[ACTION]
    worst = float(np.abs(answers[:1] - alone).max())
    for member in _bar(policy.members, "prove"):
        columns = slice(member.action_begin, member.action_begin + member.action_size)
        observed = x[:, member.observation_begin : member.observation_begin + member.observation_size]
        with verify.session(own[member.tl]) as run:
            expected = run(SIGNATURE, {INPUT: observed})
        if member.contract.action.kind == CATEGORICAL:
            differ = answers[:, columns.start] != expected[ACTION]
            top = np.sort(expected["probabilities"], axis=1)
            if (differ & (top[:, -1] - top[:, -2] > 2 * TOLERANCE if top.shape[1] > 1 else differ)).any():
                raise verify.ParityError(f"it chooses other actions for {member.tl} than {own[member.tl]} does")
            continue
        difference = float(np.abs(answers[:, columns] - expected[ACTION]).max())
        if not difference <= TOLERANCE:
            raise verify.ParityError(
                f"its actions for {member.tl} differ from those of {own[member.tl]} by up to {difference:.3g}, "
                f"more than {TOLERANCE:g}"
            )
        worst = max(worst, difference)
    return worst


def _certify(draft: Path, policy: pb.PolicyContract, groups: Sequence[Group], own: dict[str, Path], difference: float) -> None:
    told = {
        "tl": policy.tl,
        "model_number": policy.origin.model_number,
        "source": {
            "format": FLEET,
            "models": {
                tl: {
                    "version": int(folder.name),
                    "sha256": {
                        path.name: manifest.sha256(path)
                        for path in (folder / "saved_model.pb", folder / "variables" / "variables.data-00000-of-00001")
                    },
                }
                for tl, folder in own.items()
            },
        },
        "groups": [
            {"tls": [member.tl for member in one.members], "widths": one.members[0].actor.widths, "stacked": one.stacked}
            for one in groups
        ],
        "parity": {
            "observations": verify.OBSERVATIONS,
            "largest_absolute_difference": difference,
            "reference": "the single models, each loaded by itself",
            "loaded_by": "TF1-style session, tag serve",
        },
        "operations": manifest.census(draft),
        "versions": {"exporter": VERSION, "tensorflow": tf.__version__, "numpy": np.__version__},
        "exported_at": policy.origin.exported_at,
    }
    (draft / "assets.extra" / manifest.FILE_NAME).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _bar(items, told: str):  # type: ignore[no-untyped-def]
    return tqdm(items, desc=told, unit="TL", disable=not sys.stderr.isatty(), leave=False)
