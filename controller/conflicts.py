"""Which states of a signal are free of conflicts, by the network's foes and right of way.

Sets of links are ints used as bit masks, so a check is a few operations.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum

from city.network import SignalNetwork

GREEN = "Gg"
_ALLOWED = frozenset("rygGsu")

PROTECTED, PERMISSIVE, YELLOW = (defaultdict(lambda: "0", {ord(c): "1"}) for c in "Ggy")
"""What `links_that_show` looks for."""


class Reason(StrEnum):
    """Why a wish was overridden."""

    MALFORMED = "malformed"
    CONFLICT = "conflict"
    MIN_GREEN = "min_green"
    YELLOW = "yellow"
    CLEARANCE = "clearance"
    MAX_GREEN = "max_green"
    MAX_RED = "max_red"


EXPLAINED = {
    Reason.MALFORMED: "a state of another length or with characters that are none (malformed)",
    Reason.CONFLICT: "foes would be green beside each other (conflict)",
    Reason.MIN_GREEN: "a green has not lasted for its least time (min_green)",
    Reason.YELLOW: "a yellow comes before red, and lasts its time (yellow)",
    Reason.CLEARANCE: "a foe is not clear yet (clearance)",
    Reason.MAX_GREEN: "a green that others wait for has lasted too long (max_green)",
    Reason.MAX_RED: "a link has been red for too long and is served (max_red)",
}


class ConflictRules:
    """Which states of a signal are free of conflicts."""

    def __init__(self, network: SignalNetwork) -> None:
        self.links = len(network.links)
        self.foes = [_mask(row) for row in network.foes]
        self.yields = [_mask(row) for row in network.yields]
        self.yielded_by = [_mask(column) for column in network.yields.T]
        self._known: dict[str, Reason | None] = {}

    def objection(self, state: str) -> Reason | None:
        """MALFORMED or CONFLICT, or None where the state may be shown."""
        if state not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()  # a policy that invents states must not fill the memory
            self._known[state] = self._judge(state)
        return self._known[state]

    def _judge(self, state: str) -> Reason | None:
        if len(state) != self.links or not _ALLOWED.issuperset(state):
            return Reason.MALFORMED
        return Reason.CONFLICT if self.conflicts(state) else None

    def conflicts(self, state: str) -> list[tuple[int, int]]:
        """Pairs (i, j) of foes that are green, where neither shows a g and yields to the other."""
        green, permissive = _mask(c in GREEN for c in state), _mask(c == "g" for c in state)
        pairs = []
        for i, c in enumerate(state):
            against = self.foes[i] & green & ~(self.yielded_by[i] & permissive) if c in GREEN else 0
            if c == "g":
                against &= ~self.yields[i]
            if against:
                pairs += [(i, j) for j in range(self.links) if against >> j & 1]
        return pairs


def links_that_show(kind: Mapping[int, str], state: Iterable[str]) -> int:
    """The links of a permitted state that show PROTECTED, PERMISSIVE or YELLOW, as a mask."""
    return int("".join(state).translate(kind)[::-1] or "0", 2)


def colour(c: str) -> str:
    """`g`, `y` or `r`, whose ages count: of all that is not green or yellow, `r`."""
    return "g" if c in GREEN else "y" if c == "y" else "r"


def _mask(bits: Iterable[object]) -> int:
    return sum(1 << i for i, bit in enumerate(bits) if bit)
