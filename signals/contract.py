"""The policy contract of a TL, from city.toml and the street, and the TLs that a policy can control."""

from collections.abc import Iterable, Mapping, Sequence

from city.config import TL, City
from city.errors import InputError
from city.lanes import is_internal
from city.network import StreetNetwork, signals_of
from protos import policy_pb2 as pb
from signals import dialects, policy_signals
from signals.movement_names import links_by_key, stated_by_signal
from signals.policy_signals import PolicySignal
from signals.safety.conflicts import check_phases

LEAVE_OUT = "leave it out of city.toml, as greenserve city init does"
"""Remedy for a signal that cannot be controlled, also where city.toml has no tables of TLs."""


def build(
    city: City,
    tl: TL,
    street: StreetNetwork,
    takes_first: bool = False,
    trained_programs: Mapping[str, str] | None = None,
) -> pb.PolicyContract:
    """The contract of a TL, complete except for its origin. Raises InputError.

    `takes_first`, `trained_programs`: see `policy_signals.of_tl`.
    """
    signals = policy_signals.of_tl(tl, signals_of(city, tl, street), takes_first, trained_programs)
    contract = dialects.find(tl.dialect, f"{city.path}: [tl.{tl.name}]").build_contract(tl, signals, city.safety)
    for signal in signals:
        _check_program(tl.name, signal)
    return contract


def incomplete(tl: str, observation_size: int, action_kind: str, action_size: int) -> pb.PolicyContract:
    """The contract of a checkpoint without a street network: its sizes, and which parts are missing."""
    return pb.PolicyContract(
        tl=tl,
        observation=pb.Observation(size=observation_size),
        action=pb.Action(kind=action_kind, size=action_size),
        missing=["signals", "features", "timing"],
    )


def controllable(city: City, tls: Iterable[str], street: StreetNetwork) -> tuple[list[str], dict[str, str]]:
    """(TLs that a policy can control, other TL -> reason and remedy). Raises InputError if a signal is not in the
    network, or a key of max_red_s is no movement of the TL."""
    fit, reasons = [], {}
    for tl in tls:
        settings = city.tls[tl]
        networks = signals_of(city, settings, street)
        stated_by_signal({tl: networks}, {tl: settings.max_red_s}, f"{city.path}: [tl.{{tl}}] max_red_s", links_by_key)
        try:
            for signal in policy_signals.of_tl(settings, networks):
                check_controllable(tl, signal)
        except InputError as error:
            reasons[tl] = str(error)
        else:
            fit.append(tl)
    return fit, reasons


def program_notes(city: City, tls: Iterable[str], street: StreetNetwork) -> list[str]:
    """Lines about TLs whose program is not the network's first one, or not the one that runs. Raises InputError."""
    chosen = [(tl, policy_signals.of_tl(city.tls[tl], signals_of(city, city.tls[tl], street))) for tl in tls]
    return [line for line in policy_signals.describe_programs(chosen) if line]


def check_controllable(tl: str, signal: PolicySignal) -> None:
    """Raise InputError if a policy has nothing to choose at a signal, or a state that is never permitted."""
    if signal.network.invalid:
        raise InputError(
            f"{tl}: signal {signal.id}: {signal.network.invalid}; correct the network (netconvert overflows with very "
            f"many lanes at a junction), or {LEAVE_OUT}"
        )
    if not any(not is_internal(lane) for lane in signal.network.lanes):
        raise InputError(f"{tl}: signal {signal.id} has no lane for vehicles; {LEAVE_OUT}")
    if len(signal.greens) != 1:
        _check_program(tl, signal)
    else:
        raise InputError(
            f"{tl}: program {signal.program.id!r} of signal {signal.id} has one green, so there is nothing to choose; "
            f"{LEAVE_OUT}"
        )


def _check_program(tl: str, signal: PolicySignal) -> None:
    states = [phase.state for phase in signal.program.phases]
    check_phases(f"{tl}: signal {signal.id}", signal.network, signal.program.id, states)
    if not signal.greens:
        raise InputError(
            f"{tl}: program {signal.program.id!r} of signal {signal.id} has no green phase; add a phase with G or g, "
            "without y"
        )


def require_controllable(
    city: City, tls: Sequence[str], street: StreetNetwork, is_strict: bool
) -> tuple[list[str], list[str]]:
    """(TLs that a policy can control, a line for each that stays on its own program).

    Raises InputError if there is none, or with `is_strict` if one is left out.
    """
    fit, reasons = controllable(city, tls, street)
    if reasons and (is_strict or not fit):
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise InputError(f"{next(iter(reasons.values()))}{more}")
    return fit, [f"left on its own program: {reason}" for reason in reasons.values()]
