"""`greenserve train --streets synthetic`: one policy for any junction, trained on many streets."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from city.errors import InputError, ProgramFailed
from simulation.street_simulation import SimulationFailed
from simulation.streets import SYNTHETIC, of_folder, synthetic
from training import flags
from training.phase_competition.trainer import StreetsSettings, StreetsTrainer
from training.ppo import NotFinite
from training.ppo_config import StreetPpo

CITY_FLAGS = ("target_tl", "infer_tl", "infer_model_number", "infer_model_path", "server", "format", "shared", "start_from")
"""Flags of a training in a city."""


def train(args: argparse.Namespace) -> int:
    """Train on many streets and print the file of the policy. Raises InputError, ProgramFailed."""
    for flag in CITY_FLAGS:
        if getattr(args, flag):
            raise InputError(f"--{flag.replace('_', '-')} is for a training in a city; leave it or --streets out")
    flags.refuse(args, "hidden_sizes", flags.FIXED_NETWORKS)
    defaults = StreetsSettings(args.out, ())
    settings = replace(
        defaults,
        number=args.model_number,
        updates=-(-args.episodes // args.episodes_per_update),
        episodes_per_update=args.episodes_per_update,
        seconds=args.seconds or defaults.seconds,
        seed=args.seed,
        workers=args.workers,
        reward=args.reward,
        ppo=StreetPpo(**flags.ppo_values(args)),
        resume=args.resume,
    )
    if args.streets == SYNTHETIC:
        found = synthetic(args.out / "streets", range(args.street_count))
    else:
        found, left_out = of_folder(Path(args.streets), "--streets")
        for reason in left_out:
            _print_line(f"left out: {reason}")
    try:
        path = StreetsTrainer(replace(settings, streets=tuple(found)), _print_line).run()
    except (NotFinite, SimulationFailed) as error:
        raise ProgramFailed(f"{error}; --resume continues from the last saved state, if there is one") from None
    print(f"{path}: one policy for any junction; export it with greenserve export --model-path {args.out} --tl all")
    return 0


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
