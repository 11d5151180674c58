"""Signal programs of many kinds, built from the movements at a signal. Every state obeys the network's right of way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from city.network import Program, ProgramPhase, SignalNetwork, green_states
from pretraining.synthetic.junction_movements import Movements, SyntheticApproach
from signals.green_phases import yellow_between
from signals.policy_signals import distinct_greens
from signals.safety.conflicts import GREEN, ConflictRules
from signals.safety.safety_times import yellow_s_at

MIN_GREEN_S, MAX_GREEN_S = 15, 45
MAX_CYCLE_GREEN_S = 200
"""Sum of a program's greens, unless the minimum of each takes longer."""
MIN_YELLOW_S = 3.0
MAX_ALL_RED_S = 3
ALL_RED_SHARE = 0.3
"""Share of the programs with an all-red phase after each yellow."""
OVERLAP_SHARE = 0.3
"""Share of the programs that give green to every right turn that nothing crosses."""
MIN_MANY_GREENS, MAX_GREENS = 8, 12
PROGRAM_ID = "synthetic"


class ProgramKind(StrEnum):
    """How a program's greens are made."""

    UNION = "union"
    """The greens of both of netconvert's layouts."""
    LEFT_ONLY = "left-only"
    """netconvert's greens, and of each the permissive links alone, also on lanes that they share with through
    traffic."""
    DUAL_RING = "dual-ring"
    """NEMA's phases of two rings: both lefts, one direction alone, both through movements."""
    SPLIT = "split"
    """One approach at a time."""
    LATE_START = "late-start"
    """A direction alone, then with the opposite one."""
    PROTECTED_PERMISSIVE = "protected-permissive"
    """Both directions with permissive lefts, then the lefts alone."""
    MANY = "many"
    """8 to 12 greens of the kinds above."""


KINDS = {
    ProgramKind.UNION: 0.12,
    ProgramKind.LEFT_ONLY: 0.26,
    ProgramKind.DUAL_RING: 0.18,
    ProgramKind.SPLIT: 0.08,
    ProgramKind.LATE_START: 0.12,
    ProgramKind.PROTECTED_PERMISSIVE: 0.14,
    ProgramKind.MANY: 0.10,
}
"""Probability of each kind."""
KINDS_OF_MANY = (
    ProgramKind.UNION,
    ProgramKind.LEFT_ONLY,
    ProgramKind.PROTECTED_PERMISSIVE,
    ProgramKind.DUAL_RING,
    ProgramKind.SPLIT,
)


@dataclass(frozen=True)
class SignalSite:
    """A signal, its movements, and the greens that netconvert gives it."""

    signal: SignalNetwork
    """Its right of way is that of all greens of both layouts."""
    movements: Movements
    layouts: tuple[tuple[str, ...], ...]
    """netconvert's greens: of the network's layout, and of the other one."""

    @classmethod
    def of_layouts(cls, signal: SignalNetwork, other: SignalNetwork, movements: Movements) -> "SignalSite":
        """A signal as netconvert builds it with two layouts, which differ in nothing but their programs."""
        both = replace(signal, yields=signal.yields | other.yields, permissive=signal.permissive | other.permissive)
        greens = [green_states(phase.state for phase in each.first_program.phases) for each in (signal, other)]
        return cls(both, movements, (tuple(greens[0]), tuple(greens[1])))


def draw_greens(kind: ProgramKind, site: SignalSite, rng: np.random.Generator) -> list[str]:
    """Draw the greens of a program: safe, distinct, with a green for every link, and at most MAX_GREENS if that many
    suffice."""
    builder = _GreenBuilder(site, has_overlaps=rng.random() < OVERLAP_SHARE)
    axes = site.movements.axes()
    axes = [axes[k] for k in rng.permutation(len(axes))]
    # either direction may lead
    axes = [axis if rng.random() < 0.5 else axis[::-1] for axis in axes]
    states = [green for green in _greens(kind, builder, site, axes, rng) if builder.rules.violation(green) is None]
    phases = tuple(ProgramPhase(state, 0.0, 0.0, 0.0) for state in _with_all_links(states, builder, site))
    greens = distinct_greens(site.signal, Program(PROGRAM_ID, "static", 0, phases))
    most = int(rng.integers(MIN_MANY_GREENS, MAX_GREENS + 1)) if kind is ProgramKind.MANY else MAX_GREENS
    return _some(greens, most, rng)


class _GreenBuilder:
    """Makes green states of links, by the right of way."""

    def __init__(self, site: SignalSite, has_overlaps: bool) -> None:
        self._signal = site.signal
        self.rules = ConflictRules(site.signal)
        self._crossings = site.movements.crossings
        rights = [link for approach in site.movements.approaches for link in approach.right]
        self._overlaps = rights if has_overlaps else []

    def state(self, protected: Iterable[int], permitted: Iterable[int] = ()) -> str:
        """A green state; a link that conflicts with one before it stays red.

        Args:
            protected: links that never yield, the most important first.
            permitted: links that may yield to protected ones, to each other and to pedestrians.
        """
        state = ["r"] * len(self._signal.links)
        fixed = set()
        for link in protected:
            if not self._foes(link, state):
                state[link] = "G"
                fixed.add(link)
        for link in permitted:
            self._add(link, state, fixed)
        for link in self._crossings:
            self._add(link, state, fixed, may_yield=False)
        for link in self._overlaps:
            if not self._foes(link, state):
                state[link] = "G"
        return "".join(state)

    def _foes(self, link: int, state: Sequence[str]) -> list[int]:
        """Green links that cross a link."""
        return [other for other, c in enumerate(state) if c in GREEN and self._signal.foes[link, other]]

    def _add(self, link: int, state: list[str], fixed: set[int], may_yield: bool = True) -> None:
        """Add a link to a state, if right of way between it and all its green foes is clear."""
        if state[link] in GREEN:
            return
        yields, permissive = self._signal.yields, self._signal.permissive
        shown, yielding = "G", []
        for foe in self._foes(link, state):
            if yields[link, foe] and may_yield:
                shown = "g"
            elif yields[foe, link] and foe not in fixed:
                yielding.append(foe)
            elif permissive[link, foe] and may_yield and foe not in fixed:
                shown = "g"
                yielding.append(foe)
            else:
                return
        state[link] = shown
        for foe in yielding:
            state[foe] = "g"


def _greens(
    kind: ProgramKind,
    builder: _GreenBuilder,
    site: SignalSite,
    axes: Sequence[Sequence[SyntheticApproach]],
    rng: np.random.Generator,
) -> list[str]:
    """Draw greens of a kind, some of which may be unsafe or equal."""
    match kind:
        case ProgramKind.UNION:
            return [green for layout in site.layouts for green in layout]
        case ProgramKind.LEFT_ONLY:
            return [state for green in site.layouts[0] for state in (green, _permissive_alone(builder, green))]
        case ProgramKind.DUAL_RING:
            return _dual_ring(builder, axes, rng)
        case ProgramKind.SPLIT:
            return [_alone(builder, approach) for axis in axes for approach in axis]
        case ProgramKind.LATE_START:
            return _late_start(builder, axes, rng)
        case ProgramKind.PROTECTED_PERMISSIVE:
            return [green for axis in axes for green in (_pair(builder, axis), _lefts(builder, axis))]
        case ProgramKind.MANY:
            return [green for each in KINDS_OF_MANY for green in _greens(each, builder, site, axes, rng)]


def _pair(builder: _GreenBuilder, axis: Sequence[SyntheticApproach], has_lefts: bool = True) -> str:
    """Through traffic of an axis, with permissive left turns or none; without through traffic, the left turns lead."""
    straight = [link for approach in axis for link in approach.straight]
    turns = [
        link for approach in axis for link in (*approach.right, *(approach.left if has_lefts or not straight else ()))
    ]
    return builder.state(straight, turns)


def _alone(builder: _GreenBuilder, approach: SyntheticApproach) -> str:
    return builder.state([*approach.straight, *approach.left], approach.right)


def _lefts(builder: _GreenBuilder, axis: Sequence[SyntheticApproach]) -> str:
    return builder.state([link for approach in axis for link in approach.left])


def _permissive_alone(builder: _GreenBuilder, green: str) -> str:
    return builder.state(link for link, c in enumerate(green) if c == "g")


def _dual_ring(
    builder: _GreenBuilder, axes: Sequence[Sequence[SyntheticApproach]], rng: np.random.Generator
) -> list[str]:
    has_all = rng.random() < 0.5
    has_permissive = rng.random() < 0.5
    greens = []
    for axis in axes:
        if len(axis) == 1:
            greens.append(_alone(builder, axis[0]))
            continue
        lefts, through = _lefts(builder, axis), _pair(builder, axis, has_permissive)
        alone = [_alone(builder, approach) for approach in axis]
        # lead-lead has the lefts first, lead-lag one direction before and one after both through movements
        order = [lefts, *alone, through] if rng.random() < 0.5 else [alone[0], through, alone[1], lefts]
        greens += [green for green in order if has_all or green is through or rng.random() < 0.6]
    return greens


def _late_start(
    builder: _GreenBuilder, axes: Sequence[Sequence[SyntheticApproach]], rng: np.random.Generator
) -> list[str]:
    greens = []
    for number, axis in enumerate(axes):
        if len(axis) == 2 and (number == 0 or rng.random() < 0.5):
            greens.append(_alone(builder, axis[0]))
        greens.append(_pair(builder, axis))
    return greens


def _with_all_links(greens: list[str], builder: _GreenBuilder, site: SignalSite) -> list[str]:
    """The greens, and one more for each approach with a link that has none."""

    def is_missing(link: int) -> bool:
        return all(green[link] not in GREEN for green in greens)

    for approach in site.movements.approaches:
        while missing := [link for link in approach.links if is_missing(link)]:
            greens = [*greens, builder.state(missing, approach.links)]
    while missing := [link for link in site.movements.crossings if is_missing(link)]:
        straight = [link for approach in site.movements.approaches for link in approach.straight]
        greens = [*greens, builder.state(missing, straight)]
    return greens


def _some(greens: list[str], most: int, rng: np.random.Generator) -> list[str]:
    """At most `most` of the greens, in order, if that many suffice for every link."""
    served: set[int] = set()
    needed: list[int] = []
    others: list[int] = []
    for k in rng.permutation(len(greens)).tolist():
        links = {link for link, c in enumerate(greens[k]) if c in GREEN}
        (others if links <= served else needed).append(k)
        served |= links
    return [greens[k] for k in sorted(needed + others[: max(0, most - len(needed))])]


def program_xml(signal: SignalNetwork, greens: Sequence[str], rng: np.random.Generator) -> str:
    """A fixed program (`tlLogic`) of the greens, with a yellow between each two."""
    all_red_s = int(rng.integers(1, MAX_ALL_RED_S + 1)) if rng.random() < ALL_RED_SHARE else 0
    longest_s = max(MIN_GREEN_S, min(MAX_GREEN_S, MAX_CYCLE_GREEN_S // len(greens)))
    phases = []
    for green, following in zip(greens, [*greens[1:], greens[0]], strict=True):
        phases.append((green, float(rng.integers(MIN_GREEN_S, longest_s + 1))))
        yellow = yellow_between(green, following)
        ending = [mps for c, mps in zip(yellow, signal.approach_mps, strict=True) if c == "y"]
        if ending:
            phases.append((yellow, max(MIN_YELLOW_S, *map(yellow_s_at, ending))))
            red = yellow.replace("y", "r")
            # links that stay green would make it a green of its own
            if all_red_s and not set(red) & set(GREEN):
                phases.append((red, float(all_red_s)))
    cycle_s = sum(duration_s for _, duration_s in phases)
    lines = "".join(f'        <phase duration="{duration_s:g}" state="{state}"/>\n' for state, duration_s in phases)
    return (
        f'    <tlLogic id="{signal.id}" type="static" programID="{PROGRAM_ID}" '
        f'offset="{int(rng.integers(int(cycle_s)))}">\n'
        f"{lines}    </tlLogic>\n"
    )
