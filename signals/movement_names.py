"""Names of a signal's movements as engineers say them, and of its states, such as `northbound through + left`.

An approach is named by the direction in which its traffic goes, a crossing by the street that it crosses, or by the leg
of the junction. Where two have the same name, they also have the street's name, else the road's id.
"""

import difflib
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from city.config import City
from city.errors import InputError
from city.lanes import is_internal
from city.movements import Movement
from city.network import SignalNetwork, StreetNetwork

THROUGH, LEFT, RIGHT, U_TURN, CROSSING = "through", "left", "right", "U-turn", "crossing"
PEDESTRIANS = "pedestrians across "
PROTECTED_PREFIX = "protected "
"""Precedes the kind of a turn in a key of max_red_s: its protected greens (`G`) count alone."""
COMPASS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
_KINDS = {"s": THROUGH, "l": LEFT, "L": LEFT, "r": RIGHT, "R": RIGHT}
"""Kind by SUMO's `dir`; another one is a U-turn."""
_ORDER = (THROUGH, LEFT, RIGHT, U_TURN)
MAX_NEAR = 5
"""Movements named in an error, those whose keys are most like the one that is wrong."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class SignalApproach:
    """The lanes of a road that end at a signal."""

    road: str
    heading_deg: float
    street: str = ""
    speed_mps: float = 0.0
    lanes: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


def approaches(signal: SignalNetwork) -> list[SignalApproach]:
    """The roads on which vehicles come to a signal, sorted by their ids."""
    found: dict[str, SignalApproach] = {}
    for pairs, movements, speed_mps in zip(signal.links, signal.movements, signal.approach_mps, strict=True):
        for (from_lane, _), movement in zip(pairs, movements, strict=True):
            if movement.is_crossing:
                continue
            approach = found.setdefault(
                movement.road, SignalApproach(movement.road, _heading(movement), movement.street)
            )
            approach.speed_mps = max(approach.speed_mps, speed_mps)
            approach.lanes.add(from_lane)
            approach.kinds.add(kind_of(movement))
    return [found[road] for road in sorted(found)]


def kind_of(movement: Movement) -> str:
    """Through, left, right, U-turn or crossing."""
    return CROSSING if movement.is_crossing else _KINDS.get(movement.turn, U_TURN)


def key_of(road: str, kind: str) -> str:
    """A movement's key in city.toml: `ROAD` for through, else `ROAD:left` and so on."""
    return road if kind == THROUGH else f"{road}:{kind}"


def keys_of(signal: SignalNetwork) -> set[str]:
    """The keys of a signal's movements in city.toml. A U-turn has none."""
    keys = {key_of(each.road, kind) for each in approaches(signal) for kind in (THROUGH, *each.kinds - {U_TURN})}
    return keys | {key_of(road, CROSSING) for movement in _crossings(signal) for road in movement.crossed_roads}


def links_by_key(signal: SignalNetwork) -> dict[str, set[int]]:
    """The links of each kind of movement, such as `left`, and of each movement by its key; a U-turn has neither.

    A turn has two more keys, for its protected greens alone, such as `protected left` and `ROAD:protected left`.
    """
    found: dict[str, set[int]] = {}
    for link, movements in enumerate(signal.movements):
        for movement in movements:
            kind = kind_of(movement)
            roads = movement.crossed_roads if movement.is_crossing else (movement.road,)
            kinds = (kind, PROTECTED_PREFIX + kind) if kind in (LEFT, RIGHT) else (kind,) if kind != U_TURN else ()
            for key in (key for each in kinds for key in (each, *(key_of(road, each) for road in roads))):
                found.setdefault(key, set()).add(link)
    return found


def is_protected(key: str) -> bool:
    """True if a key of max_red_s is for protected greens alone."""
    return key.rpartition(":")[2].startswith(PROTECTED_PREFIX)


@dataclass(frozen=True)
class MovementGroup:
    """The links of a signal with one movement."""

    name: str
    """Such as `northbound left`, or `pedestrians across Main Street`."""
    approach: str
    """Such as `northbound`; what a crossing crosses."""
    kind: str
    heading_deg: float
    """Compass heading of its traffic; of a crossing, the direction of the leg that it crosses."""
    links: tuple[int, ...]
    lanes: tuple[str, ...] = ()
    """On which its links begin; of a crossing, its own and the walking areas. Empty if a record lacks them."""


@dataclass(frozen=True)
class MovementNames:
    """The movements of a signal, and the names of its states."""

    groups: tuple[MovementGroup, ...] = ()
    """Vehicles clockwise from north, then crossings."""
    stated: Mapping[str, str] = field(default_factory=dict)
    """State -> its name in city.toml."""

    def of_link(self, link: int) -> str:
        """A link, such as `northbound left (link 3)`; `link 3` if its movement is unknown."""
        named = [group.name for group in self.groups if link in group.links]
        return f"{named[0]} (link {link})" if named else f"link {link}"

    @functools.cached_property
    def lane_names(self) -> Mapping[str, str]:
        """By incoming lane or crossing, the names of its movements; the lane is added where two have the same ones."""
        names = {}
        for lane in dict.fromkeys(lane for group in self.groups for lane in group.lanes):
            links = {link for group in self.groups if lane in group.lanes for link in group.links}
            names[lane] = self._served("".join("G" if link in links else "r" for link in range(max(links) + 1)), "G")
        counts = Counter(names.values())
        is_alone = {lane: counts[name] == 1 or is_internal(lane) for lane, name in names.items()}
        return {lane: name if is_alone[lane] else f"{name} ({lane})" for lane, name in names.items()}

    def of_links(self, links: Collection[int]) -> list[str]:
        """The names of the movements of several links."""
        return [group.name for group in self.groups if not set(links).isdisjoint(group.links)]

    def of_state(self, state: str) -> str:
        """The name of a state by the movements that are green, else yellow; the state itself if it has no name."""
        if state in self.stated or not self.groups:
            return self.stated.get(state, state)
        greens, yellows, red_ambers = (self._served(state, colours) for colours in ("Gg", "y", "u"))
        texts = [greens] if greens else []
        texts += [f"yellow for {yellows}"] if yellows else []
        texts += [f"red-amber for {red_ambers}"] if red_ambers else []
        if texts:
            return "; ".join(texts)
        without_greens = (("off", "oO"), ("all red", "rs"))
        return next((name for name, colours in without_greens if state and set(state) <= set(colours)), state)

    def with_letters(self, state: str) -> str:
        """A state's name, and the state behind it, such as `northbound left (rrGr)`; the state if it has no name."""
        name = self.of_state(state)
        return f"{name} ({state})" if name != state else state

    def of_states(self, states: Iterable[str]) -> list[str]:
        """The names of several states; the state is added where two have the same name."""
        states = list(states)
        names = [self.of_state(state) for state in states]
        return [
            f"{name} ({state})" if names.count(name) > 1 else name for name, state in zip(names, states, strict=True)
        ]

    def of_green(self, greens: Sequence[str], index: int) -> str:
        """A green that an action may choose, such as `green 0 (northbound through)`."""
        return f"green {index} ({self.of_states(greens)[index]})"

    def _served(self, state: str, colours: str) -> str:
        """The movements of which a link has one of the colours; U-turns only if there is nothing else."""
        shown: dict[MovementGroup, set[str]] = {}
        for group in self.groups:
            of_group = {state[link] for link in group.links if link < len(state) and state[link] in colours}
            if of_group:
                shown[group] = of_group
        groups = [group for group in shown if group.kind != U_TURN] or list(shown)
        movements_of: dict[str, list[str]] = {}
        crossings, stated = list[str](), list[str]()
        for group in groups:
            if group.kind == CROSSING:
                crossings.append(group.name)
            elif group.name != f"{group.approach} {group.kind}":
                stated.append(group.name)
            else:
                permissive = "permissive " if group.kind == LEFT and shown[group] == {"g"} else ""
                movements_of.setdefault(group.approach, []).append(permissive + group.kind)
        approaches_of: dict[str, list[str]] = {}
        for approach, movements in movements_of.items():
            approaches_of.setdefault(" + ".join(movements), []).append(approach)
        texts = [f"{' and '.join(approaches)} {movements}" for movements, approaches in approaches_of.items()]
        if crossings:
            first, *others = crossings
            texts.append(" and ".join([first, *(name.removeprefix(PEDESTRIANS) for name in others)]))
        return ", ".join([*texts, *stated])


def of_city(city: City, street: StreetNetwork) -> dict[str, MovementNames]:
    """The names of every signal of a city, with those of city.toml. Raises InputError."""
    signals = {name: [street.signals[id] for id in tl.signals if id in street.signals] for name, tl in city.tls.items()}
    stated = {name: tl.movement_names for name, tl in city.tls.items()}
    where = f"{city.path}: [tl.{{tl}}] movement_names"
    of_signal = stated_by_signal(signals, stated, where, lambda signal: keys_of(signal) | _states(signal))
    return {each.id: movement_names(each, of_signal.get(each.id, {})) for own in signals.values() for each in own}


def stated_by_signal(
    signals_of_tl: Mapping[str, Sequence[SignalNetwork]],
    stated: Mapping[str, Mapping[str, V]],
    where: str,
    keys: Callable[[SignalNetwork], Collection[str]] = keys_of,
) -> dict[str, dict[str, V]]:
    """By signal, what city.toml states of its movements or states.

    Args:
        signals_of_tl: by TL, its signals.
        stated: by TL and key of a movement.
        where: the beginning of an error line, with {tl} for the TL's name.
        keys: the possible keys of a signal.

    Raises InputError if a key is none of the TL's.
    """
    of_signal: dict[str, dict[str, V]] = {}
    for tl, values in stated.items():
        keys_by_signal = {signal.id: keys(signal) for signal in signals_of_tl.get(tl, ())}
        for key, value in values.items():
            owners = [signal for signal, keys in keys_by_signal.items() if key in keys]
            if not owners:
                known = set().union(*keys_by_signal.values())
                near = ", ".join(difflib.get_close_matches(key, known, MAX_NEAR, cutoff=0.0))
                raise InputError(
                    f"{where.format(tl=tl)}: {key} is not a movement of its signals; "
                    f"the nearest of {len(known)} are {near}"
                )
            for signal in owners:
                of_signal.setdefault(signal, {})[key] = value
    return of_signal


def movement_names(signal: SignalNetwork, stated: Mapping[str, str] = {}) -> MovementNames:
    """The names of a signal's movements.

    Args:
        signal: the signal.
        stated: names of city.toml, by `ROAD` (the approach), `ROAD:left`, `ROAD:right`, `ROAD:crossing` or a state.
    """
    by_road = {each.road: each for each in approaches(signal)}
    approach_names = _distinct({road: _approach_names(each) for road, each in by_road.items()})
    approach_names |= {road: name for road, name in stated.items() if road in by_road}
    crossings = {movement.crossed_roads: movement for movement in _crossings(signal)}
    crossing_names = _distinct({roads: _crossing_names(movement) for roads, movement in crossings.items()})
    links: dict[tuple[str, str, tuple[str, ...]], set[int]] = {}
    lanes: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for link, (pairs, movements) in enumerate(zip(signal.links, signal.movements, strict=True)):
        for pair, movement in zip(pairs, movements, strict=True):
            key = ("" if movement.is_crossing else movement.road, kind_of(movement), movement.crossed_roads)
            links.setdefault(key, set()).add(link)
            lanes.setdefault(key, set()).update(pair if movement.is_crossing else pair[:1])
    groups = []
    for key, of_group in links.items():
        road, kind, crossed_roads = key
        if kind == CROSSING:
            approach, heading_deg = crossing_names[crossed_roads], _heading(crossings[crossed_roads])
            default = f"{PEDESTRIANS}{approach}" if approach else "pedestrians"
            stated_keys = [key_of(crossed, CROSSING) for crossed in crossed_roads]
        else:
            approach, heading_deg = approach_names[road], by_road[road].heading_deg
            default = f"{approach} {kind}"
            stated_keys = [key_of(road, kind)] if kind != THROUGH else []
        name = next((stated[each] for each in stated_keys if each in stated), default)
        of_lanes = tuple(sorted(lanes[key]))
        groups.append(MovementGroup(name, approach, kind, heading_deg, tuple(sorted(of_group)), of_lanes))
    named_states = {state: stated[state] for state in _states(signal) if state in stated}
    return MovementNames(tuple(sorted(groups, key=_place)), named_states)


def _states(signal: SignalNetwork) -> set[str]:
    return {phase.state for program in signal.programs for phase in program.phases}


def _place(group: MovementGroup) -> tuple[bool, int, str, int]:
    kind = _ORDER.index(group.kind) if group.kind in _ORDER else 0
    eighth = round(group.heading_deg / 45.0) % len(COMPASS)
    return group.kind == CROSSING, eighth, group.approach, kind


def _crossings(signal: SignalNetwork) -> list[Movement]:
    return [movement for movements in signal.movements for movement in movements if movement.is_crossing]


def _approach_names(approach: SignalApproach) -> Sequence[str]:
    bound = f"{_compass(approach.heading_deg)}bound"
    return bound, f"{bound} on {approach.street or approach.road}", f"{bound} on {approach.road}"


def _crossing_names(movement: Movement) -> Sequence[str]:
    """Names of what a crossing crosses, the preferred one first."""
    if not movement.crossed_roads:
        return ("",)
    leg = f"the {_compass(_heading(movement))} leg"
    preferred = (movement.street, f"{movement.street} ({leg})") if movement.street else (leg,)
    return (*preferred, " and ".join(movement.crossed_roads))


def _distinct(names: Mapping[K, Sequence[str]]) -> dict[K, str]:
    """By key, the first of its names that no other key has too; else its last."""
    return {
        key: next((name for name in own if sum(name in other for other in names.values()) == 1), own[-1])
        for key, own in names.items()
    }


def _heading(movement: Movement) -> float:
    """Heading of a movement, degrees; 0 in a network with numbers out of range."""
    return movement.heading_deg if math.isfinite(movement.heading_deg) else 0.0


def _compass(heading_deg: float) -> str:
    return COMPASS[round(heading_deg / 45.0) % len(COMPASS)]
