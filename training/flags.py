"""Flags of the training, which `train`, `rounds` and `pretrain` share."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from city import ppo_settings
from city.arguments import MAX_SECONDS, bounded
from city.config import City
from city.errors import InputError
from city.network import StreetNetwork
from city.ppo_settings import PpoSettings
from city.program import print_line
from serving.contract import CATEGORICAL
from signals import contract
from signals.dialects import street as street_dialect
from simulation import rewards
from training.settings import FINE_TUNING, PpoConfig, Settings, StreetPpo

MAX_COUNT = 1_000_000
STREET = street_dialect.DIALECT.name


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a training in a city to a parser."""
    parser.add_argument(
        "--start-from",
        metavar="FILE",
        help="checkpoint or model to start from, as greenserve export reads it, a folder of them, or pretrained, the "
        "policy for TLs of dialect street (default: new policies)",
    )
    parser.add_argument(
        "--shared", action="store_true", help="TLs of the same dialect, observation and action size share an actor"
    )
    add_episodes(parser, Settings.episodes, Settings.episodes_per_update)
    add_seconds(parser, "simulated time of an episode (default: until the sumocfg's end)")
    parser.add_argument("--same-demand", action="store_true", help="do not vary the demand between episodes")
    add_count(parser, "--evaluate-every", 1, "updates between evaluations", Settings.evaluate_every)
    add_count(parser, "--held-out", 1, "simulations of an evaluation on validation demand", Settings.held_out)
    patience = "evaluations without an improvement that end the training (default: 0, none)"
    add_count(parser, "--patience", 0, patience, 0)
    own = PpoConfig()
    # in a city, one sharpness holds for all TLs: see Learning
    add_ppo(parser, own, replace(StreetPpo(), final_sharpness=own.final_sharpness), started=FINE_TUNING)


def add_episodes(parser: argparse.ArgumentParser, episodes: int, episodes_per_update: int) -> None:
    """Add the flags of the episodes, with these defaults."""
    parser.add_argument(
        "--reward",
        default="delay",
        metavar="NAME",
        help=f"what a TL is rewarded for: {', '.join(rewards.names())}, or module:function of your own; PYTHONPATH=. "
        "for a module in this folder (default: delay)",
    )
    add_count(parser, "--episodes", 1, "episodes in all", episodes)
    add_count(parser, "--episodes-per-update", 1, "episodes an update", episodes_per_update)
    add_workers(parser)
    add_count(
        parser, "--seed", 0, "random seed; the same flags give the same results with any --workers (default: 1)", 1
    )


def add_count(parser: argparse.ArgumentParser, flag: str, low: int, about: str, default: int | None = None) -> None:
    """Add an integer flag between `low` and MAX_COUNT. `about`: its help; the default is added if it names none."""
    about = about if default is None or "(default: " in about else f"{about} (default: {default})"
    parser.add_argument(flag, type=bounded(int, low, MAX_COUNT), default=default, metavar="N", help=about)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the number of processes that simulate."""
    add_count(parser, "--workers", 1, "processes that simulate", 1)


def add_seconds(parser: argparse.ArgumentParser, about: str, default: float | None = None) -> None:
    """Add the simulated time, at least 1 s."""
    parser.add_argument("--seconds", type=bounded(float, 1, MAX_SECONDS), default=default, metavar="S", help=about)


def add_ppo(
    parser: argparse.ArgumentParser,
    own: PpoConfig,
    street: PpoConfig,
    left_out: Iterable[str] = (),
    started: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Add the settings of PPO.

    Args:
        parser: gets the flags.
        own: the defaults.
        street: the defaults of TLs of dialect street, which are shown if they differ.
        left_out: settings without a flag.
        started: the defaults of a training that starts from a policy, where they differ.
    """
    for key, metadata in ppo_settings.METADATA.items():
        if key in left_out:
            continue
        default = getattr(own, key)
        kind: Any = {int: int, str: str, tuple: _hidden_sizes}.get(type(default), float)
        shown = "no early end" if default is None else _text(default)
        if getattr(street, key) != default:
            shown += f"; dialect street: {_text(getattr(street, key))}"
        if key in started:
            shown += f"; with --start-from: {_text(started[key])}"
        about = f"{metadata['about']} (default: {shown})"
        if isinstance(default, bool):
            parser.add_argument(_flag(key), action=argparse.BooleanOptionalAction, help=about)
            continue
        parser.add_argument(
            _flag(key),
            type=kind,
            choices=metadata["choices"] or None,
            metavar=None if metadata["choices"] else {int: "N", tuple: "N,N"}.get(type(default), "X"),
            help=about,
        )


def check(args: argparse.Namespace) -> None:
    """Check the settings of PPO and the reward. Raises InputError."""
    rewards.check(args.reward, "--reward")
    given = PpoSettings(**{key: getattr(args, key, None) for key in ppo_settings.METADATA})
    ppo_settings.check(given, lambda key, value: f"{_flag(key)} {_text(value)}")


def settings(args: argparse.Namespace, city: City, tls: Iterable[str], out: Path, number: int) -> Settings:
    """The training's settings from its flags and the city's [training]. Raises InputError.

    `tls`: those that are trained.
    """
    ppo, start = dict(ppo_values(args, city.training)), None
    if args.start_from is not None:
        # not at the top: reading a checkpoint loads TensorFlow
        from training.start import load

        start, note = load(args.start_from, city, list(tls))
        if note:
            print_line(note)
        if start.hidden is not None and ppo.setdefault("hidden_sizes", start.hidden) != start.hidden:
            raise InputError(
                f"--hidden-sizes {_text(ppo['hidden_sizes'])} (or [training] hidden_sizes) is not that of --start-from "
                f"{args.start_from}, {_text(start.hidden)}; leave it out"
            )
    return Settings(
        out=out,
        number=number,
        episodes=args.episodes,
        episodes_per_update=args.episodes_per_update,
        seed=args.seed,
        workers=args.workers,
        ppo=PpoConfig.of(ppo, start is not None),
        street_ppo=StreetPpo.of(ppo, start is not None),
        varies=not args.same_demand,
        evaluate_every=args.evaluate_every,
        held_out=args.held_out,
        patience=args.patience,
        start=start,
    )


def ppo_values(args: argparse.Namespace, training: PpoSettings | None = None) -> Mapping[str, Any]:
    """The settings of PPO that are given, by a flag or in [training]."""
    values = {}
    for key in ppo_settings.METADATA:
        flag = getattr(args, key, None)
        value = getattr(training, key, None) if flag is None else flag
        if value is not None:
            values[key] = value
    return values


def check_applicable(args: argparse.Namespace, city: City, tls: Iterable[str], street: StreetNetwork) -> None:
    """Raise InputError if a flag applies to none of the TLs that are trained."""
    contracts = [contract.build(city, city.tls[tl], street) for tl in tls]
    if all(trained.observation.dialect == STREET for trained in contracts):
        _refuse(args, "hidden_sizes", "the networks of the dialect street have fixed sizes")
    if not any(trained.action.kind == CATEGORICAL for trained in contracts):
        _refuse(args, "final_sharpness", "no target TL has categorical actions")


def _refuse(args: argparse.Namespace, key: str, reason: str) -> None:
    if getattr(args, key) is not None:
        raise InputError(f"{_flag(key)} does not apply: {reason}; leave it out")


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _text(value: Any) -> str:
    """A value as it is written after a flag."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _hidden_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--hidden-sizes {text!r} must be integers separated by commas, such as 64,64") from None
