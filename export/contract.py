"""The policy contract of a TL, out of city.toml and the street network."""

from dataclasses import replace
from typing import Any

from city.config import SAPPO_ACTIONS, SAPPO_STATES, TL, City
from city.errors import InputError
from city.network import Program, SignalNetwork, StreetNetwork
from export.locate import Candidate
from protos import policy_pb2 as pb
from serving import contract as contracts

# the dialects' defaults, as the trainers have them
SUMO_RL_DELTA_S, SUMO_RL_YELLOW_S, SUMO_RL_MIN_GREEN_S = 5, 2.0, 5.0
SAPPO_CONTROL_CYCLE, SAPPO_ADD_TIME_S, SAPPO_OFFSET_RANGE = 5, 2, 2
KC_YELLOW_S, KC_ACTION_T_S, KC_ACTIONP = 3.0, 12, 0.2


def build(city: City, tl: TL, street: StreetNetwork) -> pb.Policy:
    """The contract of a TL, complete but for its origin. Raises InputError."""
    networks = []
    for signal in tl.signals:
        if signal not in street.signals:
            raise InputError(
                f"{city.path}: [tl.{tl.name}] signal {signal} is not in {street.net_file}; "
                f"there are {', '.join(sorted(street.signals))}"
            )
        networks.append(street.signals[signal])
    signals = [_signal(tl, network) for network in networks]
    return _sumo_rl(tl, signals) if tl.dialect == contracts.SUMO_RL else _sappo(city, tl, signals)


def settle(city: City | None, name: str, candidate: Candidate) -> TL | None:
    """A TL's settings: city.toml's, completed with what the checkpoint's file name tells; None without a city.

    Raises InputError where the two say different things, or where neither says
    what a sappo TL needs.
    """
    settings = city.tls.get(name) if city else None
    if city is None or settings is None:
        return None
    told: dict[str, Any] = {}
    for key in ("state", "action", "offset_range", "control_cycle", "add_time_s", "actionp", "action_t_s"):
        said = candidate.said(key)
        if said is None:
            continue
        if settings.dialect != contracts.SAPPO:
            raise InputError(
                f"{name}: {candidate.label} says {key} {said}, a setting of the sappo dialect, but {city.path} says dialect "
                f"{settings.dialect}; mend the one that is wrong"
            )
        theirs: Any = said if key in ("state", "action") else float(said) if key == "actionp" else int(said)
        least, most = {"actionp": (0, 1), "add_time_s": (0, 1000)}.get(key, (1, 1000))
        if key not in ("state", "action") and not least <= theirs <= most:
            raise InputError(f"{name}: {candidate.label} says {key} {said}; it must lie between {least} and {most}")
        told[key] = one(city, name, candidate, key, getattr(settings, key), theirs)
    settled = replace(settings, **told)
    for key, known in (("state", SAPPO_STATES), ("action", SAPPO_ACTIONS)):
        value = getattr(settled, key)
        if settled.dialect == contracts.SAPPO and value not in known:
            where = f"{candidate.label} says {key} {value}" if value else f"neither {candidate.label} nor {city.path} tells {key}"
            raise InputError(f"{name}: {where}; it must be one of {', '.join(known)}, in [tl.{name}]")
    return settled


def one(city: City | None, name: str, candidate: Candidate, key: str, mine: Any, theirs: Any) -> Any:
    """What city.toml and a file name both may say. Raises InputError where they say different things."""
    if mine is not None and theirs is not None and mine != theirs:
        said, says = (", ".join(map(str, v)) if isinstance(v, tuple) else v for v in (theirs, mine))
        told = city.path if city else "city.toml"
        raise InputError(f"{name}: {candidate.label} says {key} {said}, but {told} says {says}; mend the one that is wrong")
    return theirs if mine is None else mine


def incomplete(tl: str, observation_size: int, action_kind: str, action_size: int) -> pb.Policy:
    """The contract of a checkpoint without a street: its sizes, and what it lacks."""
    return pb.Policy(
        tl=tl,
        observation=pb.Observation(size=observation_size),
        action=pb.Action(kind=action_kind, size=action_size),
        missing=["signals", "features", "timing"],
    )


def _program(tl: TL, network: SignalNetwork) -> Program:
    # sumo-rl takes the first program logic; sappo shifts the plan that runs
    return network.first_program if tl.dialect == contracts.SUMO_RL else network.plan


def _signal(tl: TL, network: SignalNetwork) -> pb.Signal:
    program = _program(tl, network)
    phases = [pb.Phase(state=p.state, duration_s=p.duration_s, min_s=p.min_s, max_s=p.max_s) for p in program.phases]
    if not program.greens:
        raise InputError(f"{tl.name}: program {program.id!r} of signal {network.id} has no green phase")
    return pb.Signal(id=network.id, lane_ids=network.lanes, program_id=program.id, offset_s=program.offset_s, phases=phases)


def _sumo_rl(tl: TL, signals: list[pb.Signal]) -> pb.Policy:
    greens = len(contracts.green_states(phase.state for phase in signals[0].phases))
    features = contracts.features(contracts.SUMO_RL, "", signals, greens)
    return pb.Policy(
        tl=tl.name,
        signal_ids=[signal.id for signal in signals],
        signals=signals,
        observation=pb.Observation(dialect=contracts.SUMO_RL, size=len(features), features=features, normalisation="none"),
        action=pb.Action(kind=contracts.CATEGORICAL, size=greens, choices=[greens]),
        timing=pb.Timing(
            decision_interval_s=_or(tl.delta_time_s, SUMO_RL_DELTA_S),
            yellow_s=_or(tl.yellow_s, SUMO_RL_YELLOW_S),
            all_red_s=_or(tl.all_red_s, 0.0),
            min_green_s=_or(tl.min_green_s, SUMO_RL_MIN_GREEN_S),
            max_green_s=_or(tl.max_green_s, 0.0),
        ),
    )


def _sappo(city: City, tl: TL, signals: list[pb.Signal]) -> pb.Policy:
    state, kind = tl.state or "", tl.action or ""
    features = contracts.features(contracts.SAPPO, state, signals)
    if kind in contracts.PLAN_ACTIONS:
        _check_plans(tl, signals)
    timing = pb.Timing(
        yellow_s=_or(tl.yellow_s, KC_YELLOW_S),
        all_red_s=_or(tl.all_red_s, 0.0),
        min_green_s=_or(tl.min_green_s, city.safety.min_green_s),
        max_green_s=_or(tl.max_green_s, city.safety.max_green_s or 0.0),
    )
    if kind == "kc":
        timing.decision_interval_s = KC_YELLOW_S + _or(tl.action_t_s, KC_ACTION_T_S)
    else:
        timing.control_cycle = int(_or(tl.control_cycle, SAPPO_CONTROL_CYCLE)) or 1
    return pb.Policy(
        tl=tl.name,
        signal_ids=[signal.id for signal in signals],
        signals=signals,
        observation=pb.Observation(
            dialect=contracts.SAPPO, state=state, size=len(features), features=features, normalisation="block-maximum"
        ),
        action=pb.Action(
            kind=kind,
            size=contracts.action_size(kind, len(signals)),
            actionp=_or(tl.actionp, KC_ACTIONP),
            add_time_s=int(_or(tl.add_time_s, SAPPO_ADD_TIME_S)),
            offset_range=int(_or(tl.offset_range, SAPPO_OFFSET_RANGE)) or 1,
        ),
        timing=timing,
    )


def _check_plans(tl: TL, signals: list[pb.Signal]) -> None:
    """Plans are shifted second by second: whole seconds, and one cycle for the whole TL."""
    cycles = {signal.id: sum(phase.duration_s for phase in signal.phases) for signal in signals}
    for signal in signals:
        if any(phase.duration_s != int(phase.duration_s) or phase.duration_s < 1 for phase in signal.phases):
            raise InputError(f"{tl.name}: action {tl.action} needs a plan of whole seconds; signal {signal.id} has other phases")
    if len(set(cycles.values())) > 1:
        told = ", ".join(f"{signal} {cycle:g} s" for signal, cycle in cycles.items())
        raise InputError(f"{tl.name}: action {tl.action} needs one cycle length for all its signals; they have {told}")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
