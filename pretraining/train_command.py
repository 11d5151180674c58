"""`greenserve pretrain train`: train a network on many streets; it is a policy for any junction."""

import argparse
from pathlib import Path

from city.arguments import Parser
from city.errors import InputError, ProgramFailed
from city.program import print_line
from pretraining import select_command
from pretraining.select_command import SECONDS
from pretraining.streets import SYNTHETIC, of_folder, synthetic
from simulation.street_simulation import SimulationFailed
from training import flags
from training.saved_state import locked, run_resumable, state_file
from training.settings import StreetPpo

STREET_COUNT = 160
"""Default of the number of synthetic streets."""


def main(argv: list[str], prog: str) -> int:
    """Train. Exit code: 0; 2 if the input is wrong; 1 if the work fails."""
    return run_resumable(parser(prog), argv, _train, lambda args: [state_file(args.out, args.model_number)])


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
    flags.add_episodes(parser, 1920, 24)
    flags.add_seconds(parser, f"simulated time of an episode (default: {SECONDS:g})", SECONDS)
    select_command.add_results(parser)
    flags.add_ppo(parser, StreetPpo(), StreetPpo(), left_out=("hidden_sizes",))
    return parser


def _train(args: argparse.Namespace) -> int:
    flags.check(args)
    select_command.check_ray(args)
    if args.street_count is not None and args.streets != SYNTHETIC:
        raise InputError("--street-count is for --streets synthetic; leave it out")
    # after the checks of the flags: importing TensorFlow takes seconds
    from pretraining.streets_trainer import StreetsSettings, StreetsTrainer
    from training.statistics import NotFinite

    with locked(args.out, args.model_number):
        select_command.check_cluster(args)
        if args.streets == SYNTHETIC:
            streets = synthetic(args.out / "streets", range(args.street_count or STREET_COUNT))
        else:
            streets = of_folder(Path(args.streets), print_line)
        settings = StreetsSettings(
            args.out,
            tuple(streets),
            number=args.model_number,
            updates=-(-args.episodes // args.episodes_per_update),
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
            return select_command.exported(StreetsTrainer(settings, print_line).run())
        except (NotFinite, SimulationFailed) as error:
            raise ProgramFailed(f"{error}; --resume continues from the last saved state, if there is one") from None
