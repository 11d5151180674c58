"""Conflicts of signal states, by the network's foes and right of way.

Sets of links are ints used as bit masks, so that a check takes few operations.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum

import numpy as np

from city.errors import InputError
from city.network import SignalNetwork
from city.right_of_way import Foes

GREEN, PROTECTED_GREEN = "Gg", "G"
_VALID_CHARACTERS = frozenset("rygGsu")
MAX_CACHED_STATES = 10_000
"""Number of cached results; bounded, because a policy may request any state."""

PROTECTED, PERMISSIVE, YELLOW = (defaultdict(lambda: "0", {ord(c): "1"}) for c in "Ggy")
"""Translation tables for `links_that_show`."""
_COLOURS = defaultdict(lambda: "r", {ord("G"): "g", ord("g"): "g", ord("y"): "y"})
"""Translation table for `colours`."""


class OverrideReason(StrEnum):
    """Why a requested state was overridden."""

    MALFORMED = "malformed"
    CONFLICT = "conflict"
    MIN_GREEN = "min_green"
    YELLOW = "yellow"
    CLEARANCE = "clearance"
    MAX_GREEN = "max_green"
    MAX_RED = "max_red"


EXPLANATIONS = {
    OverrideReason.MALFORMED: "the state has a wrong length or invalid characters (malformed)",
    OverrideReason.CONFLICT: "foes would be green at the same time (conflict)",
    OverrideReason.MIN_GREEN: "a green has not reached its min green (min_green)",
    OverrideReason.YELLOW: "a link must show its full yellow before red (yellow)",
    OverrideReason.CLEARANCE: "a foe has not cleared the junction (clearance)",
    OverrideReason.MAX_GREEN: "a green has exceeded max green while others wait (max_green)",
    OverrideReason.MAX_RED: "a link has exceeded max red and is served (max_red)",
}


class ConflictRules:
    """The conflict rules of one signal."""

    def __init__(self, network: SignalNetwork) -> None:
        self.links = len(network.links)
        self.foes = _masks(network.foes)
        self.yields = _masks(network.yields)
        self.yielded_by = _masks(network.yields.T)
        self.permissive = _masks(network.permissive)
        self.violation = functools.lru_cache(MAX_CACHED_STATES)(self._find_violation)
        """The rule that a state violates, MALFORMED or CONFLICT; None if it may be shown."""

    def _find_violation(self, state: str) -> OverrideReason | None:
        if len(state) != self.links or not _VALID_CHARACTERS.issuperset(state):
            return OverrideReason.MALFORMED
        return OverrideReason.CONFLICT if self.conflicts(state) else None

    def conflicts(self, state: str) -> list[tuple[int, int]]:
        """Pairs (i, j) of green foes: neither shows g and yields to the other, and they may not both show g."""
        permissive = links_that_show(PERMISSIVE, state)
        green = permissive | links_that_show(PROTECTED, state)
        pairs = []
        for i, c in enumerate(state):
            conflicting = self.foes[i] & green & ~(self.yielded_by[i] & permissive) if c in GREEN else 0
            if c == "g":
                conflicting &= ~(self.yields[i] | self.permissive[i] & permissive)
            if conflicting:
                pairs += [(i, j) for j in range(self.links) if conflicting >> j & 1]
        return pairs


def check_phases(where: str, signal: SignalNetwork, program_id: str, states: Iterable[str]) -> None:
    """Raise InputError unless the safety rules permit every state of the program that a policy was trained with.

    The message has all conflicts of all states, and the states to write instead.
    """
    rules = ConflictRules(signal)
    conflicts = []
    for state in dict.fromkeys(states):
        if rules.violation(state) is OverrideReason.MALFORMED:
            raise InputError(
                f"{where}: phase {state!r} of program {program_id!r} is not a state of {len(signal.links)} links with "
                "r, y, g, G, s and u; the safety rules would never show it: write y for Y, and a colour for o"
            )
        if pairs := rules.conflicts(state):
            foes = ", ".join(f"{i} and {j}" for i, j in sorted({(min(pair), max(pair)) for pair in pairs}))
            permitted = _with_yielding_links(rules, signal, state)
            remedy = f"write {permitted}" if permitted else "never show them green together"
            conflicts.append(f"phase {state} has links {foes}: {remedy}")
    if conflicts:
        if program_id == signal.active_program and yielding_states(signal):
            conflicts.append("greenserve city init --repair does so in an additional file")
        raise InputError(
            f"{where}: program {program_id!r} gives green to foes of the network, which the safety rules would never "
            f"show: {'; '.join(conflicts)}"
        )


def yielding_states(signal: SignalNetwork) -> dict[str, str]:
    """By state of the program that runs, the state with g for the links that yield, for states with green foes.

    Empty if there are none, if g is not enough for one, or if a schedule (WAUT) would switch to other programs.
    """
    rules, result = ConflictRules(signal), {}
    for state in dict.fromkeys(phase.state for phase in signal.plan.phases if not signal.switches):
        if rules.violation(state) is not None:
            result[state] = _with_yielding_links(rules, signal, state)
    return result if all(result.values()) else {}


def _with_yielding_links(rules: ConflictRules, signal: SignalNetwork, state: str) -> str:
    """The state with g for green foes that yield by the junction's right of way, and then for those that both may; ""
    if that is not permitted either."""
    for may_yield in (signal.yields, signal.permissive):
        for i, j in rules.conflicts(state):
            if may_yield[i, j]:
                state = f"{state[:i]}g{state[i + 1 :]}"
    return state if rules.violation(state) is None else ""


def links_that_show(kind: Mapping[int, str], state: Iterable[str]) -> int:
    """The links of a state that show PROTECTED, PERMISSIVE or YELLOW, as a mask."""
    return int("".join(state).translate(kind)[::-1] or "0", 2)


def colours(state: str) -> str:
    """The colour class of each link of a state."""
    return state.translate(_COLOURS)


def colour(c: str) -> str:
    """The colour class whose age counts: `g`, `y`, or `r` for everything else."""
    return "g" if c in GREEN else "y" if c == "y" else "r"


def _masks(links: Foes) -> list[int]:
    """The rows of a bool matrix [links, links] as masks."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(links, axis=1, bitorder="little")]
