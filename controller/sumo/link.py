"""What a link to SUMO offers: readings in bulk, settings and steps sent ahead.

What signals show between two decisions is known at the first of them, so the
whole way to the next decision is one exchange: settings, step, settings, step,
readings. Each part is sent as soon as it is known: SUMO simulates the first
while the next is thought of. `traci_link` talks to a SUMO program over a socket (`messages`); `libsumo_link`
drives SUMO in this process; `start` starts a program or attaches to one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from controller.observation import Readings, Rows
from controller.safety import PermittedHandover, PermittedState

Setting = PermittedState | PermittedHandover


class SumoGone(Exception):
    """The connection to SUMO has ended; nothing more can be set or read."""


class SumoRefused(Exception):
    """SUMO refused a command; the connection goes on."""


class NotWaiting(Exception):
    """SUMO has not answered, and who stops the controller does not want to wait for it."""


class Moment(NamedTuple):
    """Where the way led to; the readings are the link's."""

    time_s: float
    seen: Sequence[tuple[float, Sequence[str]]]
    """What the watched signals showed on the way: up to which second, and their states in the order of `watch`.

    Without the last part of the way: see `Link.shown`.
    """
    refusals: dict[str, str]
    """Signals that SUMO refused to set, and its words."""


class Link(Protocol):
    lost: type[Exception]
    """What `api` raises when SUMO is gone."""

    @property
    def api(self) -> Any:
        """traci's connection, or libsumo: for questions at start-up or between two steps, not for decisions."""

    @property
    def guarded(self) -> bool:
        """Whether a guard has the will, and hands the signals back safely when this link closes."""

    @property
    def lanes(self) -> tuple[str, ...]:
        """Every watched lane, in the order of the readings."""

    @property
    def readings(self) -> Readings:
        """The newest readings."""

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str], signals: Mapping[str, int]) -> None:
        """Name the lanes of each TL, those whose leaving vehicles are counted every step, and the signals (links by id)."""

    def set(self, settings: Sequence[Setting]) -> None:
        """Set signals, before the next `go`; need not wait for it.

        Raises SumoGone.
        """

    def go(self, until_s: float) -> None:
        """Simulate to until_s: a part of the way to the next `read`, which need not wait for it.

        Raises SumoGone.
        """

    def read(self, due: tuple[str, ...]) -> Moment:
        """Wait for the end of the way: fresh readings for the lanes of the TLs that are due.

        Raises SumoGone, NotWaiting, or SumoRefused where SUMO refuses to be read.
        What it refused to set on the way is told in the answer.
        """

    def shown(self) -> dict[str, str]:
        """What the watched signals showed at the newest reading, in the order of `watch`.

        SUMO tells it after the numbers, so that decisions need not wait for it. Raises as `read`.
        """

    def leave_will(self, content: bytes) -> None:
        """Tell the guard of the connection, where there is one, how the signals come back onto their plans.

        Before the first reading. Raises SumoGone.
        """

    def switch_program(self, signal: str, program: str) -> None:
        """Hand a signal back at once. Only for the way out, where no step is left."""

    def abandon(self, programs: Sequence[tuple[str, str]]) -> None:
        """Ask for (signal, program) switches and close, without an answer to what was asked before."""

    def why(self) -> str:
        """Why SUMO ended, in its own words, or "" where it gave none."""

    def close(self) -> None: ...


class Lanes:
    """The lanes' rows in the readings, and the count of vehicles that left."""

    def __init__(self) -> None:
        self.lanes: tuple[str, ...] = ()
        self.row: dict[str, int] = {}
        self._inside: dict[str, frozenset[str]] = {}

    def watch(self, lanes_of: Mapping[str, Sequence[str]], counted: Sequence[str]) -> None:
        self.lanes_of = {tl: tuple(lanes) for tl, lanes in lanes_of.items()}
        # SUMO looks every lane up in a sorted tree: asked in this order, neighbours are found on nearly the same way
        self.lanes = tuple(sorted({lane for lanes in self.lanes_of.values() for lane in lanes}))
        self.row = {lane: i for i, lane in enumerate(self.lanes)}
        self.counted = tuple(counted)
        self._inside = dict.fromkeys(self.counted, frozenset())
        size = len(self.lanes)
        self.readings = Readings(np.zeros((2, size)), np.zeros(size), np.zeros(size))

    def of(self, tls: Sequence[str]) -> tuple[list[str], slice | Rows]:
        """The lanes of some TLs, and their rows in the readings: a slice where they are neighbours."""
        rows = sorted({self.row[lane] for tl in tls for lane in self.lanes_of[tl]})
        names = [self.lanes[k] for k in rows]
        if rows and rows[-1] - rows[0] == len(rows) - 1:
            return names, slice(rows[0], rows[-1] + 1)
        return names, np.array(rows, np.intp)

    def count(self, lane: str, vehicles: Sequence[str]) -> None:
        now = frozenset(vehicles)
        self.readings.left_total[self.row[lane]] += len(self._inside[lane] - now)
        self._inside[lane] = now
