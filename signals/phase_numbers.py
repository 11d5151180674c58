"""Phase numbers of a signal's movements, after NEMA's eight phases, from the directions of its approaches.

    through 2, 4, 6, 8   the approaches, clockwise by the side from which they come; 2 and 6 are the main street
    left 1, 3, 5, 7      opposite the through movement that they cross: 1 crosses 2, 3 crosses 4, and so on
    right                with the through movement of its approach
    crossing             with the through movement beside which it leads, on that movement's right-hand side
    9 to 16              a fifth approach and further ones: through 10, 12, 14, 16, their left turns 9, 11, 13, 15

The main street has the most lanes, then the fastest ones; of its two directions, phase 2 goes north or east.
https://ops.fhwa.dot.gov/publications/fhwahop08024/chapter4.htm describes the numbering.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from city.config import MAX_PHASE, City
from city.errors import InputError
from city.movements import Movement
from city.network import SignalNetwork, StreetNetwork, signals_of
from signals import movement_names
from signals.movement_names import (
    CROSSING,
    LEFT,
    RIGHT,
    THROUGH,
    U_TURN,
    MovementNames,
    SignalApproach,
    approaches,
    key_of,
    kind_of,
)

LEFT_BESIDE = {2: 5, 6: 1, 4: 7, 8: 3, 10: 9, 12: 11, 14: 13, 16: 15}
"""Through phase -> the phase of the left turn from the same approach."""
SLOTS = (2, 4, 6, 8)
"""Through phases of up to four approaches, a quarter turn apart."""
MAX_OPPOSITE_DEG = 45.0
"""Deviation from a straight line up to which two approaches are the two directions of one street."""
MAX_BESIDE_DEG = 60.0
"""Angle up to which a crossing leads beside a through movement."""
_ORDER = (THROUGH, LEFT, RIGHT, CROSSING)


@dataclass(frozen=True)
class NemaPhase:
    """One phase of a signal."""

    number: int
    links: tuple[int, ...]
    """Link indices whose colour is the phase's: of its through movement, or of its turns if it has none."""
    walk_links: tuple[int, ...]
    """Link indices of the crossings that walk with it."""
    description: str
    """Its movements, such as `eastbound through, eastbound right`."""


@dataclass(frozen=True)
class PhaseNumbers:
    """The phases of a signal."""

    signal: str
    phases: tuple[NemaPhase, ...]
    phase_of_lane: dict[str, int]
    """Incoming vehicle lane -> the phase of its through movement, else of its left turn, else of its right turn."""


def of_city(city: City, street: StreetNetwork) -> dict[str, PhaseNumbers]:
    """The phases of every signal of a network, with the numbers and names of city.toml. Raises InputError."""
    signals = {name: signals_of(city, tl, street) for name, tl in city.tls.items() if tl.phases or tl.movement_names}
    stated = {name: tl.phases for name, tl in city.tls.items()}
    return of_tls(street, signals, stated, movement_names.of_city(city, street), str(city.path))


def of_tls(
    street: StreetNetwork,
    signals_of_tl: Mapping[str, Sequence[SignalNetwork]],
    stated: Mapping[str, Mapping[str, int]],
    names: Mapping[str, MovementNames],
    where: str,
) -> dict[str, PhaseNumbers]:
    """The phases of every signal of a network, by the rule and with stated numbers.

    Args:
        street: the network.
        signals_of_tl: by TL with stated numbers, its signals.
        stated: by TL, numbers that take precedence, as in `number_phases`.
        names: by signal, the names of its movements; by default those of the rule.
        where: the file that states the numbers, at the beginning of an error line.

    Raises InputError.
    """
    of_signal = movement_names.stated_by_signal(signals_of_tl, stated, f"{where}: [tl.{{tl}}] phases")
    tl_of_signal = {signal.id: tl for tl, signals in signals_of_tl.items() for signal in signals}
    phases = {}
    for signal, network in sorted(street.signals.items()):
        try:
            phases[signal] = number_phases(network, of_signal.get(signal, {}), names.get(signal))
        except InputError as error:
            tl = tl_of_signal.get(signal, "NAME")
            raise InputError(f"{where}: signal {signal}: [tl.{tl}] phases: {error}") from None
    return phases


def number_phases(
    signal: SignalNetwork, stated: Mapping[str, int] = {}, names: MovementNames | None = None
) -> PhaseNumbers:
    """The phases of a signal.

    Args:
        signal: the signal.
        stated: numbers that take precedence, by `ROAD` (its through movement and what goes with it), `ROAD:left`,
            `ROAD:right` or `ROAD:crossing`.
        names: the names of its movements (default: those of the rule).

    Raises:
        InputError: there are more approaches than phases, or two approaches have the same number and it is not stated
            for both.
    """
    names = names or movement_names.movement_names(signal)
    roads = approaches(signal)
    through = _through_numbers(roads, stated)
    kinds = {each.road: {_kind(kind, each.kinds) for kind in each.kinds} for each in roads}
    number_of: dict[str, int] = {}
    for road, number in through.items():
        number_of[road] = number
        for kind in kinds[road] - {THROUGH}:
            beside = LEFT_BESIDE.get(number, number) if kind == LEFT and THROUGH in kinds[road] else number
            number_of[key_of(road, kind)] = stated.get(key_of(road, kind), beside)
    _check_unique(number_of, stated)
    links: dict[int, set[int]] = {}
    primary: dict[int, set[int]] = {}
    walk: dict[int, set[int]] = {}
    lanes: dict[str, dict[str, int]] = {}
    for k, movements in enumerate(signal.movements):
        for movement, (from_lane, _) in zip(movements, signal.links[k], strict=True):
            if movement.is_crossing:
                walk.setdefault(_crossing_number(movement, roads, through, stated), set()).add(k)
                continue
            kind = _kind(kind_of(movement), kinds[movement.road])
            number = number_of[key_of(movement.road, kind)]
            links.setdefault(number, set()).add(k)
            if kind_of(movement) == THROUGH:
                primary.setdefault(number, set()).add(k)
            lanes.setdefault(from_lane, {}).setdefault(kind, number)
    phases = tuple(
        NemaPhase(
            number,
            tuple(sorted(primary.get(number) or links.get(number) or ())),
            tuple(sorted(walk.get(number) or ())),
            ", ".join(names.of_links(links.get(number, set()) | walk.get(number, set()))),
        )
        for number in sorted(links.keys() | walk.keys())
    )
    phase_of_lane = {lane: next(by_kind[kind] for kind in _ORDER if kind in by_kind) for lane, by_kind in lanes.items()}
    return PhaseNumbers(signal.id, phases, phase_of_lane)


def _through_numbers(approaches: Sequence[SignalApproach], stated: Mapping[str, int]) -> dict[str, int]:
    if not approaches:
        return {}
    first = min(approaches, key=lambda approach: _main_street(approach, approaches))
    others = sorted(
        (approach for approach in approaches if approach is not first),
        key=lambda approach: ((approach.heading_deg - first.heading_deg) % 360.0, approach.road),
    )
    size = min(len(others), len(SLOTS) - 1)

    def deviation(assigned: tuple[tuple[int, ...], tuple[int, ...]]) -> float:
        chosen, slots = assigned
        angles = [(others[k].heading_deg - first.heading_deg) % 360.0 for k in chosen]
        return sum(abs(angle - 90.0 * slot) for angle, slot in zip(angles, slots, strict=True))

    choices = [(c, s) for c in combinations(range(len(others)), size) for s in combinations((1, 2, 3), size)]
    chosen, slots = min(choices, key=lambda choice: (round(deviation(choice)), choice))
    numbers = {first.road: SLOTS[0]}
    numbers.update((others[k].road, SLOTS[slot]) for k, slot in zip(chosen, slots, strict=True))
    extra = [approach.road for k, approach in enumerate(others) if k not in chosen]
    numbers.update((road, 10 + 2 * k) for k, road in enumerate(extra))
    numbers.update((road, number) for road, number in stated.items() if road in numbers)
    if too_many := [road for road, number in numbers.items() if number > MAX_PHASE]:
        raise InputError(
            f"the signal has {len(approaches)} approaches, more than there are phases: give {too_many[0]} the phase of "
            f'another approach, both by name, such as {{ "{first.road}" = 2, "{too_many[0]}" = 2 }}'
        )
    return numbers


def _main_street(approach: SignalApproach, approaches: Sequence[SignalApproach]) -> tuple[int, float, int, str]:
    """Sort key of approaches: lanes and speed of their street with its opposite direction, then the direction."""
    opposite = [
        other for other in approaches if 180.0 - angle_deg(other.heading_deg, approach.heading_deg) <= MAX_OPPOSITE_DEG
    ]
    lanes = len(approach.lanes) + max((len(other.lanes) for other in opposite), default=0)
    speed_mps = max(other.speed_mps for other in (approach, *opposite))
    # from north-west on, so that north and east come before south and west
    rotated_deg = (round(approach.heading_deg) + 45) % 360
    return -lanes, -speed_mps, rotated_deg, approach.road


def _kind(kind: str, kinds: set[str]) -> str:
    """Which of through, left and right a movement is numbered as; a U-turn is a left turn, or through without one."""
    if kind != U_TURN:
        return kind
    return LEFT if LEFT in kinds else THROUGH


def _check_unique(number_of: Mapping[str, int], stated: Mapping[str, int]) -> None:
    """Raise InputError if movements of two approaches have the same number, unless it is stated for both."""
    first: dict[int, str] = {}
    for name, number in number_of.items():
        other = first.setdefault(number, name)
        own_road, other_road = (text.partition(":")[0] for text in (name, other))
        is_stated, is_other_stated = ({text, text.partition(":")[0]} & stated.keys() for text in (name, other))
        if own_road == other_road or (is_stated and is_other_stated):
            continue
        raise InputError(f"{other} and {name} both have phase {number}; give one of them another number")


def _crossing_number(
    crossing: Movement, approaches: Sequence[SignalApproach], through: Mapping[str, int], stated: Mapping[str, int]
) -> int:
    """The phase with which a crossing walks: of the vehicles that pass it on their right, else on their left."""
    for road in crossing.crossed_roads:
        if key_of(road, CROSSING) in stated:
            return stated[key_of(road, CROSSING)]
    if not approaches:
        return SLOTS[0]
    for heading in (crossing.heading_deg - 90.0, crossing.heading_deg + 90.0):
        nearest = min(
            approaches, key=lambda approach: (round(angle_deg(approach.heading_deg, heading)), through[approach.road])
        )
        if angle_deg(nearest.heading_deg, heading) <= MAX_BESIDE_DEG:
            return through[nearest.road]
    return through[min(approaches, key=lambda approach: angle_deg(approach.heading_deg, crossing.heading_deg)).road]


def angle_deg(a_deg: float, b_deg: float) -> float:
    """The angle between two headings, 0 to 180 degrees."""
    return abs((a_deg - b_deg + 180.0) % 360.0 - 180.0)
