"""`greenserve pretrain train`: train networks on many streets; one policy for any junction, of one network or of the
best of several."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import print_line
from pretraining import select_command
from pretraining.select_command import SECONDS, check_cluster
from pretraining.state_files import state_files
from pretraining.streets import SYNTHETIC, of_folder, synthetic
from training import flags
from training.ppo_config import StreetPpo
from training.saved_state import locked, run_resumable

if TYPE_CHECKING:
    from pretraining.selection import Selection
    from pretraining.streets_trainer import StreetsSettings

STREET_COUNT = 160
"""Default of the number of synthetic streets."""


def main(argv: list[str] | None = None, prog: str = "python -m pretraining.train_command") -> int:
    """Train. Exit code: 0; 3 if no policy passes the gate; 2 if the input is wrong; 1 if the work fails."""
    return run_resumable(parser(prog), argv, _train, lambda args: state_files(args.out, args.model_number))


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Train one policy for any junction on many streets; it is exported with greenserve export.",
    )
    parser.add_argument(
        "--streets",
        default=SYNTHETIC,
        metavar="DIR",
        help="train on the streets of a folder, or synthetic: on random ones (default: synthetic)",
    )
    street_count = f"with --streets synthetic: number of streets (default: {STREET_COUNT})"
    flags.add_count(parser, "--street-count", 1, street_count)
    networks = (
        "trainings, with seeds from --seed on, or from --seed + 1 on with --shared-updates; those that are best at the "
        "gate make one policy"
    )
    flags.add_count(parser, "--networks", 1, networks, 1)
    shared_updates = (
        "with --networks: first updates, made once with --seed, from which each network continues with its own"
    )
    flags.add_count(parser, "--shared-updates", 0, shared_updates, 0)
    flags.add_episodes(parser, 960, 24)
    flags.add_seconds(parser, f"simulated time of an episode (default: {SECONDS:g})", SECONDS)
    select_command.add_gate(parser)
    flags.add_ppo(parser, StreetPpo(), StreetPpo(), left_out=("hidden_sizes",))
    return parser


def _train(args: argparse.Namespace) -> int:
    flags.check(args)
    select_command.check_ray(args)
    if args.street_count is not None and args.streets != SYNTHETIC:
        raise InputError("--street-count is for --streets synthetic; leave it out")
    if args.shared_updates and args.networks == 1:
        raise InputError("--shared-updates is for several networks; pass --networks, or leave it out")
    updates = -(-args.episodes // args.episodes_per_update)
    if args.shared_updates >= updates:
        raise InputError(
            f"--shared-updates {args.shared_updates} leaves none of the {updates} updates to each network; pass fewer"
        )
    with locked(args.out, args.model_number):
        return _train_locked(args, updates)


def _train_locked(args: argparse.Namespace, updates: int) -> int:
    # after the checks of the flags: importing TensorFlow takes seconds
    from pretraining.streets_trainer import StreetsSettings, StreetsTrainer
    from simulation.street_simulation import SimulationFailed
    from training.statistics import NotFinite

    # made first: it refuses to replace files
    has_gate = args.networks > 1 or args.keep is not None
    selection = select_command.selection(args, args.networks) if has_gate else None
    check_cluster(args)
    if args.streets == SYNTHETIC:
        streets = synthetic(args.out / "streets", range(args.street_count or STREET_COUNT))
    else:
        streets = of_folder(Path(args.streets), print_line)
    settings = StreetsSettings(
        args.out,
        tuple(streets),
        number=args.model_number,
        updates=updates,
        shared_updates=args.shared_updates,
        shared_seed=args.seed,
        episodes_per_update=args.episodes_per_update,
        seconds=args.seconds,
        seed=args.seed,
        workers=args.workers,
        ray=args.ray,
        reward=args.reward,
        ppo=StreetPpo(**flags.ppo_values(args)),
        resume=args.resume,
    )
    try:
        if selection is None:
            return select_command.exported(StreetsTrainer(settings, print_line).run())
        return _train_and_select(selection, settings, args.networks)
    except (NotFinite, SimulationFailed) as error:
        raise ProgramFailed(f"{error}; --resume continues from the last saved state, if there is one") from None


def _train_and_select(selection: "Selection", settings: "StreetsSettings", count: int) -> int:
    """Train networks and gate them; write the picture of both.

    Raises InputError, ProgramFailed, SimulationFailed, NotFinite.
    """
    from pretraining import curves_picture

    # no network continues with --seed itself, so each leaves the shared updates with new random numbers
    first = settings.seed + (1 if settings.shared_updates else 0)
    parts = [replace(settings, seed=seed, is_part=True) for seed in range(first, first + count)]
    networks = _train_networks(parts)
    # that of a network that has diverged is shown too
    curves = {_name(part): part.curve_file for part in parts if part.curve_file.exists()}
    picture = settings.out / f"{settings.label}_curves.svg"
    # the gate may take an hour
    curves_picture.write(picture, curves, None)
    selected = selection.run(networks)
    curves_picture.write(picture, curves, selected)
    return select_command.exit_code(selection, selected)


def _train_networks(parts: Sequence["StreetsSettings"]) -> dict[str, Path]:
    """Train networks one after another, each with a seed of its own; return name -> policy file.

    Raises InputError, SimulationFailed, NotFinite if none has been trained.
    """
    from pretraining.streets_trainer import StreetsTrainer
    from training.statistics import NotFinite

    has_begun = any(
        part.state.path.exists() or (part.shared_updates and part.shared_state.path.exists()) for part in parts
    )
    # if anything has been saved, networks without a saved state start anew
    resumed = [replace(part, resume=part.resume and (part.state.path.exists() or not has_begun)) for part in parts]
    # all of them before the first training, which takes long
    for part in resumed:
        part.check_files()
    networks: dict[str, Path] = {}
    for k, part in enumerate(resumed, 1):
        print_line(f"network {k} of {len(parts)}, seed {part.seed}")
        try:
            networks[_name(part)] = StreetsTrainer(part, print_line).run()
        except NotFinite as error:
            # the same seed would fail again, in shared updates for every network; the others may do without it
            if (k == len(parts) and not networks) or (part.shared_updates and not part.shared_state.path.exists()):
                raise
            print_line(f"warning: seed {part.seed} is dropped: {error}")
    return networks


def _name(part: "StreetsSettings") -> str:
    return f"seed {part.seed}"
