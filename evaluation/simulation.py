"""One simulation of an arm, over libsumo in this process, and what is measured of it."""

import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from city import config, network
from controller.assembly import assemble
from controller.decision_step import DecisionLoop
from controller.observation import Observation
from controller.policies.policy import Action, Policies
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.libsumo_connection import LibsumoConnection
from controller.sumo.network import check_contracts_match_city
from controller.sumo.tripinfo import read_trips
from evaluation import actuated
from evaluation.arms import ACTUATED, FIXED, MAX_PRESSURE, Arm
from export import contract
from serving.client import Client
from training.approaches import upstream_lanes
from training.demand import Demand
from training.lost_time import LostTime
from training.street_simulation import SERVED_DEADLINE_S, check_answers, end_of, simulated

SAMPLE_INTERVAL_S = 10.0
"""Simulated seconds between two measurements of the delay by TL and approach."""


@dataclass(frozen=True)
class EvaluationTask:
    """What is evaluated, the same for all simulations."""

    city: config.City
    tls: tuple[str, ...]
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
    worst_road: str
    worst_road_s: float
    """The road on the way to a TL on which most vehicle seconds are lost, and how many, divided by `total`."""
    overrides: int


class NoPolicies:
    """`Policies` that never answer: every TL is in its fallback."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        return dict.fromkeys(observations, RuntimeError("this arm has no policies"))


@dataclass(frozen=True)
class ServedModels:
    """The models of a served arm."""

    client: Client
    tls: tuple[str, ...]
    """TLs that have a model; the others run their own programs."""
    model_number: int | None = None
    """None: the newest."""


class ArmSimulator:
    """Runs the simulations of a task, one after another."""

    def __init__(self, task: EvaluationTask) -> None:
        """Read the street. Raises InputError."""
        self.task = task
        self.street = network.of_city(task.city)
        self._lanes = upstream_lanes(self.street, {tl: task.city.tls[tl].signals for tl in task.tls})

    def run(self, arm: Arm, demand: Demand, models: ServedModels | None = None) -> Outcome:
        """Simulate the arm; a served one has models. Raises InputError if they do not fit."""
        sumocfg = self.task.city.network.sumocfg
        assert sumocfg is not None, "a city without demand is refused before it is evaluated"
        with tempfile.TemporaryDirectory(prefix="greenserve-") as folder:
            options: list[str] = []
            if arm.kind == ACTUATED:
                signals = [self.street.signals[s] for tl in self.task.tls for s in self.task.city.tls[tl].signals]
                files = [*_additional_files(sumocfg), actuated.write(Path(folder) / "actuated.add.xml", signals)]
                options = ["--additional-files", ",".join(map(str, files))]
            tripinfo = Path(folder) / "tripinfo.xml"
            with simulated(sumocfg, demand, tripinfo, options) as connection:
                loop = self._loop(arm, connection, models)
                lost_time = LostTime(connection.api, self._lanes)
                lost_s: dict[str, Counter[str]] = {tl: Counter() for tl in self._lanes}
                now = float(connection.api.simulation.getTime())
                end_s = end_of(self.street, now, self.task.seconds)
                while now < end_s:
                    now = min(now + SAMPLE_INTERVAL_S, end_s)
                    if loop is None:
                        connection.api.simulationStep(now)
                    else:
                        while loop.now < now:
                            loop.step(now)
                    for tl, by_road in lost_time.by_road().items():
                        lost_s[tl].update({road: SAMPLE_INTERVAL_S * lost for road, lost in by_road.items()})
            if loop is not None and models is not None:
                check_answers(loop.counters.missing_answers, models.tls)
            trips, stops = read_trips(tripinfo), _stops(tripinfo)
        vehicles = max(trips.total, 1)
        roads = [item for by_road in lost_s.values() for item in by_road.items()]
        worst_road, worst_road_s = max(roads, key=lambda item: item[1], default=("", 0.0))
        return Outcome(
            arm.name,
            demand.seed,
            trips.delay_s,
            trips.waiting_s,
            stops / vehicles,
            trips.duration_s,
            trips.finished,
            trips.total,
            {tl: by_road.total() / vehicles for tl, by_road in lost_s.items()},
            worst_road,
            worst_road_s / vehicles,
            sum(loop.counters.overrides.values()) if loop is not None else 0,
        )

    def _loop(self, arm: Arm, connection: LibsumoConnection, models: ServedModels | None) -> DecisionLoop | None:
        """What controls the TLs; None: SUMO does."""
        if arm.kind in (FIXED, ACTUATED) or (models is not None and not models.tls):
            return None
        city, control = self.task.city, self.task.city.controller
        policies: Policies = NoPolicies()
        if arm.kind == MAX_PRESSURE:
            control = replace(control, fallback="max-pressure", hold_s=0.0)
            contracts = [contract.build(city, city.tls[tl], self.street) for tl in self.task.tls]
        else:
            assert models is not None, "a served arm has models"
            served = fetch_contracts(models.client, models.tls, models.model_number)
            check_contracts_match_city(city, served)
            policies = ServedPolicies(models.client, served, models.model_number, SERVED_DEADLINE_S)
            contracts = list(served.values())
        return assemble(connection, self.street, contracts, policies, city.safety, control)


def _additional_files(sumocfg: Path) -> list[Path]:
    for _, element in ET.iterparse(sumocfg):
        if element.tag in ("additional-files", "a"):
            names = element.attrib.get("value", "").split(",")
            return [sumocfg.resolve().parent / name.strip() for name in names if name.strip()]
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
        "worst_road_s": outcome.worst_road_s,
    }


def by_arm(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of each arm, in the order of their seeds."""
    arms: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda each: each.seed):
        arms.setdefault(outcome.arm, []).append(outcome)
    return arms
