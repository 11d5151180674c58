"""One simulation of an arm, and its measurements."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import config, network, sumo_files
from city.errors import InputError
from city.lanes import is_internal, road_of
from controller.assembly import DRIVERS
from controller.policies.no_policies import contracts_of_city
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.connection import SumoConnection
from controller.sumo.network import check_contracts_match_city
from evaluation import actuated, road_users
from evaluation.arms import ACTUATED, FIXED, Arm
from evaluation.detector_faults import NO_FAULTS, FaultRates, FaultyDetectors
from evaluation.lane_groups import LaneGroupTraffic, PassedVehicles, RoadTraffic, lane_group_traffic, lane_groups
from evaluation.movement_service import MovementService, green_share, movement_service
from evaluation.policy_models import with_street_dialect
from evaluation.road_users import RoadUsers
from evaluation.signal_pictures import ControlledSignals, PicturedTls, SignalPictures, UncontrolledSignals
from evaluation.signal_recording import SignalBand, SignalRecording, directions
from serving.client import Client
from signals import movement_names
from signals.simulation_time import round_to_ms
from simulation.approaches import LostTime, nearest_approaches, read_net, upstream_lanes
from simulation.controlled_simulation import Control, ControlledSimulation
from simulation.demand import Demand
from simulation.scratch_folder import scratch_folder
from simulation.street_simulation import SERVED_DEADLINE_S, end_of, simulated
from simulation.trips import TripMeans, read_trips

MEASUREMENT_INTERVAL_S = 5.0
"""Simulated seconds in which the delay by TL and approach is measured once, at a random moment: at fixed ones, every
sample would meet a signal in the same second of its decisions."""
MEASUREMENT_SEED = 1_000_041
"""First part of the seeds of these moments."""
WINDOW_S = 300
"""Simulated seconds of departures over which a mean delay is taken."""


@dataclass(frozen=True)
class EvaluationTask:
    """The task of an evaluation, the same for all of its simulations."""

    city: config.City
    tls: tuple[str, ...]
    seconds: float | None = None
    """Simulated time (default: until the configuration's end)."""
    emissions: bool = False
    """True if SUMO computes the vehicles' emissions, which takes more time."""
    faults: FaultRates = NO_FAULTS
    """Rates of the detectors' faults, for arms with faults."""


@dataclass(frozen=True)
class Outcome(TripMeans):
    """The measurements of one simulation."""

    arm: str
    seed: int
    delay_by_tl: Mapping[str, float]
    """Vehicle seconds lost on the way to each TL, also by vehicles that wait to depart, divided by `total`."""
    worst_road: str
    """The road on the way to a TL on which most vehicle seconds are lost."""
    worst_road_s: float
    """Vehicle seconds lost on it, divided by `total`."""
    overrides_by_reason: Mapping[str, int]
    """Requested states that the safety rules replaced."""
    delay_quantiles_s: tuple[float, ...]
    """The delay that 0, 1, ... 100 % of the vehicles do not exceed."""
    delay_by_departure: Mapping[int, float]
    """Begin of a window in s -> mean delay of the vehicles that depart in it."""
    queue_by_road: Mapping[str, float]
    """Mean number of halting vehicles on the roads that end at the evaluated TLs."""
    signals: tuple[SignalBand, ...] = ()
    """The signals' states, if they were recorded."""
    passed_by_tl: Mapping[str, int] = field(default_factory=dict)
    """Vehicles that passed each TL; once for each of its signals that they passed."""
    road_users: Mapping[str, RoadUsers] = field(default_factory=dict)
    """By class that occurs: cars, buses, trains, bicycles, walkers, others."""
    pictures: SignalPictures | None = None
    """ATSPM's pictures of the signals, if they were recorded."""
    no_pictures: str = ""
    """Why there are none although the signals were recorded."""
    unchanged_tls: tuple[str, ...] = ()
    """TLs that never changed their green, but for the first choice of a controller."""
    movements: Mapping[str, Mapping[str, MovementService]] = field(default_factory=dict)
    """Signal -> movement -> the greens that it got."""
    lane_groups: Mapping[str, Mapping[str, LaneGroupTraffic]] = field(default_factory=dict)
    """Signal -> lane group -> its traffic."""

    def delay_per_vehicle_s(self, tl: str) -> float:
        """Seconds lost on the way to a TL per vehicle that passed it; NaN if none passed."""
        passed = self.passed_by_tl.get(tl, 0)
        return self.delay_by_tl[tl] * self.total / passed if passed else math.nan


@dataclass(frozen=True)
class ServedModels:
    """The models of a served arm."""

    client: Client
    tls: tuple[str, ...]
    """TLs that have a model; the others run their own programs."""
    model_number: int | None = None
    """`None` means the newest."""


class ArmSimulator:
    """Runs the simulations of a task, one after another."""

    def __init__(self, task: EvaluationTask) -> None:
        """Read the street. Raises InputError."""
        self.task = task
        self.street = network.of_city(task.city)
        self._signals = [signal for tl in task.tls for signal in task.city.tls[tl].signals]
        self._roads_of_tl: dict[str, list[str]] = {}
        """TL -> roads that end at its signals."""
        for tl in task.tls:
            lanes = (lane for signal in task.city.tls[tl].signals for lane in self.street.signals[signal].lanes)
            self._roads_of_tl[tl] = sorted({road_of(lane) for lane in lanes if not is_internal(lane)})
        self._roads = sorted({road for roads in self._roads_of_tl.values() for road in roads})
        self._lanes = upstream_lanes(self.street, {tl: task.city.tls[tl].signals for tl in task.tls})
        self._names = movement_names.of_city(task.city, self.street)
        self._greens = {s: directions(self.street.signals[s], self._names[s]) for s in self._signals}
        net = read_net(self.street.net_file)
        self._lane_groups = {
            s: lane_groups(self.street.signals[s], self._names[s], lambda lane: net.getLane(lane).allows("passenger"))
            for s in self._signals
        }
        self._upstream: dict[str, list[str]] = {}
        """By road that ends at a signal, the roads that lead to it from no other signal."""
        for road, (last, _) in nearest_approaches(self.street).items():
            if road != last:
                self._upstream.setdefault(last, []).append(road)

    def run(
        self, arm: Arm, demand: Demand, models: ServedModels | None = None, records_signals: bool = False
    ) -> Outcome:
        """Simulate an arm. Raises InputError if its models do not match the city.

        `models`: of a served arm. `records_signals`: whether the outcome has the signals' states and pictures.
        """
        with scratch_folder() as folder:
            recording = SignalRecording(folder, self._signals)
            pictured, no_pictures = self._pictured() if records_signals else (None, "")
            passed = PassedVehicles(folder, self._roads_of_tl)
            tripinfo = folder / "tripinfo.xml"
            options = ["--device.emissions.probability", "1"] if self.task.emissions else []
            additional = self._additional_files(arm, folder, recording, passed, pictured)
            with simulated(self.task.city, demand, tripinfo, options, additional=additional) as connection:
                if records_signals:
                    recording.locate(connection.api)
                measurement, simulation, signals = self._simulate(arm, demand, connection, models, pictured)
                ended_s = float(connection.api.simulation.getTime())
                vehicle_classes = road_users.vehicle_classes(connection.api)
            trips, users = read_trips(tripinfo, ended_s), road_users.read(tripinfo, vehicle_classes)
            bands = recording.bands(ended_s, self._greens)
            passed_by_tl = passed.read()
        road_traffic = measurement.road_traffic(passed, self._upstream)
        vehicles = max(trips.total, 1)
        roads = [item for by_road in measurement.lost_s.values() for item in by_road.items()]
        worst_road, worst_road_s = max(roads, key=lambda item: item[1], default=("", 0.0))
        delays_s = [delay for _, delay in trips.delay_by_departure]
        return Outcome(
            **{mean.name: getattr(trips, mean.name) for mean in fields(TripMeans)},
            arm=arm.name,
            seed=demand.seed,
            delay_by_tl={tl: by_road.total() / vehicles for tl, by_road in measurement.lost_s.items()},
            worst_road=worst_road,
            worst_road_s=worst_road_s / vehicles,
            overrides_by_reason=dict(simulation.loop.counters.overrides),
            delay_quantiles_s=tuple(np.percentile(delays_s, range(101)).round(2).tolist()) if delays_s else (),
            delay_by_departure=_by_window(trips.delay_by_departure),
            queue_by_road=measurement.queue_by_road(),
            signals=bands if records_signals else (),
            passed_by_tl=passed_by_tl,
            road_users=users,
            pictures=signals.pictures(f"Signal performance measures: {arm.name}") if signals is not None else None,
            no_pictures=no_pictures,
            unchanged_tls=tuple(
                tl
                for tl, own in self.task.city.tls.items()
                if tl in self.task.tls and not any(b.changes_green for b in bands if b.signal in own.signals)
            ),
            movements={
                b.signal: movement_service(self.street.signals[b.signal], self._names[b.signal], b) for b in bands
            },
            lane_groups={
                b.signal: lane_group_traffic(
                    self._lane_groups[b.signal], road_traffic, partial(green_share, b), self.street.lane_length_m
                )
                for b in bands
            },
        )

    def _pictured(self) -> tuple[PicturedTls | None, str]:
        """The TLs of which pictures are drawn, or why there are none."""
        try:
            return PicturedTls(self.task.city, self.street, self.task.tls), ""
        except InputError as error:
            return None, str(error)

    def _additional_files(
        self,
        arm: Arm,
        folder: Path,
        recording: SignalRecording,
        passed: PassedVehicles,
        pictured: PicturedTls | None,
    ) -> list[Path]:
        """The additional files of an arm, behind those of the configuration."""
        additional = [passed.additional_file, recording.additional_file]
        if arm.kind == ACTUATED:
            signals = [self.street.signals[signal] for signal in self._signals]
            additional.append(actuated.write(folder / "actuated.add.xml", signals))
        sumocfg = self.task.city.network.sumocfg
        assert sumocfg is not None, "a city without demand is refused before it is evaluated"
        if pictured is not None:
            listed = sumo_files.listed_files(sumocfg, "additional-files")
            additional += pictured.write_detectors(folder / "detectors.add.xml", listed)
        return additional

    def _simulate(
        self,
        arm: Arm,
        demand: Demand,
        connection: SumoConnection,
        models: ServedModels | None,
        pictured: PicturedTls | None,
    ) -> tuple["_Measurement", ControlledSimulation, ControlledSignals | UncontrolledSignals | None]:
        """Simulate to the end. Returns the measurement, the simulation, and what pictures need."""
        now = float(connection.api.simulation.getTime())
        end_s = end_of(self.street, now, self.task.seconds)
        if arm.kind in (FIXED, ACTUATED):
            self._check_programs(arm, connection.api, now)
        faults = self.task.faults
        read = FaultyDetectors(connection, faults, demand.seed, now, end_s) if arm.has_faults else connection
        control = self._control(arm, models)
        controlled = ControlledSignals(pictured, read, control) if pictured is not None and control.contracts else None
        subscribers = [controlled] if controlled is not None else []
        simulation = ControlledSimulation(read, self.task.city, self.street, control, subscribers)
        uncontrolled = (
            UncontrolledSignals(pictured, connection) if pictured is not None and controlled is None else None
        )
        stop_lanes = [lane for groups in self._lane_groups.values() for group in groups for lane in group.lanes]
        measurement = _Measurement(connection, self._lanes, self._roads, stop_lanes)
        step_s = float(connection.api.simulation.getDeltaT())
        steps = max(1, round(MEASUREMENT_INTERVAL_S / step_s))
        rng = np.random.default_rng([MEASUREMENT_SEED, demand.seed])  # the same moments in all arms
        while now < end_s:
            before_s, now = now, min(now + steps * step_s, end_s)
            # whole ms, as SUMO's time, which never reaches a moment that floating point puts a little later
            moment_s = min(round_to_ms(before_s + int(rng.integers(1, steps + 1)) * step_s), end_s)
            (uncontrolled or simulation).advance(moment_s)
            measurement.add(now - before_s)
            if now == end_s > moment_s:
                (uncontrolled or simulation).advance(end_s)
        measurement.end()
        simulation.loop.finish()
        simulation.loop.close()
        return measurement, simulation, controlled or uncontrolled

    def _check_programs(self, arm: Arm, api: Any, now: float) -> None:
        """Raise InputError unless SUMO runs the programs that an arm without a controller is named after."""
        for signal in self._signals:
            program, network = api.trafficlight.getProgram(signal), self.street.signals[signal]
            expected = actuated.PROGRAM if arm.kind == ACTUATED else network.scheduled_program(now)
            if program != expected and (arm.kind == ACTUATED or not network.may_run(program, now)):
                raise InputError(
                    f"{self.task.city.network.sumocfg}: SUMO runs program {program!r} of signal {signal} at second "
                    f"{now:g}, not {expected!r}, so {arm.name} would not be {arm.kind}; remove tls.all-off, which "
                    "switches every program off, or load-state from the configuration"
                )

    def _control(self, arm: Arm, models: ServedModels | None) -> Control:
        """Contracts and policies of an arm's TLs; none if SUMO itself controls them. Raises InputError."""
        city = self.task.city
        if arm.kind in (FIXED, ACTUATED) or (models is not None and not models.tls):
            return Control()
        if arm.kind in DRIVERS:
            return Control(list(contracts_of_city(city, self.task.tls, self.street).values()), driver=arm.kind)
        assert models is not None, "a served arm has models"
        served = fetch_contracts(models.client, models.tls, models.model_number)
        check_contracts_match_city(with_street_dialect(city) if arm.policy is not None else city, served)
        policies = ServedPolicies(models.client, served, models.model_number, SERVED_DEADLINE_S)
        return Control(list(served.values()), policies)


class _Measurement:
    """Vehicle seconds lost and waited on roads, sampled while a simulation runs."""

    def __init__(
        self,
        connection: SumoConnection,
        lanes: Mapping[str, Mapping[str, float]],
        roads: Sequence[str],
        stop_lanes: Sequence[str],
    ) -> None:
        """Begin with the halting vehicles.

        Args:
            connection: to SUMO.
            lanes: TL -> lane that leads to it -> speed limit in m/s.
            roads: roads with a measured queue.
            stop_lanes: lanes whose queue is sampled.
        """
        self._connection, self._lost_time, self._roads = connection, LostTime(connection, lanes), roads
        self._lanes = tuple(lane for by_lane in lanes.values() for lane in by_lane)
        index_of = {lane: k for k, lane in enumerate(self._lanes)}
        self._stop_lanes = {lane: index_of[lane] for lane in stop_lanes}
        self._first = self._newest = connection.halting(self._lanes)
        self._samples: list[NDArray[np.int32]] = []
        self._queued_s = np.zeros(len(self._lanes))
        self.seconds = 0.0
        self.lost_s: dict[str, Counter[str]] = {tl: Counter() for tl in lanes}
        """TL -> road -> vehicle seconds."""
        self._waiting: Sequence[str] = ()

    def add(self, seconds: float) -> None:
        """Add the vehicles that lose time or wait now, weighted by the seconds since the last sample."""
        self.seconds += seconds
        for tl, by_road in self._lost_time.by_road().items():
            self.lost_s[tl].update({road: seconds * lost for road, lost in by_road.items()})
        self._newest = self._connection.halting(self._lanes)
        self._queued_s += seconds * self._newest
        self._samples.append(self._newest[list(self._stop_lanes.values())])

    def end(self) -> None:
        """Read the vehicles that wait to depart."""
        self._waiting = self._connection.traffic(()).waiting

    def queue_by_road(self) -> dict[str, float]:
        """Mean number of halting vehicles, by road with a measured queue."""
        queues: dict[str, float] = dict.fromkeys(self._roads, 0.0)
        for lane, queued_s in zip(self._lanes, self._queued_s.tolist(), strict=True):
            if road_of(lane) in queues:
                queues[road_of(lane)] += queued_s / self.seconds
        return queues

    def road_traffic(self, passed: PassedVehicles, upstream: Mapping[str, Sequence[str]]) -> RoadTraffic:
        """The measurements by road and lane. `passed`: after it was read."""
        growth = defaultdict[str, float](float, Counter(self._waiting))
        for lane, change in zip(self._lanes, (self._newest - self._first).tolist(), strict=True):
            if lane not in self._stop_lanes:
                growth[road_of(lane)] += change
        samples = np.array(self._samples)
        halting = {lane: samples[:, k] for k, lane in enumerate(self._stop_lanes)}
        lost_s = {road: lost for by_road in self.lost_s.values() for road, lost in by_road.items()}
        lanes_of: dict[str, list[str]] = {}
        for lane in passed.by_lane:
            lanes_of.setdefault(road_of(lane), []).append(lane)
        return RoadTraffic(self.seconds, lanes_of, passed.by_lane, passed.lost_s, lost_s, halting, growth, upstream)


def _by_window(delay_by_departure: Sequence[tuple[float, float]]) -> dict[int, float]:
    delays: dict[int, list[float]] = {}
    for departure_s, delay_s in delay_by_departure:
        delays.setdefault(int(departure_s // WINDOW_S * WINDOW_S), []).append(delay_s)
    return {begin_s: float(np.mean(delays[begin_s])) for begin_s in sorted(delays)}


def delays_s(outcomes: Iterable[Outcome]) -> list[float]:
    """The mean delay of each outcome."""
    return [outcome.delay_s for outcome in outcomes]


def outcome_values(outcome: Outcome) -> dict[str, float]:
    """The values that are compared between arms."""
    return {
        "delay_s": outcome.delay_s,
        "duration_s": outcome.duration_s,
        "waiting_s": outcome.waiting_s,
        "stops": outcome.stops,
        "finished": float(outcome.finished),
        "worst_tl_s": max(outcome.delay_by_tl.values(), default=0.0),
        "worst_road_s": outcome.worst_road_s,
        **{f"{name}_g": grams for name, grams in outcome.emissions_g.items()},
    }


def describe_overrides(arms: Sequence[Arm], results: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """A line for each arm whose requested states the safety rules replaced: how many in a simulation, by reason."""
    lines = []
    for arm in arms:
        counts = sum((Counter(outcome.overrides_by_reason) for outcome in results[arm.name]), Counter[str]())
        texts = [f"{count / len(results[arm.name]):.1f} {reason}" for reason, count in counts.most_common()]
        if texts:
            lines.append(f"overrides in a simulation: {arm.name}: {', '.join(texts)}")
    return lines


def unchanged_greens(arms: Sequence[Arm], results: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """A line for each arm but `fixed` with TLs that never changed their green in a simulation."""
    lines = []
    for arm in arms:
        counts = Counter(tl for outcome in results[arm.name] for tl in outcome.unchanged_tls)
        if counts and arm.kind != FIXED:
            tls = ", ".join(f"{tl} ({count} of {len(results[arm.name])})" for tl, count in counts.items())
            lines.append(f"warning: {arm.name}: never changed its green in a simulation: {tls}")
    return lines
