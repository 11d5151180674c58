"""`greenserve train --streets synthetic`: one policy for any junction, trained on many streets."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from city.errors import InputError, ProgramFailed, first_line
from simulation.street_simulation import SimulationFailed
from simulation.streets import SUMOCFG, city_of
from simulation.synthetic.streets import generate
from training.phase_competition.learner import StreetPpo
from training.phase_competition.trainer import StreetsSettings, StreetsTrainer
from training.ppo import NotFinite

SYNTHETIC = "synthetic"
CITY_FLAGS = ("target_tl", "infer_tl", "infer_model_number", "infer_model_path", "server", "format", "shared", "start_from")
"""Flags of a training in a city."""


def train(args: argparse.Namespace) -> int:
    """Train on many streets and print the file of the policy. Raises InputError, ProgramFailed."""
    for flag in CITY_FLAGS:
        if getattr(args, flag):
            raise InputError(f"--{flag.replace('_', '-')} is for a training in a city; leave it or --streets out")
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
        ppo=StreetPpo(learning_rate=args.learning_rate),
        resume=args.resume,
    )
    streets = _synthetic(args.out / "streets", args.street_count) if args.streets == SYNTHETIC else _given(Path(args.streets))
    try:
        path = StreetsTrainer(replace(settings, streets=tuple(streets)), _print_line).run()
    except (NotFinite, SimulationFailed) as error:
        raise ProgramFailed(f"{error}; --resume continues from the last saved state, if there is one") from None
    print(f"{path}: one policy for any junction; export it with greenserve export --model-path {args.out} --tl all")
    return 0


def _synthetic(folder: Path, count: int) -> list[Path]:
    """Generate streets, or find those of an earlier run."""
    seeds = tqdm(range(count), desc="streets", unit="street", disable=None, leave=False)
    return [generate(folder, seed) for seed in seeds]


def _given(folder: Path) -> Sequence[Path]:
    """The streets of a folder: each of its folders with a street.sumocfg. Raises InputError."""
    if not folder.is_dir():
        raise InputError(f"--streets {folder}: no such folder; pass a folder of streets, or {SYNTHETIC}")
    streets = sorted(path.parent for path in folder.glob(f"*/{SUMOCFG}"))
    usable = []
    for street in streets:
        try:
            city_of(street)
        except InputError as error:
            _print_line(f"left out: {first_line(error)}")
        else:
            usable.append(street)
    if not usable:
        raise InputError(f"--streets {folder}: none of its folders has a {SUMOCFG} with a signal; pass another folder")
    return usable


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
