"""Flags of the training, which `train` and `rounds` share."""

import argparse
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from city import ppo_settings
from city.config import City
from city.errors import InputError
from city.network import StreetNetwork
from city.ppo_settings import SCHEDULES, PpoSettings
from export import pretrained
from serving.contract import CATEGORICAL
from signals import contract
from signals.dialects import street as street_dialect
from simulation.rewards import names as rewards
from training.ppo_config import PpoConfig, StreetPpo

if TYPE_CHECKING:
    from training.trainer import Settings
    from training.transitions import Float32s

MAX_COUNT = 1_000_000
HIDDEN_SIZES = (64, 64)
EPISODES, EPISODES_PER_UPDATE = 300, 4
"""Defaults."""
STREET = street_dialect.DIALECT.name
EVALUATIONS = ("evaluate_every", "held_out", "patience")
"""Flags of the evaluations on held-out demand; without one, the default of `Settings` counts."""
FIXED_NETWORKS = "the networks of the dialect street have fixed sizes"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a training in a city to a parser."""
    parser.add_argument(
        "--start-from",
        metavar="FILE",
        help="TLs of dialect street: policy to start from, or pretrained (default: a new one)",
    )
    parser.add_argument(
        "--shared", action="store_true", help="TLs of the same dialect, observation and action size share an actor"
    )
    add_episodes(parser, EPISODES, EPISODES_PER_UPDATE, "until the sumocfg's end")
    parser.add_argument("--same-demand", action="store_true", help="do not vary the demand between episodes")
    parser.add_argument("--evaluate-every", type=int, metavar="N", help="updates between evaluations (default: 10)")
    parser.add_argument(
        "--held-out", type=int, metavar="N", help="simulations of an evaluation on held-out demand (default: 2)"
    )
    parser.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="evaluations without an improvement that end the training (default: 0, none)",
    )
    add_ppo(parser, PpoConfig(), StreetPpo())
    parser.add_argument(
        "--hidden-sizes",
        type=_hidden_sizes,
        metavar="N,N",
        help=f"units of the hidden layers, not of dialect street (default: {','.join(map(str, HIDDEN_SIZES))})",
    )


def add_episodes(parser: argparse.ArgumentParser, episodes: int, episodes_per_update: int, seconds: object) -> None:
    """Add the flags of the episodes, with these defaults. `seconds`: that of the simulated time, in the help."""
    parser.add_argument(
        "--reward", choices=rewards(), default="delay", help="what a TL is rewarded for (default: delay)"
    )
    parser.add_argument("--episodes", type=int, metavar="N", help=f"episodes in all (default: {episodes})")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"simulated time of an episode (default: {seconds})")
    parser.add_argument(
        "--episodes-per-update", type=int, metavar="N", help=f"episodes an update (default: {episodes_per_update})"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that simulate (default: 1)")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="random seed; the same flags give the same results with any --workers (default: 1)",
    )


def add_ppo(parser: argparse.ArgumentParser, own: PpoConfig, street: PpoConfig) -> None:
    """Add the settings of PPO.

    Args:
        parser: gets the flags.
        own: the defaults.
        street: the defaults of TLs of dialect street, which are shown where they differ.
    """

    def number(name: str, text: str, kind: type = float) -> None:
        values = getattr(own, name), getattr(street, name)
        of_street = f"; dialect street: {values[1]:g}" if values[1] != values[0] else ""
        key = name.replace("_", "-")
        text = f"{text} (default: {values[0]:g}{of_street})"
        parser.add_argument(f"--{key}", type=kind, metavar="N" if kind is int else "X", help=text)

    number("learning_rate", "learning rate at the start")
    parser.add_argument(
        "--learning-rate-schedule", choices=SCHEDULES,
        help="linear: the learning rate falls to 5 %% at the end; constant (default: linear)",
    )  # fmt: skip
    number("gamma", "discount factor, by decision; dialect street: by 5 s")
    number("gae_lambda", "lambda of the generalised advantage estimates")
    number("clip", "bound of the ratio of new and old probabilities, 1 +- X")
    number("entropy", "weight of the entropy bonus at the start; falls linearly to 5 %%")
    number("epochs", "passes over an update's decisions", int)
    number("minibatch", "decisions of a TL in a step of the optimiser; dialect street: of all TLs", int)
    number(
        "final_sharpness", "factor of categorical actors' logits at the end, from 1 at the start; 1 with --start-from"
    )
    parser.add_argument(
        "--target-kl",
        type=float,
        metavar="X",
        help="end an update's epochs once approx_kl exceeds 1.5 X (default: no early end)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the flags' values. Raises InputError."""
    for name, low in (
        ("episodes", 1), ("episodes_per_update", 1), ("workers", 1), ("evaluate_every", 1), ("held_out", 1),
        ("patience", 0), ("seed", 0),
    ):  # fmt: skip
        if getattr(args, name, None) is not None:
            check_count(args, name, low)
    if args.seconds is not None and not 1 <= args.seconds < math.inf:
        raise InputError(f"--seconds {args.seconds:g} must be at least 1")
    ppo_settings.check(_given(args), _shown)


def check_count(args: argparse.Namespace, name: str, low: int) -> None:
    """Check an integer flag. Raises InputError."""
    if not low <= getattr(args, name) <= MAX_COUNT:
        raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)} must lie between {low} and {MAX_COUNT}")


def settings(args: argparse.Namespace, city: City, tls: Iterable[str], out: Path, number: int) -> "Settings":
    """The training's settings from its flags and the city's [training]. Raises InputError.

    `tls`: those that are trained.
    """
    # after the checks of the flags: importing TensorFlow takes seconds
    from training.trainer import Settings

    ppo = ppo_values(args, city.training)
    start = None if args.start_from is None else _start(args.start_from, city, tls)
    own = PpoConfig(**ppo)
    if start is not None and "final_sharpness" not in ppo:
        own = replace(own, final_sharpness=1.0)  # a trained policy is sharp already
    return Settings(
        out=out,
        number=number,
        episodes=args.episodes or EPISODES,
        episodes_per_update=args.episodes_per_update or EPISODES_PER_UPDATE,
        seed=args.seed,
        workers=args.workers,
        ppo=own,
        street_ppo=StreetPpo(**ppo),
        varies=not args.same_demand,
        start=start,
        **{name: getattr(args, name) for name in EVALUATIONS if getattr(args, name) is not None},
    )


def _start(given: str, city: City, tls: Iterable[str]) -> list["Float32s"]:
    """The arrays of the policy to start from. Raises InputError."""
    from training.phase_competition import street_learning

    if others := [tl for tl in tls if city.tls[tl].dialect != STREET]:
        raise InputError(
            f"--start-from is for TLs of dialect street, and {', '.join(others)} has another; leave it out"
        )
    path = pretrained.policy() if given == "pretrained" else Path(given)
    if not path.is_file():
        raise InputError(f"--start-from {path}: no such file; pass a .policy file of greenserve train, or pretrained")
    return street_learning.load(path)


def ppo_values(args: argparse.Namespace, training: PpoSettings | None = None) -> dict[str, Any]:
    """The fields of `PpoConfig` that are given, by a flag or in [training]."""
    values = {key: _value(args, training or PpoSettings(), key) for key in ppo_settings.KEYS if key != "hidden_sizes"}
    return {key: value for key, value in values.items() if value is not None}


def hidden_sizes(args: argparse.Namespace, training: PpoSettings) -> tuple[int, ...]:
    """The units of the hidden layers."""
    sizes: tuple[int, ...] = _value(args, training, "hidden_sizes") or HIDDEN_SIZES
    return sizes


def check_applicable(args: argparse.Namespace, city: City, tls: Iterable[str], street: StreetNetwork) -> None:
    """Raise InputError if a flag applies to none of the TLs that are trained."""
    contracts = [contract.build(city, city.tls[tl], street) for tl in tls]
    if all(trained.observation.dialect == STREET for trained in contracts):
        refuse(args, "hidden_sizes", FIXED_NETWORKS)
    if not any(trained.action.kind == CATEGORICAL for trained in contracts):
        refuse(args, "final_sharpness", "no target TL has categorical actions")


def refuse(args: argparse.Namespace, key: str, reason: str) -> None:
    """Raise InputError if a flag is given that does not apply."""
    if getattr(args, key) is not None:
        raise InputError(f"--{key.replace('_', '-')} does not apply: {reason}; leave it out")


def _value(args: argparse.Namespace, training: PpoSettings, key: str) -> Any:
    flag = getattr(args, key)
    return getattr(training, key) if flag is None else flag


def _given(args: argparse.Namespace) -> PpoSettings:
    return PpoSettings(**{key: getattr(args, key, None) for key in ppo_settings.KEYS})


def _shown(key: str, value: Any) -> str:
    text = (
        ",".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return f"--{key.replace('_', '-')} {text}"


def _hidden_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--hidden-sizes {text!r} must be integers separated by commas, such as 64,64") from None
