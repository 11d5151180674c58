"""The policy contract of a TL, from city.toml and the street, and the TLs that a policy can control."""

from collections.abc import Iterable, Mapping, Sequence

from city.config import TL, City
from city.errors import InputError
from city.lanes import is_internal
from city.network import StreetNetwork, signals_of
from protos import policy_pb2 as pb
from signals import dialects, policy_signals
from signals.movement_names import PROTECTED_PREFIX, is_protected, links_by_key, stated_by_signal
from signals.policy_signals import PolicySignal
from signals.safety.conflicts import GREEN, PROTECTED_GREEN, check_phases

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
    network, a key of max_red_s is no movement of the TL, or no green has the protected one that it asks for."""
    fit, reasons = [], {}
    for tl in tls:
        settings = city.tls[tl]
        networks = signals_of(city, settings, street)
        stated_by_signal({tl: networks}, {tl: settings.max_red_s}, f"{city.path}: [tl.{{tl}}] max_red_s", links_by_key)
        try:
            signals = policy_signals.of_tl(settings, networks)
            for signal in signals:
                check_controllable(tl, signal)
        except InputError as error:
            reasons[tl] = str(error)
        else:
            fit.append(tl)
            _check_protected(f"{city.path}: [tl.{tl}]", settings.max_red_s, signals)
    return fit, reasons


def max_red_notes(city: City, chosen: Iterable[tuple[str, Sequence[PolicySignal]]]) -> list[str]:
    """Lines about longest reds of movements that bound no link. `chosen`: (TL, its signals)."""
    return [
        f"{tl}: max_red_s {key} bounds no link: each is served by every green, or by none"
        for tl, signals in chosen
        for key in city.tls[tl].max_red_s
        if {True, False} not in _served(signals, key)
    ]


def _served(signals: Iterable[PolicySignal], key: str) -> list[set[bool]]:
    """By link of a key of max_red_s, whether each of its signal's greens serves it: {True, False} if some do."""
    colours = PROTECTED_GREEN if is_protected(key) else GREEN
    links = [(signal, link) for signal in signals for link in links_by_key(signal.network).get(key, ())]
    return [{green[link] in colours for green in signal.greens} for signal, link in links]


def _check_protected(where: str, keys: Iterable[str], signals: Sequence[PolicySignal]) -> None:
    """Raise InputError if max_red_s has a key of protected greens that no green has."""
    for key in filter(is_protected, keys):
        if not any(True in served for served in _served(signals, key)):
            raise InputError(
                f"{where} max_red_s: no green has G for {key}; give the program one, or write "
                f"{key.replace(PROTECTED_PREFIX, '')}, which a permissive green serves too"
            )


def program_notes(city: City, tls: Iterable[str], street: StreetNetwork) -> list[str]:
    """Lines about TLs whose program is not the network's first one, or not the one that runs. Raises InputError."""
    return [line for line in policy_signals.describe_programs(_chosen(city, tls, street)) if line]


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
    """(TLs that a policy can control, lines about TLs on their own programs and longest reds that bound no link).

    Raises InputError if there is none, or with `is_strict` if one is left out.
    """
    fit, reasons = controllable(city, tls, street)
    if reasons and (is_strict or not fit):
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise InputError(f"{next(iter(reasons.values()))}{more}")
    notes = [f"left on its own program: {reason}" for reason in reasons.values()]
    return fit, [*notes, *max_red_notes(city, _chosen(city, fit, street))]


def _chosen(city: City, tls: Iterable[str], street: StreetNetwork) -> list[tuple[str, list[PolicySignal]]]:
    return [(tl, policy_signals.of_tl(city.tls[tl], signals_of(city, city.tls[tl], street))) for tl in tls]
