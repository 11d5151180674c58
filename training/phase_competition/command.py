"""`greenserve train --streets` and `--select`: one policy for any junction, of one network or of the best of
several."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from city.errors import InputError, ProgramFailed
from city.program import GATE_FAILED
from simulation.executors import executor
from simulation.street_simulation import SimulationFailed
from simulation.streets import SYNTHETIC, of_folder, synthetic
from training import flags
from training.phase_competition import curves_picture
from training.phase_competition.selection import Network, Outcome, Selection, SelectionSettings, names_of
from training.phase_competition.trainer import StreetsSettings, StreetsTrainer
from training.ppo_config import StreetPpo
from training.progress import network_seeds
from training.statistics import NotFinite

CITY_FLAGS = (
    "city", "target_tl", "infer_tl", "infer_model_number", "infer_model_path", "server", "format", "shared",
    "start_from",
    "strict", "same_demand", "checkpoint", *flags.EVALUATIONS,
)  # fmt: skip
"""Flags of a training in a city."""
DEFAULT_KEEP = 3
"""Networks of a product, unless --keep says how many."""


def train(args: argparse.Namespace) -> int:
    """Train on many streets and print the file of the policy. Raises InputError, ProgramFailed."""
    for flag in CITY_FLAGS:
        if flags.is_given(args, flag):
            raise InputError(f"--{flag.replace('_', '-')} is for a training in a city; leave it or --streets out")
    flags.refuse(args, "hidden_sizes", flags.FIXED_NETWORKS)
    # made first: it refuses to replace files
    selection = _selection(args, args.networks) if args.networks > 1 or args.keep is not None else None
    defaults = StreetsSettings(args.out, ())
    episodes_per_update = args.episodes_per_update or flags.STREETS_EPISODES_PER_UPDATE
    updates = -(-(args.episodes or flags.STREETS_EPISODES) // episodes_per_update)
    shared = args.shared_updates or 0
    if shared >= updates:
        raise InputError(f"--shared-updates {shared} leaves none of the {updates} updates to each network; pass fewer")
    settings = replace(
        defaults,
        number=args.model_number,
        updates=updates,
        shared_updates=shared,
        shared_seed=args.seed,
        episodes_per_update=episodes_per_update,
        seconds=args.seconds or defaults.seconds,
        seed=args.seed,
        workers=args.workers,
        ray=args.ray,
        reward=args.reward,
        ppo=StreetPpo(**flags.ppo_values(args)),
        resume=args.resume,
    )
    _check_cluster(args)
    if args.streets == SYNTHETIC:
        found = synthetic(args.out / "streets", range(args.street_count or flags.DEFAULT_STREET_COUNT))
    else:
        found, left_out = of_folder(Path(args.streets), "--streets")
        for reason in left_out:
            _print_line(f"left out: {reason}")
    settings = replace(settings, streets=tuple(found))
    try:
        if selection is None:
            return _exported(StreetsTrainer(settings, _print_line).run())
        return _train_and_select(selection, settings, args.networks)
    except (NotFinite, SimulationFailed) as error:
        raise ProgramFailed(f"{error}; --resume continues from the last saved state, if there is one") from None


def select(args: argparse.Namespace) -> int:
    """Gate existing policies and write the product of the best ones. Raises InputError, ProgramFailed."""
    for flag in (*CITY_FLAGS, "streets"):
        if flags.is_given(args, flag):
            raise InputError(f"--{flag.replace('_', '-')} is for a training; leave it or --select out")
    paths = [Path(name) for name in ",".join(args.select).split(",") if name]
    if not paths:
        raise InputError("--select names no file; pass .policy files of greenserve train, separated by commas")
    for path in paths:
        if not path.is_file():
            raise InputError(
                f"--select {path}: no such file; pass .policy files of greenserve train, separated by commas"
            )
    names = names_of(paths)
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--select names {repeated} twice; remove one")
    try:
        selection = _selection(args, len(paths))
        _check_cluster(args)
        return _code(selection, selection.run([Network(*pair) for pair in zip(names, paths, strict=True)]))
    except SimulationFailed as error:
        raise ProgramFailed(str(error)) from None


def _train_networks(parts: Sequence[StreetsSettings]) -> list[Network]:
    """Train networks one after another, each with a seed of its own.

    Raises InputError, SimulationFailed, NotFinite if none has been trained.
    """
    has_begun = any(
        part.progress_file.exists() or (part.shared_updates and part.shared_progress_file.exists()) for part in parts
    )
    # if anything has been saved, networks without a saved state start anew
    resumed = [replace(part, resume=part.resume and (part.progress_file.exists() or not has_begun)) for part in parts]
    # all of them before the first training, which takes long
    for part in resumed:
        part.check_files()
    networks: list[Network] = []
    for k, part in enumerate(resumed, 1):
        _print_line(f"network {k} of {len(parts)}, seed {part.seed}")
        try:
            path = StreetsTrainer(part, _print_line).run()
        except NotFinite as error:
            # the same seed would fail again, in shared updates for every network; the others may do without it
            if (k == len(parts) and not networks) or (part.shared_updates and not part.shared_progress_file.exists()):
                raise
            _print_line(f"warning: seed {part.seed} is dropped: {error}")
            continue
        networks.append(Network(_name(part), path))
    return networks


def _name(part: StreetsSettings) -> str:
    return f"seed {part.seed}"


def _selection(args: argparse.Namespace, networks: int) -> Selection:
    """The selection among a number of networks. Raises InputError."""
    keep = min(DEFAULT_KEEP, networks) if args.keep is None else args.keep
    if keep > networks:
        raise InputError(
            f"--keep {keep} is more than there are networks, {networks}; pass a smaller --keep or more networks"
        )
    settings = SelectionSettings(
        args.out,
        args.model_number,
        keep=keep,
        street_count=args.gate_streets or flags.DEFAULT_GATE_STREETS,
        seconds=args.seconds or StreetsSettings(args.out, ()).seconds,
        workers=args.workers,
        ray=args.ray,
        resume=args.resume,
    )
    return Selection(settings, _print_line)


def _check_cluster(args: argparse.Namespace) -> None:
    """Raise InputError if the Ray cluster does not answer: before streets are generated, not after."""
    with executor(args.workers, args.ray):
        pass


def _train_and_select(selection: Selection, settings: StreetsSettings, count: int) -> int:
    """Train networks and gate them; write the picture of both.

    Raises InputError, ProgramFailed, SimulationFailed, NotFinite.
    """
    seeds = network_seeds(settings.seed, count, settings.shared_updates)
    parts = [replace(settings, seed=seed, is_part=True) for seed in seeds]
    networks = _train_networks(parts)
    # that of a network that has diverged is shown too
    curves = {_name(part): part.curve_file for part in parts if part.curve_file.exists()}
    picture = settings.out / f"{settings.label}_curves.svg"
    # the gate may take an hour
    curves_picture.write(picture, curves, None)
    outcome = selection.run(networks)
    curves_picture.write(picture, curves, outcome)
    return _code(selection, outcome)


def _code(selection: Selection, outcome: Outcome) -> int:
    """The exit code of a selection."""
    return _exported(selection.settings.policy_file) if outcome.passes else GATE_FAILED


def _exported(path: Path) -> int:
    print(f"{path}: one policy for any junction; export it with greenserve export --model-path {path.parent} --tl all")
    return 0


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
