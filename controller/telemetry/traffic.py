"""Traffic by TL, from readings that decisions need anyway: queue, stopped delay and green share.

Nothing is read from SUMO for these figures: lanes are read when a TL decides, shown states for the monitors.
The figures are computed while SUMO simulates, so they delay no decision. All times are simulated.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from city.network import StreetNetwork
from controller.events import DecisionEvent, Shown, Subscriber
from protos import policy_pb2 as pb
from signals.observation import MAX_CACHED_BATCHES, Floats, Readings, Rows

GREEN_SHARE_TIME_S = 300.0
"""Time constant of the green share's exponential mean, in simulated s."""
MAX_READING_INTERVAL_S = 30.0
"""Longest time between two readings for which stopped delay is counted: policies of plans decide minutes apart."""
RECENT_S, SAMPLE_INTERVAL_S = 900.0, 15.0
"""Simulated time over which recent traffic is counted, and between the samples that it is counted from."""


class RecentTraffic(NamedTuple):
    """Traffic on the TLs' lanes: now, and in the last `span_s`."""

    vehicles: Floats
    """float64 [TLs], at each TL's newest reading; NaN before the first one."""
    halting: Floats
    """float64 [TLs], vehicles slower than 0.1 m/s at each TL's newest reading; NaN before the first one."""
    delay_s: Floats
    """float64 [TLs], stopped delay in the last `span_s`, in vehicle seconds; NaN if it is not counted."""
    mean_vehicles: float
    """Mean of all TLs together in the last `span_s`; NaN if it is not known."""
    mean_halting: float
    span_s: float
    """Simulated time; RECENT_S, or since the run's begin."""

    def totals(self) -> dict[str, float | None]:
        """The city's figures: vehicles, halting ones, and stopped delay in vehicle seconds (None: not counted)."""
        delay_s = None if np.isnan(self.delay_s).all() else round(float(np.nansum(self.delay_s)), 1)
        return {
            "vehicles": float(np.nansum(self.vehicles)),
            "halting": float(np.nansum(self.halting)),
            "delay_s": delay_s,
        }


def _count_green(is_vehicle_link: Sequence[bool], state: str) -> int:
    """The number of green vehicle links in the state of a signal."""
    pairs = zip(state, is_vehicle_link, strict=False)
    return sum(is_vehicle and link in "gG" for link, is_vehicle in pairs)


class TrafficMeter(Subscriber):
    """The traffic figures of a run's TLs; a collector of Prometheus metrics."""

    def __init__(
        self, contracts: Sequence[pb.PolicyContract], street: StreetNetwork, keeps_recent: bool = True
    ) -> None:
        """Prepare the figures.

        Args:
            contracts: of the controlled TLs; their signals in this order are those of the events.
            street: their network.
            keeps_recent: whether `recent` is asked for.
        """
        self._tls = [contract.tl for contract in contracts]
        self._index = {tl: k for k, tl in enumerate(self._tls)}
        self._lanes_of: list[list[str]] = []
        self._count_green: list[Callable[[str], int]] = []
        """By signal; it shows the same few states again and again."""
        signal_tl: list[int] = []
        links: list[int] = []
        for k, contract in enumerate(contracts):
            lanes = [lane for signal in contract.signals for lane in signal.lane_ids]
            self._lanes_of.append(list(dict.fromkeys(lanes)))
            for signal_id in contract.signal_ids:
                is_vehicle_link = [length_m == 0 for length_m in street.signals[signal_id].crossing_m]
                self._count_green.append(functools.cache(functools.partial(_count_green, is_vehicle_link)))
                signal_tl.append(k)
                links.append(sum(is_vehicle_link))
        self._rows_of: list[Rows] = []
        self._batch_of = functools.lru_cache(MAX_CACHED_BATCHES)(self._new_batch)
        count = len(self._tls)
        self._keeps_recent = keeps_recent
        self._queue: Floats = np.full(count, np.nan)
        self._vehicles: Floats = np.full(count, np.nan)
        self._read_s: Floats = np.full(count, np.nan)
        self._delay_s: Floats = np.zeros(count)
        self._counted_s: Floats = np.zeros(count)
        self._vehicle_s: Floats = np.zeros(count)
        """Time for which vehicles and queue are counted, and vehicles times that time."""
        self._samples: deque[tuple[float, Floats]] = deque(maxlen=round(RECENT_S / SAMPLE_INTERVAL_S))
        """(simulated second, `_sums` then), the oldest first."""
        self._has_delay = np.zeros(count, bool)
        self._signal_tl: Rows = np.array(signal_tl, np.intp)
        self._links: Floats = np.maximum(np.bincount(self._signal_tl, links, count), 1.0)
        self._green: Floats = np.zeros(count)
        self._weight = 0.0

    def track(self, lanes: Sequence[str]) -> None:
        """Set the lanes of the readings, in their order."""
        row = {lane: k for k, lane in enumerate(lanes)}
        self._rows_of = [np.array([row[lane] for lane in lanes_of], np.intp) for lanes_of in self._lanes_of]
        self._batch_of.cache_clear()

    def add(self, event: DecisionEvent) -> None:
        for shown in event.shown:
            self._add_shown(shown)
        if event.decisions:
            self.add_readings(event.tls, event.readings, event.at_s)

    def add_readings(self, tls: tuple[str, ...], readings: Readings, now: float) -> None:
        """Add the readings of second `now`. `tls`: those that were read."""
        due, lane_rows, places = self._batch_of(tls)
        interval_s = now - self._read_s[due]
        is_counted = interval_s <= MAX_READING_INTERVAL_S  # false for the first reading, whose interval is NaN
        counted, counted_s = due[is_counted], interval_s[is_counted]
        self._delay_s[counted] += self._queue[counted] * counted_s
        self._has_delay[due] = is_counted
        self._queue[due] = np.bincount(places, readings.halting[lane_rows], len(due))
        self._read_s[due] = now
        if not self._keeps_recent:
            return
        self._counted_s[counted] += counted_s
        self._vehicle_s[counted] += self._vehicles[counted] * counted_s
        self._vehicles[due] = np.bincount(places, readings.vehicles[lane_rows], len(due))
        if not self._samples or now >= self._samples[-1][0] + SAMPLE_INTERVAL_S:
            self._samples.append((now, self._sums()))

    def _sums(self) -> Floats:
        """float64 [3, TLs]: time that is counted, and vehicles and halting vehicles times that time."""
        return np.array((self._counted_s, self._vehicle_s, self._delay_s))

    def recent(self) -> RecentTraffic:
        """The traffic now and in the last RECENT_S. Any thread may call it: a step in progress is partly counted."""
        sums = self._sums()
        begin_s, before = self._samples[0] if self._samples else (0.0, sums)
        counted_s, vehicle_s, delay_s = sums - before
        is_counted = counted_s > 0
        means = [float((each[is_counted] / counted_s[is_counted]).sum()) for each in (vehicle_s, delay_s)]
        mean_vehicles, mean_halting = means if is_counted.any() else (math.nan, math.nan)
        span_s = float(self._read_s[is_counted].max()) - begin_s if is_counted.any() else 0.0
        return RecentTraffic(
            self._vehicles.copy(),
            self._queue.copy(),
            np.where(is_counted, delay_s, np.nan),
            mean_vehicles,
            mean_halting,
            span_s,
        )

    def _new_batch(self, tls: tuple[str, ...]) -> tuple[Rows, Rows, Rows]:
        """(Indices of TLs, rows of their lanes, place of each row's TL among them)."""
        due: Rows = np.array([self._index[tl] for tl in tls], np.intp)
        rows = [self._rows_of[k] for k in due]
        places: Rows = np.repeat(np.arange(len(due)), [len(each) for each in rows])
        return due, np.concatenate([np.zeros(0, np.intp), *rows]), places

    def _add_shown(self, shown: Shown) -> None:
        kept = math.exp((shown.begin_s - shown.end_s) / GREEN_SHARE_TIME_S)
        green = [count(state) for count, state in zip(self._count_green, shown.states, strict=True)]
        shares = np.bincount(self._signal_tl, green, len(self._tls)) / self._links
        self._green = kept * self._green + (1 - kept) * shares
        self._weight = kept * self._weight + (1 - kept)

    def collect(self) -> Iterable[Metric]:
        """The metrics, with at most three samples for each TL; called at each scrape."""
        queue = GaugeMetricFamily(
            "controller_queue_vehicles",
            "Vehicles slower than 0.1 m/s on a TL's lanes, at its newest reading",
            labels=("tl",),
        )
        delay = CounterMetricFamily(
            "controller_stopped_delay_vehicle_seconds",
            "Estimated time that vehicles stood on a TL's lanes: the queue of each reading, times the time to the next",
            labels=("tl",),
        )
        green = GaugeMetricFamily(
            "controller_green_share",
            "Share of time for which a TL's vehicle links were green, mean over its links and about the last 300 s",
            labels=("tl",),
        )
        weight, shares = self._weight, self._green
        for k, tl in enumerate(self._tls):
            if not math.isnan(self._queue[k]):
                queue.add_metric((tl,), float(self._queue[k]))
            if self._has_delay[k]:
                delay.add_metric((tl,), float(self._delay_s[k]))
            if weight:
                green.add_metric((tl,), float(shares[k] / weight))
        return queue, delay, green
