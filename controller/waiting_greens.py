"""Vehicles and persons that wait at other greens than the current one, by a decision's observation."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from city.network import StreetNetwork
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals.movement_names import MovementNames
from signals.policy_signals import greens_of

WAITING = ("queue", "halting")
"""Features of a lane that are more than 0 if a vehicle stands on it (dialects sumo-rl and street)."""


class WaitingGreens:
    """The lanes that other greens than the current one serve, of TLs that choose greens and observe halting
    vehicles."""

    def __init__(
        self,
        contracts: Iterable[pb.PolicyContract],
        street: StreetNetwork | None,
        names: Mapping[str, MovementNames],
    ) -> None:
        """`names`: by signal, the names of its movements."""
        self._others: dict[str, list[NDArray[np.intp]]] = {}
        """By TL and green, the observation's columns of lanes that another green serves and this one does not."""
        self._signal_of: dict[str, pb.Signal] = {}
        for contract in contracts:
            if contract.action.kind == CATEGORICAL and len(contract.signals) == 1 and street is not None:
                self._others[contract.tl] = _others(contract, street)
                self._signal_of[contract.tl] = contract.signals[0]
        self._names = names

    def green_to_leave(self, tl: str, observation: Iterable[float], phases: Iterable[int]) -> int | None:
        """The current green if vehicles or persons wait on a lane that only others serve; None if not, or not known."""
        (green, *_), others = (*phases, -1), self._others.get(tl, [])
        if not 0 <= green < len(others):
            return None
        return green if np.asarray(observation)[others[green]].any() else None

    def describe(self, tl: str, green: int) -> str:
        """A TL and a green of it, such as `SA101 green 0 (northbound through)`."""
        signal = self._signal_of[tl]
        return f"{tl} {self._names.get(signal.id, MovementNames()).of_green(greens_of(signal), green)}"


def _others(contract: pb.PolicyContract, street: StreetNetwork) -> list[NDArray[np.intp]]:
    (signal,) = contract.signals
    greens, links = greens_of(signal), street.signals[signal.id].links if signal.id in street.signals else ()
    if any(len(state) != len(links) for state in greens):
        return []  # of another network; the check of contracts says so
    links_of: dict[str, list[int]] = {approach.lane_id: [*approach.links] for approach in signal.approaches}
    for link, connections in enumerate(() if links_of else links):
        for lane, _ in connections:
            links_of.setdefault(lane, []).append(link)
    columns = [(k, f.lane_id) for k, f in enumerate(contract.observation.features) if f.kind in WAITING and f.lane_id]
    served = [{lane for lane, links in links_of.items() if any(state[k] in "Gg" for k in links)} for state in greens]
    return [
        np.array([k for k, lane in columns if lane not in own and any(lane in other for other in served)], np.intp)
        for own in served
    ]
