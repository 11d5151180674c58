"""Faults of detectors: the controller's readings of some lanes are missing, stuck or noisy; the traffic is not
changed."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from controller.sumo.connection import LanesToRead, StepResult, SumoConnection
from signals.observation import NO_VEHICLES, Readings, VehicleReadings

MISSING, STUCK, NOISY = "missing", "stuck", "noisy"
KINDS = (MISSING, STUCK, NOISY)
NOISE = 0.3
"""Standard deviation of a noisy lane's number of vehicles, relative to the true one."""


@dataclass(frozen=True)
class FaultRates:
    """Share of the lanes with each fault, in [0, 1]; a lane has at most one fault."""

    missing: float = 0.0
    """The detector never sees a vehicle."""
    stuck: float = 0.0
    """From some second of the simulation on, counts and vehicles stay as they were."""
    noisy: float = 0.0
    """The counts have a relative error, normally distributed with standard deviation NOISE; so has the number of single
    vehicles, of which some are not seen, or some are seen twice."""


NO_FAULTS = FaultRates()


def parse(text: str) -> FaultRates:
    """Parse rates such as `missing=0.1,stuck=0.05`. Raises InputError."""
    rates: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, number = part.partition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = -1.0
        if kind not in KINDS or kind in rates or not 0 <= rate <= 1:
            raise InputError(
                f"--faults: {part!r} must be FAULT=SHARE, each of {', '.join(KINDS)} once, such as missing=0.1"
            )
        rates[kind] = rate
    if not 0 < sum(rates.values()) <= 1:
        raise InputError(f"--faults {text!r} must be shares of the lanes that add up to 1 at most, such as missing=0.1")
    return FaultRates(**rates)


class FaultyDetectors:
    """A connection with faulty readings; it passes everything else on to the connection that it wraps."""

    def __init__(self, connection: SumoConnection, rates: FaultRates, seed: int, begin_s: float, end_s: float) -> None:
        """`seed` determines lanes and noise. A stuck lane is stuck from a second between `begin_s` and `end_s` on."""
        self._connection, self._rates, self._seed = connection, rates, seed
        self._rng = np.random.default_rng([seed, 2])
        self._begin_s, self._end_s = begin_s, end_s
        self._draw = self._stuck_from_s = np.zeros(0)
        self._vehicle_rows: dict[str, list[int]] = {}
        """TL -> rows of the lanes that it reads for single vehicles."""
        self._before_stuck: dict[int, VehicleReadings] = {}
        """Row -> the last vehicles seen there."""
        self.readings: Readings = Readings(np.zeros((2, 0)), np.zeros(0), np.zeros(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def track(self, lanes: LanesToRead, signals: Mapping[str, int]) -> None:
        self._connection.track(lanes, signals)
        # seeded by the lane's name: every arm has the same faults, whatever other lanes it reads
        draws = [
            np.random.default_rng([self._seed, zlib.crc32(lane.encode())]).uniform(size=2)
            for lane in self._connection.lanes
        ]
        self._draw, stuck_from = np.array(draws).reshape(-1, 2).T
        self._stuck_from_s = self._begin_s + stuck_from * (self._end_s - self._begin_s)
        row_of = {lane: row for row, lane in enumerate(self._connection.lanes)}
        self._vehicle_rows = {tl: [row_of[lane] for lane in of_tl] for tl, of_tl in lanes.vehicle_lanes_of.items()}
        self.readings = self._copy()

    def read(self, due: tuple[str, ...]) -> StepResult:
        result = self._connection.read(due)
        previous, self.readings = self.readings, self._copy()
        rates = self._rates
        is_missing = self._draw < rates.missing
        is_stuck = ~is_missing & (self._draw < rates.missing + rates.stuck)
        is_noisy = ~is_missing & ~is_stuck & (self._draw < rates.missing + rates.stuck + rates.noisy)
        self.readings.counts[:, is_missing], self.readings.outflow[is_missing] = 0.0, 0.0
        held = is_stuck & (self._stuck_from_s <= result.time_s)
        self.readings.counts[:, held], self.readings.outflow[held] = previous.counts[:, held], previous.outflow[held]
        factor = np.maximum(0.0, 1.0 + NOISE * self._rng.standard_normal(is_noisy.sum()))
        self.readings.counts[:, is_noisy] = np.round(self.readings.counts[:, is_noisy] * factor)
        self.readings = replace(self.readings, by_vehicle=self._vehicles(due, is_missing, is_stuck, held, is_noisy))
        return result

    def _vehicles(
        self,
        due: Sequence[str],
        is_missing: NDArray[np.bool_],
        is_stuck: NDArray[np.bool_],
        held: NDArray[np.bool_],
        is_noisy: NDArray[np.bool_],
    ) -> VehicleReadings:
        """The single vehicles on the lanes of the TLs that are due, with faults. The masks have one element per
        lane."""
        seen = self._connection.readings.by_vehicle
        index = [np.flatnonzero(~(is_missing | held | is_noisy)[seen.row])]
        for row in np.unique(seen.row[is_noisy[seen.row]]):
            own = np.flatnonzero(seen.row == row)
            count = round(len(own) * max(0.0, 1.0 + NOISE * self._rng.standard_normal()))
            index += [self._rng.permutation(own)[:count], self._rng.choice(own, max(0, count - len(own)))]
        parts = [_some(seen, np.concatenate(index))]
        for row in dict.fromkeys(row for tl in due for row in self._vehicle_rows.get(tl, ()) if is_stuck[row]):
            if held[row]:
                parts.append(self._before_stuck.get(row, NO_VEHICLES))
            else:
                self._before_stuck[row] = _some(seen, np.flatnonzero(seen.row == row))
        vehicles = VehicleReadings._make(map(np.concatenate, zip(*parts, strict=True)))
        return _some(vehicles, np.argsort(vehicles.row, kind="stable"))  # in the order of the lanes, as SUMO's are

    def _copy(self) -> Readings:
        readings = self._connection.readings
        return Readings(readings.counts.copy(), readings.mean_length_m.copy(), readings.outflow.copy())


def _some(vehicles: VehicleReadings, index: NDArray[np.intp]) -> VehicleReadings:
    return VehicleReadings._make(column[index] for column in vehicles)
