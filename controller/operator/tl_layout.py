"""Where the signals of each TL are in decision events, and its lanes in readings."""

from collections.abc import Iterable, Mapping, Sequence

from protos import policy_pb2 as pb
from signals.movement_names import MovementNames


class TlLayout:
    """The places of the controlled TLs."""

    def __init__(
        self,
        contracts: Iterable[pb.PolicyContract],
        lanes: Sequence[str] = (),
        names: Mapping[str, MovementNames] = {},
    ) -> None:
        """Number the signals and lanes.

        Args:
            contracts: their signals in this order are those of the events.
            lanes: of the readings, by row.
            names: by signal, the names of its movements.
        """
        self.names = names
        self.contracts = {contract.tl: contract for contract in contracts}
        self.index = {tl: k for k, tl in enumerate(self.contracts)}
        self.signals: tuple[str, ...] = ()
        self.tl_of_signal: dict[str, str] = {}
        self.places: dict[str, slice] = {}
        """By TL, its signals' places among the states."""
        self.lanes = tuple(lanes)
        self.lane_rows: dict[str, list[int]] = {}
        """By TL, its lanes' rows in the readings."""
        row = {lane: k for k, lane in enumerate(lanes)}
        for tl, contract in self.contracts.items():
            self.places[tl] = slice(len(self.signals), len(self.signals) + len(contract.signal_ids))
            self.signals += tuple(contract.signal_ids)
            self.tl_of_signal.update(dict.fromkeys(contract.signal_ids, tl))
            of_tl = dict.fromkeys(lane for signal in contract.signals for lane in signal.lane_ids)
            self.lane_rows[tl] = [row[lane] for lane in of_tl if lane in row]
