"""Vehicles on the lanes of a recorded step: those that SUMO counted, and those that were read one by one."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from protos import record_pb2 as record

HALTING_MPS = 0.1


class LaneCounts:
    """The counts of one run's steps."""

    def __init__(self, tls: Sequence[str], row: Mapping[str, int], lanes_of: Mapping[str, Collection[str]]) -> None:
        """`tls`: in the order of the contracts. `row`: of a lane. `lanes_of`: by TL, the lanes that are counted."""
        self._tls, self._row, self._lanes_of = tls, row, lanes_of
        self._rows: dict[tuple[int, ...], list[int]] = {}
        """By TLs of a step, the rows of its counts."""

    def of(self, step: record.Step) -> tuple[dict[int, int], dict[int, int]]:
        """(vehicles, halting vehicles) by row of the lanes of a step's readings."""
        due, readings = tuple(step.due), step.readings
        if due not in self._rows:
            tls = [self._tls[k] for k in due if k < len(self._tls)]
            self._rows[due] = sorted({self._row[lane] for tl in tls for lane in self._lanes_of[tl]})
        read = list(zip(readings.vehicle_lane, readings.speed_mps, strict=False))
        vehicles = Counter(lane for lane, _ in read)
        halting = Counter(lane for lane, speed_mps in read if speed_mps < HALTING_MPS)
        # numbers that SUMO counted take precedence
        return (
            {**vehicles, **dict(zip(self._rows[due], readings.vehicles, strict=False))},
            {**halting, **dict(zip(self._rows[due], readings.halting, strict=False))},
        )
