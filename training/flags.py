"""Flags of the training, which `train` and `rounds` share."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from city.errors import InputError
from training.rewards import names as rewards

if TYPE_CHECKING:
    from training.trainer import Settings

MAX_COUNT = 1_000_000


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a parser."""
    parser.add_argument("--reward", choices=rewards(), default="delay", help="what a TL is rewarded for (default: delay)")
    parser.add_argument(
        "--shared", action="store_true", help="TLs of the same dialect, observation and action size share an actor"
    )
    parser.add_argument("--hidden-sizes", default="64,64", metavar="N,N", help="units of the hidden layers (default: 64,64)")
    parser.add_argument("--episodes", type=int, default=300, metavar="N", help="episodes in all (default: 300)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="simulated time of an episode (default: until the sumocfg's end)"
    )
    parser.add_argument("--episodes-per-update", type=int, default=4, metavar="N", help="episodes an update (default: 4)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that simulate (default: 1)")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="random seed; the same flags give the same results with any --workers (default: 1)",
    )
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, metavar="X", help="at the start; falls linearly to 5 %% (default: 0.001)"
    )
    parser.add_argument("--same-demand", action="store_true", help="do not vary the demand between episodes")
    parser.add_argument("--evaluate-every", type=int, default=10, metavar="N", help="updates between evaluations (default: 10)")
    parser.add_argument(
        "--held-out", type=int, default=2, metavar="N", help="simulations of an evaluation on held-out demand (default: 2)"
    )
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        metavar="N",
        help="evaluations without an improvement that end the training (default: 0, none)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the flags' values, and parse --hidden-sizes. Raises InputError."""
    for name, low in (
        ("episodes", 1), ("episodes_per_update", 1), ("workers", 1), ("evaluate_every", 1), ("held_out", 1),
        ("patience", 0), ("seed", 0),
    ):  # fmt: skip
        check_count(args, name, low)
    if args.seconds is not None and not 1 <= args.seconds < math.inf:
        raise InputError(f"--seconds {args.seconds:g} must be at least 1")
    if not 0 < args.learning_rate < 1:
        raise InputError(f"--learning-rate {args.learning_rate:g} must lie between 0 and 1")
    args.hidden_sizes = _hidden_sizes(args.hidden_sizes)


def check_count(args: argparse.Namespace, name: str, low: int) -> None:
    """Check an integer flag. Raises InputError."""
    if not low <= getattr(args, name) <= MAX_COUNT:
        raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)} must lie between {low} and {MAX_COUNT}")


def settings(args: argparse.Namespace, out: Path, number: int) -> "Settings":
    """The training's settings from its flags."""
    # after the checks of the flags: importing TensorFlow takes seconds
    from training.ppo import PpoConfig
    from training.trainer import Settings

    return Settings(
        out=out,
        number=number,
        episodes=args.episodes,
        episodes_per_update=args.episodes_per_update,
        seed=args.seed,
        workers=args.workers,
        ppo=PpoConfig(learning_rate=args.learning_rate),
        varies=not args.same_demand,
        evaluate_every=args.evaluate_every,
        held_out=args.held_out,
        patience=args.patience,
    )


def _hidden_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(0 < size <= 4096 for size in sizes):
        raise InputError(f"--hidden-sizes {text!r} must be integers between 1 and 4096 separated by commas, such as 64,64")
    return sizes
