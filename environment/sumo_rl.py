"""sumo-rl's constructor: its arguments, with its defaults, in the place of a city.toml.

Source of their meaning: `SumoEnvironment` of sumo-rl 1.4.5 (sumo_rl/environment/env.py).
"""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from city import init, network, sumo_files
from city.config import TL, City, Network
from city.errors import InputError
from simulation import rewards
from simulation.rewards import Reward, RewardPart, SimpleReward
from simulation.street_simulation import SUMO_GUI

SumoRlKeywords = TypedDict(  # noqa: UP013 - a table of names
    "SumoRlKeywords",
    {
        "net_file": str | Path,
        "route_file": str | Path,  # several with commas between them
        "out_csv_name": str | Path | None,
        "use_gui": bool,
        "virtual_display": tuple[int, int],  # not used: pictures need no display
        "begin_time": float,
        "num_seconds": float,
        "max_depart_delay": int,
        "waiting_time_memory": int,
        "time_to_teleport": int,
        "delta_time": int,
        "yellow_time": float,
        "min_green": float,
        "max_green": float,  # used with enforce_max_green alone, as in sumo-rl
        "enforce_max_green": bool,
        "single_agent": bool,
        "reward_fn": Any,
        "reward_weights": Sequence[float] | None,
        "observation_class": Callable[[Any], Any] | None,  # of a `TrafficSignal`, with __call__ and observation_space
        "add_system_info": bool,
        "add_per_agent_info": bool,
        "sumo_seed": str | int | None,
        "fixed_ts": bool,
        "sumo_warnings": bool,
        "additional_sumo_cmd": str | None,
        "ts_ids": Sequence[str] | None,
    },
    total=False,
)
"""sumo-rl's arguments, by its names (docs/coming-from-sumo-rl.md)."""
SAME = "same"
"""The city's demand with the seed as SUMO's in every episode, as in sumo-rl."""
DEFAULTS: Mapping[str, Any] = {
    "floors": "dialect", "demand": SAME, "seconds": 20000, "reward": "diff-waiting-time", "sumo_seed": "random",
    "add_system_info": True, "add_per_agent_info": True, "sumo_warnings": True,
}  # fmt: skip
"""Defaults of an environment with a net_file."""
STREET_ARGUMENTS: Mapping[str, Any] = {
    "begin_time": 0, "max_depart_delay": -1, "waiting_time_memory": 1000, "time_to_teleport": -1, "delta_time": 5,
    "yellow_time": 2, "min_green": 5, "max_green": 50, "enforce_max_green": False,
}  # fmt: skip
"""Arguments that city.toml has otherwise, and sumo-rl's defaults."""
ALIASES = {"reward_fn": "reward", "num_seconds": "seconds", "ts_ids": "target_tls"}
"""sumo-rl's name of an argument -> ours."""
SUMO_DEFAULTS = {"time-to-teleport": "300", "max-depart-delay": "-1", "waiting-time-memory": "100"}
"""SUMO's own defaults of the options that sumo-rl sets."""


def with_our_names(given: Mapping[str, Any], is_single: bool) -> dict[str, Any]:
    """The arguments of an environment by our names, with sumo-rl's defaults if there is a net_file. Raises InputError.

    `is_single`: it is the environment of one TL.
    """
    options = dict(given)
    for theirs, ours in ALIASES.items():
        if theirs in options:
            if options.get(ours) is not None:
                raise InputError(f"{theirs} and {ours} mean the same; pass one of them")
            options[ours] = options.pop(theirs)
    options.pop("virtual_display", None)
    if options.pop("fixed_ts", False):
        raise InputError(
            "fixed_ts: the programs of the signals are compared with policies by greenserve evaluate --arms fixed; "
            "leave it out"
        )
    takes_first = options.pop("single_agent", None)
    if takes_first is not None and bool(takes_first) != is_single:
        other = "greenserve.parallel_env" if is_single else "greenserve.env"
        raise InputError(f"single_agent = {takes_first!r} is the environment of {other}; call that")
    if options.pop("use_gui", False) or options.get("render_mode") == "human":
        options["transport"] = SUMO_GUI
    if options.get("net_file") is None:
        options.pop("net_file", None)
        if named := [name for name in ("route_file", *STREET_ARGUMENTS) if name in options]:
            raise InputError(f"{named[0]} belongs to net_file; without it city.toml has it (greenserve city init)")
        return options
    if isinstance(options.get("city"), City) or str(options.get("city", "city.toml")) != "city.toml":
        raise InputError("city and net_file both name the street; pass one of them")
    options = {**DEFAULTS, **{name: value for name, value in options.items() if value is not None}}
    if takes_first and options.get("target_tls") is None:
        options["target_tls"] = sorted(network.read(_file("net_file", options["net_file"])).signals)[:1]
    return options


def city_of(options: dict[str, Any], folder: Path) -> City:
    """The city of a net_file: every signal is a TL of dialect sumo-rl with its name; takes its arguments out of the
    options. Raises InputError.

    `folder`: where the SUMO configuration is written.
    """
    street = {name: options.pop(name, default) for name, default in STREET_ARGUMENTS.items()}
    for name, value in street.items():
        if name != "enforce_max_green" and (not isinstance(value, numbers.Real) or not math.isfinite(value)):
            raise InputError(f"{name} = {value!r} must be a number")
    if not street["delta_time"] > street["yellow_time"]:
        raise InputError(
            f"delta_time = {street['delta_time']} must be greater than yellow_time = {street['yellow_time']}"
        )
    if street["delta_time"] != int(street["delta_time"]):
        raise InputError(f"delta_time = {street['delta_time']} must be in whole seconds")
    # sumo-rl's episodes end with a decision
    options["seconds"] = math.ceil(options["seconds"] / street["delta_time"]) * street["delta_time"]
    net = _file("net_file", options.pop("net_file"))
    if "route_file" not in options:
        raise InputError("net_file needs route_file, the demand; pass it")
    routes = [_file("route_file", path) for path in str(options.pop("route_file")).split(",")]
    tls = {
        signal: TL(
            (signal,), "sumo-rl", signal, delta_time_s=int(street["delta_time"]), yellow_s=float(street["yellow_time"]),
            min_green_s=float(street["min_green"]),
            max_green_s=float(street["max_green"]) if street["enforce_max_green"] else None,
        )
        for signal in sorted(network.read(net).signals)
    }  # fmt: skip
    sumocfg = folder / "sumo-rl.sumocfg"
    sumo_options = {option: str(street[option.replace("-", "_")]) for option in SUMO_DEFAULTS}
    sumocfg.write_text(
        init.sumo_configuration(
            net, routes, folder, street["begin_time"], options["seconds"], sumo_options=sumo_options
        ),
        encoding="utf-8",
    )
    return City(net, Network(sumocfg), tls=tls)


def _file(name: str, path: Any) -> Path:
    if not isinstance(path, str | Path) or not Path(path).is_file():
        raise InputError(f"{name}: {path}: no such file; pass the path of a SUMO file")
    return Path(path)


def differing_options(sumocfg: Path) -> str:
    """Options with which a SUMO configuration differs from sumo-rl's environment, as a text; "" if there is none."""
    configured = sumo_files.options(sumocfg)
    differing = [
        f"{option} {value:g} (sumo-rl {init.SUMO_RL_OPTIONS[option]})"
        for option, default in SUMO_DEFAULTS.items()
        if (value := _number(configured.get(option, default))) != float(init.SUMO_RL_OPTIONS[option])
    ]
    return ", ".join(differing)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # SUMO refuses it by name


def sumo_options(options: Mapping[str, Any]) -> list[str]:
    """SUMO's further options. Raises InputError."""
    given = options["additional_sumo_cmd"]
    if given is not None and not isinstance(given, str):
        raise InputError(f"additional_sumo_cmd = {given!r} must be a text, such as '--step-length 0.5'")
    return [*(["--no-warnings", "false"] if options["sumo_warnings"] else []), *(given or "").split()]


def reward_of(reward: Any, weights: Sequence[float] | None, tls: Sequence[str], wrap: Callable[[Any], Any]) -> Reward:
    """A reward: a name or a function, by TL (dict), or a list with weights. Raises InputError.

    `wrap`: applied to functions.
    """
    if not isinstance(reward, Mapping | list | tuple):
        return _simple(reward, wrap)
    by_tl = reward if isinstance(reward, Mapping) else dict.fromkeys(tls, reward)
    if missing := [tl for tl in tls if tl not in by_tl]:
        raise InputError(f"reward: {missing[0]} is missing; name a reward for each of {', '.join(tls)}")
    parts: dict[tuple[int, SimpleReward, float], set[str]] = {}
    for tl in tls:
        is_list = isinstance(by_tl[tl], list | tuple)
        listed = by_tl[tl] if is_list else [by_tl[tl]]
        factors = list(weights if weights is not None else []) if is_list else [1.0]
        if len(factors) != len(listed):
            raise InputError(
                f"reward: a list of {len(listed)} needs reward_weights of {len(listed)} numbers: a reward is one number"
            )
        for k, (part, factor) in enumerate(zip(listed, factors, strict=True)):
            parts.setdefault((k, _simple(part, wrap), float(factor)), set()).add(tl)
    return tuple(RewardPart(part, factor, frozenset(own)) for (_, part, factor), own in parts.items())


def _simple(reward: Any, wrap: Callable[[Any], Any]) -> SimpleReward:
    if isinstance(reward, str) and ":" in reward:
        reward = rewards.load(reward)
    if callable(reward):
        wrapped: SimpleReward = wrap(reward)
        return wrapped
    if isinstance(reward, str) and reward in rewards.names():
        return reward
    raise InputError(f"reward = {reward!r} must be a function, module:function, or one of {', '.join(rewards.names())}")
