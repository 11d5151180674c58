"""The arguments of an environment, and the checks of what they name."""

import difflib
import importlib.util
import math
import numbers
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from city import config
from city.config import FLOORS, City
from city.errors import InputError
from environment.sumo_rl import SAME, SumoRlKeywords, city_of, differing_options, reward_of, with_our_names
from protos import policy_pb2 as pb
from signals import contract
from signals.dialects.street import DIALECT as STREET
from simulation import model_files
from simulation.demand import MAX_SUMO_SEED, Demand, SimulatedDemand, varied
from simulation.model_files import Versions
from simulation.street_simulation import TRANSPORTS, street_with_demand
from simulation.target_tls import TargetTask, select_tls

RENDER_MODES = ("human", "rgb_array")
VARIED, CITY, _ = DEMANDS = ("varied", "city", SAME)
GivenDemand = str | Path | SimulatedDemand
"""One of DEMANDS, a route file, or a demand of the user's own."""
CALLER = 5
"""Stack level of the caller of `parallel_env` or `env`, from a function that `Episodes` calls."""


class Keywords(SumoRlKeywords, total=False):
    """The arguments that `parallel_env` and `env` take by name alone."""

    server: str | None
    """HOST:PORT of the server of the infer TLs' models (default: an embedded one is started)."""
    infer_model_number: int | None
    """Their model number (default: the newest)."""
    infer_model_path: str | Path | None
    """Folder of their models (default: [serving] models_dir)."""
    reward: Any
    """A name, a function of a TL's readings or its `module:function`, these by TL, or a list with `reward_weights`
    (docs/environment.md)."""
    floors: str | None
    """`street` or `dialect` (default: [safety] floors)."""
    demand: GivenDemand
    """`varied` by seed as in a training, `city` or `same` for the city's routes, a route file, or a `Demand`."""
    seconds: float | None
    """Simulated time of an episode (default: until the sumocfg's end)."""
    tripinfo: str | Path | None
    """File of the trips of the last episode."""
    episode_summary: bool
    """True: the last info has the delay, duration and stops of all vehicles; SUMO writes its trips for them."""
    transport: str | None
    """`libsumo`, one simulation a process, `traci`, a SUMO program for each, or `sumo-gui`, with its window (default:
    `libsumo` if it is free)."""
    render_mode: str | None
    """`rgb_array` for pictures of the street; `human` for sumo-gui."""


class Options(Keywords, total=False):
    """All arguments."""

    city: str | Path | City
    target_tls: str | Iterable[str] | None
    infer_tls: str | Iterable[str] | None


DEFAULTS = Options(
    city="city.toml", target_tls=None, infer_tls=(), server=None, infer_model_number=None, infer_model_path=None,
    reward="delay", floors=None, demand="varied", seconds=None, tripinfo=None, episode_summary=True, transport=None,
    render_mode=None, reward_weights=None, observation_class=None, add_system_info=False, add_per_agent_info=False,
    out_csv_name=None, sumo_seed=None, sumo_warnings=False, additional_sumo_cmd=None,
)  # fmt: skip


def completed(given: Options, is_single: bool, folder: Callable[[], Path]) -> Options:
    """The options of an environment with their defaults. Raises InputError.

    `is_single`: it is the environment of one TL. `folder`: makes one for the files of a city without a city.toml.
    """
    known = {*Options.__required_keys__, *Options.__optional_keys__}
    if unknown := [name for name in given if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 1)
        raise InputError(
            f"there is no argument {unknown[0]}; {f'did you mean {near[0]}?' if near else 'leave it out'} "
            "(docs/environment.md)"
        )
    options: Any = {**DEFAULTS, **with_our_names(given, is_single)}
    _check_values(options)
    if "net_file" in options:
        options["city"] = city_of(options, folder())
    return options  # type: ignore[no-any-return]


def select(options: Options, wrap: Callable[[Any], Any]) -> tuple[TargetTask, Versions]:
    """Check the TLs and models of the options; return the task, and the versions for an embedded server.

    Raises InputError. `wrap`: applied to reward functions.
    """
    city = options["city"]
    if is_file := not isinstance(city, City):
        if not Path(city).is_file():
            raise InputError(
                f"city: {city}: no such file; pass the path of a city.toml (greenserve city init writes one)"
            )
        city = config.load(Path(city))
    if options["floors"] is not None:
        city = replace(city, safety=replace(city.safety, floors=options["floors"]))
    targets, infers = _tls(options, city)
    street = street_with_demand(city, (*targets, *infers), options["seconds"])
    fit, notes = contract.require_controllable(city, targets, street, is_strict=options["target_tls"] is not None)
    for note in notes:
        warnings.warn(note, stacklevel=CALLER)
    sumocfg = city.network.sumocfg
    if is_file and city.safety.floors == "dialect" and sumocfg and (differing := differing_options(sumocfg)):
        warnings.warn(
            f"{sumocfg}: its simulation differs from sumo-rl's in {differing}; set these options in its <processing> "
            "for the same vehicles",
            stacklevel=CALLER,
        )
    versions: Versions = {}
    number = options["infer_model_number"]
    if infers and options["server"] is None:
        path = options["infer_model_path"]
        models_dir = city.serving.models_dir if path is None else Path(path)
        versions = model_files.find(models_dir, dict.fromkeys(infers, number))
    reward = reward_of(options["reward"], options["reward_weights"], fit, wrap)
    seconds = options["seconds"]
    return TargetTask(city, tuple(fit), tuple(infers), options["server"] or "", number, reward, seconds), versions


def warn_if_moments_differ(contracts: Sequence[pb.PolicyContract]) -> None:
    """Warn if target TLs decide at different moments: a learner that takes every step for a decision learns from
    repetitions."""
    first, *others = map(_moments, contracts)
    for k, moments in enumerate(others, 1):
        if moments != first:
            warnings.warn(
                f"{contracts[0].tl} and {contracts[k].tl} decide at different moments: in the steps between, a TL's "
                "observation is that of its last decision and its reward 0; leave out steps with "
                'infos[tl]["decides"] = False, or choose target TLs of one interval (docs/environment.md)',
                stacklevel=CALLER,
            )
            return


def warn_of_tensorflow() -> None:
    """Warn if this process has loaded TensorFlow beside a PyTorch with Triton."""
    if {"tensorflow", "torch"} <= sys.modules.keys() and importlib.util.find_spec("triton"):
        warnings.warn(
            "TensorFlow is loaded beside PyTorch with Triton, which may crash without a message; import env from "
            "greenserve before stable_baselines3, which imports TensorFlow through TensorBoard",
            stacklevel=CALLER,
        )


def _moments(contract: pb.PolicyContract) -> object:
    """Equal for TLs that decide at the same moments, as far as their contracts tell."""
    if contract.observation.dialect == STREET.name:
        return contract.tl  # as soon as its green may change
    cycle_s = sum(phase.duration_s for phase in contract.signals[0].phases) if contract.timing.control_cycle else 0.0
    return contract.timing.decision_interval_s, contract.timing.control_cycle * cycle_s


def _check_values(options: Options) -> None:
    values: Mapping[str, object] = options
    of_names = {"floors": (None, *FLOORS), "transport": (None, *TRANSPORTS), "render_mode": (None, *RENDER_MODES)}
    for name, choices in of_names.items():
        value = values[name]
        if not isinstance(value, str | NoneType) or value not in choices:
            raise InputError(f"{name} = {value!r} must be one of {', '.join(map(str, choices))}")
    seconds, number, seed = options["seconds"], options["infer_model_number"], options["sumo_seed"]
    for name, is_valid, meaning in (
        ("city", isinstance(options["city"], str | Path | City), "the path of a city.toml"),
        ("server", isinstance(options["server"], str | NoneType), "HOST:PORT"),
        ("infer_model_path", isinstance(options["infer_model_path"], str | Path | NoneType), "a path"),
        ("tripinfo", isinstance(options["tripinfo"], str | Path | NoneType), "a path"),
        ("episode_summary", isinstance(options["episode_summary"], bool), "True or False"),
        ("out_csv_name", isinstance(options["out_csv_name"], str | Path | NoneType), "the beginning of a path"),
        ("observation_class", callable(options["observation_class"] or str), "a class"),
        ("sumo_seed", seed in (None, "random") or isinstance(seed, numbers.Integral), "an integer or 'random'"),
        ("seconds", isinstance(seconds, numbers.Real | NoneType) and not isinstance(seconds, bool), "a number"),
        (
            "infer_model_number",
            isinstance(number, numbers.Integral | NoneType) and not isinstance(number, bool),
            "an integer",
        ),
    ):
        if not is_valid:
            raise InputError(f"{name} = {values[name]!r} must be {meaning}")
    if seconds is not None and not 1 <= seconds < math.inf:
        raise InputError(f"seconds = {seconds:g} must be at least 1")
    # SUMO over libsumo cannot start again in this process after an output file that it could not create
    if options["tripinfo"] is not None and not (folder := Path(options["tripinfo"]).absolute().parent).is_dir():
        raise InputError(f"tripinfo: {folder}: no such folder; create it, or pass another path")
    check_demand(options["demand"])


def _tls(options: Options, city: City) -> tuple[list[str], list[str]]:
    """(target TLs, infer TLs). Raises InputError."""
    if not city.tls:
        raise InputError(f"{city.path}: has no [tl.NAME]; add the TLs (greenserve city init writes them)")
    targets = None if options["target_tls"] is None else _listed(options["target_tls"], "target_tls")
    infers = [] if options["infer_tls"] is None else _listed(options["infer_tls"], "infer_tls")
    served = {name: options[name] for name in ("server", "infer_model_path", "infer_model_number")}
    return select_tls(city, ("target_tls", targets), ("infer_tls", infers), served)


def _listed(tls: object, name: str) -> list[str]:
    """The names of an argument; [] without one. Raises InputError."""
    if isinstance(tls, str):
        return [tls] if tls else []
    listed: list[Any] = list(tls) if isinstance(tls, Iterable) else [tls]
    if wrong := [tl for tl in listed if not isinstance(tl, str)]:
        raise InputError(
            f'{name}: {wrong[0]!r} is not the name of a TL; pass names, such as ["SA101", "SA102"] or "SA101,SA102"'
        )
    return listed


def check_demand(demand: GivenDemand) -> None:
    """Raise InputError if a demand is neither a name of DEMANDS, nor a file, nor a demand."""
    if isinstance(demand, str | Path):
        if demand not in DEMANDS and not Path(demand).is_file():
            raise InputError(f"demand: {demand}: no such file; pass {', '.join(DEMANDS)}, a route file, or a Demand")
    elif not callable(getattr(demand, "options", None)):
        raise InputError(f"demand = {demand!r} must be {', '.join(DEMANDS)}, a route file, or a Demand")


def demand_of(demand: GivenDemand, seed: int, episode: int) -> SimulatedDemand:
    """The demand of an episode since `reset(seed=seed)`.

    `varied`: that of the same episode of a training with this seed. `city` and route files: SUMO's seed is the sum of
    seed and episode. `same`: the city's, with the seed as SUMO's in every episode, as in sumo-rl. A demand of the
    user's own is the same in every episode.
    """
    if demand == VARIED:
        return varied(np.random.default_rng([seed, episode]), varies=True)
    if isinstance(demand, str | Path):
        sumo_seed = seed if demand == SAME else seed + episode
        route_file = None if demand in (CITY, SAME) else Path(demand).resolve()
        return Demand(sumo_seed % MAX_SUMO_SEED, route_file=route_file)
    return demand
