"""One simulation of an arm, over libsumo in this process, and what is measured of it."""

import contextlib
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from city import config, network
from controller.assembly import assemble
from controller.decision_step import DecisionLoop
from controller.observation import Observation
from controller.policies.policy import Action, Policies
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.libsumo_connection import LibsumoConnection, start_libsumo
from controller.sumo.network import check_contracts_match_city
from controller.sumo.tripinfo import TRIPINFO_OPTIONS, read_trips
from evaluation import actuated
from evaluation.arms import ACTUATED, FIXED, MAX_PRESSURE, SERVED, Arm
from export import contract
from serving.client import Client
from training.approaches import lanes_before
from training.demand import Demand

SAMPLE_INTERVAL_S = 10.0
"""Simulated seconds between two measurements of the delay by TL and approach."""
SERVED_DEADLINE_S = 30.0
"""Wall time for an answer: an evaluation measures policies, not the machine's load."""


@dataclass(frozen=True)
class Task:
    """What is evaluated, the same for all simulations."""

    city: config.City
    tls: tuple[str, ...]
    server: str = ""
    """HOST:PORT of the served arms' models."""
    seconds: float | None = None
    """Simulated time; None: up to the configuration's end."""


@dataclass(frozen=True)
class Outcome:
    """What was measured in one simulation. Means are over all vehicles, also those that have not arrived or departed."""

    arm: str
    seed: int
    delay_s: float
    """Mean of time loss + departure delay."""
    waiting_s: float
    stops: float
    """Mean number of stops."""
    duration_s: float
    finished: int
    total: int
    delay_by_tl: Mapping[str, float]
    """Vehicle seconds lost on the way to each TL, vehicles that wait to depart included, divided by `total`."""
    worst_approach: str
    worst_approach_s: float
    """The road into a TL on which most vehicle seconds are lost, and how many, divided by `total`."""
    overrides: int
    missing_answers: int
    wall_s: float


class NoPolicies:
    """`Policies` that never answer: every TL is in its fallback."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        return dict.fromkeys(observations, RuntimeError("this arm has no policies"))


class Simulation:
    """Runs the simulations of a task, one after another."""

    def __init__(self, task: Task) -> None:
        """Read the street and the served contracts. Raises InputError."""
        self.task = task
        self.street = network.of_city(task.city)
        self._own = [contract.build(task.city, task.city.tls[tl], self.street) for tl in task.tls]
        self._client = Client(task.server, retries=2) if task.server else None
        self._lanes = lanes_before(
            self.street.net_file, {own.tl: [lane for signal in own.signals for lane in signal.lane_ids] for own in self._own}
        )

    def run(self, arm: Arm, demand: Demand) -> Outcome:
        """Simulate the arm. Raises InputError if its models do not fit."""
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="greenserve-") as name:
            folder = Path(name)
            tripinfo = folder / "tripinfo.xml"
            options = ["-c", str(self.task.city.network.sumocfg), *demand.options, "--no-step-log", "--no-warnings"]
            options += ["--tripinfo-output", str(tripinfo), *TRIPINFO_OPTIONS]
            if arm.kind == ACTUATED:
                signals = [self.street.signals[s] for tl in self.task.tls for s in self.task.city.tls[tl].signals]
                files = [*_additional_files(self.task.city), actuated.write(folder / "actuated.add.xml", signals)]
                options += ["--additional-files", ",".join(map(str, files))]
            with contextlib.closing(start_libsumo(options)) as connection:
                loop = self._loop(arm, connection)
                sampler = _Sampler(connection.api, self._lanes)
                now = float(connection.api.simulation.getTime())
                end_s = self._end_s(now)
                while now < end_s:
                    now = min(now + SAMPLE_INTERVAL_S, end_s)
                    if loop is None:
                        connection.api.simulationStep(now)
                    else:
                        while loop.now < now:
                            loop.step(now)
                    sampler.sample()
            trips, stops = read_trips(tripinfo), _stops(tripinfo)
        approach, approach_s = sampler.worst_approach()
        vehicles = max(trips.total, 1)
        return Outcome(
            arm.name,
            demand.seed,
            trips.delay_s,
            trips.waiting_s,
            stops / vehicles,
            trips.duration_s,
            trips.finished,
            trips.total,
            {tl: lost_s / vehicles for tl, lost_s in sampler.by_tl().items()},
            approach,
            approach_s / vehicles,
            sum(loop.counters.overrides.values()) if loop is not None else 0,
            sum(loop.counters.missing_answers.values()) if loop is not None and arm.kind == SERVED else 0,
            time.perf_counter() - begin,
        )

    def _loop(self, arm: Arm, connection: LibsumoConnection) -> DecisionLoop | None:
        """What controls the TLs; None: SUMO does."""
        if arm.kind in (FIXED, ACTUATED):
            return None
        city, contracts, control = self.task.city, self._own, self.task.city.controller
        policies: Policies = NoPolicies()
        if arm.kind == MAX_PRESSURE:
            control = replace(control, fallback="max-pressure", hold_s=0.0)
        else:
            assert self._client is not None
            served = fetch_contracts(self._client, self.task.tls, arm.model_number)
            check_contracts_match_city(city, served)
            policies, contracts = ServedPolicies(self._client, served, arm.model_number, SERVED_DEADLINE_S), list(served.values())
        return assemble(connection, self.street, contracts, policies, city.safety, control)

    def _end_s(self, begin_s: float) -> float:
        if self.task.seconds is not None:
            return begin_s + self.task.seconds
        assert self.street.end_s is not None, "a task without an end is refused before it starts"
        return self.street.end_s


class _Sampler:
    """Vehicle seconds lost by lane, sampled every SAMPLE_INTERVAL_S."""

    def __init__(self, api: Any, lanes: Mapping[str, Mapping[str, float]]) -> None:
        self._api, self._lanes = api, lanes
        self._tl_of_road = {lane.rpartition("_")[0]: tl for tl, by_lane in lanes.items() for lane in by_lane}
        self._lost_s = {lane: 0.0 for by_lane in lanes.values() for lane in by_lane}
        self._undeparted_s = dict.fromkeys(lanes, 0.0)

    def sample(self) -> None:
        lane, vehicle = self._api.lane, self._api.vehicle
        for by_lane in self._lanes.values():
            for name, limit_mps in by_lane.items():
                if count := lane.getLastStepVehicleNumber(name):
                    share = max(0.0, 1.0 - lane.getLastStepMeanSpeed(name) / limit_mps)
                    self._lost_s[name] += SAMPLE_INTERVAL_S * count * share
        for name in self._api.simulation.getPendingVehicles():
            if tl := self._tl_of_road.get(vehicle.getRoute(name)[0]):
                self._undeparted_s[tl] += SAMPLE_INTERVAL_S

    def by_tl(self) -> dict[str, float]:
        return {tl: self._undeparted_s[tl] + sum(self._lost_s[lane] for lane in by_lane) for tl, by_lane in self._lanes.items()}

    def worst_approach(self) -> tuple[str, float]:
        roads: dict[str, float] = {}
        for lane, lost_s in self._lost_s.items():
            road = lane.rpartition("_")[0]
            roads[road] = roads.get(road, 0.0) + lost_s
        return max(roads.items(), key=lambda item: item[1], default=("", 0.0))


def _additional_files(city: config.City) -> list[Path]:
    """The additional files of a city's sumocfg."""
    assert city.network.sumocfg is not None
    for _, element in ET.iterparse(city.network.sumocfg):
        if element.tag in ("additional-files", "a"):
            names = element.attrib.get("value", "").split(",")
            return [city.network.sumocfg.resolve().parent / name.strip() for name in names if name.strip()]
    return []


def _stops(tripinfo: Path) -> float:
    return sum(float(element.get("waitingCount", 0)) for _, element in ET.iterparse(tripinfo) if element.tag == "tripinfo")


def outcome_values(outcome: Outcome) -> dict[str, float]:
    """The numbers that are compared."""
    return {
        "delay_s": outcome.delay_s,
        "waiting_s": outcome.waiting_s,
        "stops": outcome.stops,
        "duration_s": outcome.duration_s,
        "finished": float(outcome.finished),
        "worst_tl_s": max(outcome.delay_by_tl.values(), default=0.0),
        "worst_approach_s": outcome.worst_approach_s,
    }


def by_arm(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of each arm, in the order of their seeds."""
    arms: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda each: each.seed):
        arms.setdefault(outcome.arm, []).append(outcome)
    return arms
