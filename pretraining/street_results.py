"""Simulations of streets with random demand, as jobs for executors: of arms, and what becomes of vehicles and walkers;
and episodes of a training."""

import functools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from city import network
from city.config import City
from city.network import StreetNetwork
from controller.policies.no_policies import NoPolicies
from evaluation import actuated, road_users
from evaluation.arms import ACTUATED, FIXED, POLICY, Arm
from export.actors.phase_competition import Junction, Padded, PhaseCompetition, logits
from export.checkpoints import phase_networks
from pretraining.streets import MAX_KEPT_STREETS, RandomTraffic, StreetFiles, city_of, has_own_demand, unpacked
from protos import policy_pb2 as pb
from signals import contract
from signals.observation import Observation
from signals.policy import Answer
from simulation.controlled_simulation import Control, ControlledSimulation
from simulation.executors import Executor
from simulation.street_simulation import SimulationFailed, simulated
from simulation.trips import Trips, read_trips
from training.episode import EpisodeSimulator, TrainingTask
from training.phase_competition.networks import StreetLayout
from training.transitions import Float32s, Transitions

TOO_FEW_SHARE = 0.7
"""A candidate with fewer arrivals than this share of its reference's moves too few vehicles."""
MIN_DELAY_S = 0.1
"""Lower bound of a delay in a geometric mean."""
MAX_KEPT_OF_ARMS = 2
"""Streets that a process keeps in memory for arms: jobs of the same street follow one another."""


@dataclass(frozen=True)
class StreetResult:
    """An arm on a street."""

    delay_s: float
    """Mean over all vehicles, also those that have not arrived or departed, and all persons who walk, each as one."""
    finished: int
    """Vehicles that have arrived."""
    total: int
    """Vehicles."""
    duration_s: float
    """Mean time in the network, over all vehicles."""
    walkers: int = 0
    """Persons who walk."""


@dataclass(frozen=True)
class StreetJob:
    """One simulation: an arm on a street."""

    name: str
    """Name of the street and its demand."""
    street: StreetFiles
    seed: int
    """Seed of the demand and SUMO."""
    vehicles_per_lane_h: float | None
    """Random demand, unless the street has its own."""
    seconds: float
    arm: Arm
    policy: bytes | None = None
    """Content of the arm's policy file, for processes that do not have it."""


def outcomes(
    runner: Executor, jobs: Sequence[StreetJob], report: Callable[[str], None]
) -> Iterator[tuple[StreetJob, StreetResult | None]]:
    """Simulate; yield (job, result, None if SUMO has ended it early, which is reported) in the order of completion."""
    with tqdm(total=len(jobs), unit="simulation", disable=None, leave=False) as bar:
        for k, outcome in runner.run(run_job, jobs):
            bar.update()
            if isinstance(outcome, str):
                report(f"{jobs[k].arm.name} has no result on {jobs[k].name}: {outcome}")
            yield jobs[k], None if isinstance(outcome, str) else outcome


def run_job(job: StreetJob) -> StreetResult | str:
    """Simulate an arm on a street; return the reason if SUMO ends it early. Raises InputError."""
    with tempfile.TemporaryDirectory(prefix="greenserve-") as name, unpacked(job.street) as folder:
        scratch = Path(name)
        city, street = _read(folder)
        rate = None if has_own_demand(folder) else job.vehicles_per_lane_h
        traffic = RandomTraffic(street.net_file, job.seed, rate, job.seconds)
        policy = job.arm.policy
        if job.policy is not None:
            policy = scratch / f"network{phase_networks.SUFFIX}"
            policy.write_bytes(job.policy)
        control, additional = control_of(city, street, job.arm.kind, policy, scratch)
        tripinfo = scratch / "tripinfo.xml"
        try:
            with simulated(city, traffic, tripinfo, additional=additional) as connection:
                ControlledSimulation(connection, city, street, control).advance(job.seconds)
        except SimulationFailed as error:
            return str(error)
        trips, walkers_s = read_trips(tripinfo), road_users.walkers_lost_s(tripinfo)
        lost_s, users = trips.delay_s * trips.total + sum(walkers_s), trips.total + len(walkers_s)
        return StreetResult(lost_s / max(1, users), trips.finished, trips.total, trips.duration_s, len(walkers_s))


@functools.lru_cache(MAX_KEPT_OF_ARMS)
def _read(folder: Path) -> tuple[City, StreetNetwork]:
    city = city_of(folder)
    return city, network.of_city(city)


def control_of(
    city: City, street: StreetNetwork, kind: str, policy: Path | None, scratch: Path
) -> tuple[Control, list[Path]]:
    """(control of all TLs of a street by an arm, additional files for it). Raises InputError.

    Args:
        city: the TLs and their times.
        street: the city's network.
        kind: the arm's kind.
        policy: file of a policy for any junction, for that kind.
        scratch: folder for actuated programs.
    """
    if kind == FIXED:
        return Control(), []
    if kind == ACTUATED:
        signals = [street.signals[signal] for tl in city.tls.values() for signal in tl.signals]
        return Control(), [actuated.write(scratch / "actuated.add.xml", signals)]
    contracts = [contract.build(city, tl, street) for tl in city.tls.values()]
    if kind == POLICY:
        assert policy is not None, "this kind has a file"
        return Control(contracts, JunctionPolicies(contracts, policy)), []
    return Control(contracts, NoPolicies(), kind), []


class JunctionPolicies:
    """The `Policies` of the decision step, with NumPy in this process: the actions that exported models of a policy for
    any junction would give, without a server."""

    def __init__(self, contracts: Sequence[pb.PolicyContract], policy: Path) -> None:
        """Read the policy's file. Raises InputError. `contracts`: of the street dialect."""
        network, _ = phase_networks.load(policy)
        self._network = {name: array.astype(np.float64) for name, array in network.items()}
        junctions = [Junction.of_contract(c) for c in contracts]
        self._junctions = Padded.of(junctions)
        steps = [PhaseCompetition(network, junction) for junction in junctions]
        columns = [step.fleet_columns(steps) for step in steps]
        self._columns = {c.tl: (row, columns[row]) for row, c in enumerate(contracts)}
        """By TL, its row of the junctions, and the columns of its observation that make a padded one
        (`fleet_columns`)."""

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """The answer of every TL."""
        if not observations:
            return {}
        rows, x = [], []
        for tl, observation in observations.items():
            row, columns = self._columns[tl]
            rows.append(row)
            x.append(np.append(observation, 0.0)[columns])
        actions = logits(self._network, self._junctions.take(np.array(rows)), np.array(x)).argmax(1)
        return {tl: Answer(np.array([action], np.float64)) for tl, action in zip(observations, actions, strict=True)}


def name_of(street: Path, demand: int) -> str:
    """Name of a simulation: the street's, with a number from the second demand on."""
    return f"{street.name} ({demand + 1})" if demand else street.name


def combined(results: Sequence[StreetResult | None]) -> StreetResult | None:
    """The result over all road users of several demands of a street; None if SUMO has ended one of them early."""
    known = [result for result in results if result is not None]
    if len(known) < len(results):
        return None
    total, walkers = (sum(getattr(result, name) for result in known) for name in ("total", "walkers"))
    delay_s = sum(result.delay_s * (result.total + result.walkers) for result in known) / max(1, total + walkers)
    duration_s = sum(result.duration_s * result.total for result in known) / max(1, total)
    return StreetResult(delay_s, sum(result.finished for result in known), total, duration_s, walkers)


def moves_too_few(candidate: StreetResult, reference: StreetResult) -> bool:
    """True if a candidate has far fewer arrivals than its reference; shown as a gridlock."""
    return candidate.finished < TOO_FEW_SHARE * reference.finished


def mean_delay_s(results: Iterable[StreetResult | None]) -> float:
    """Geometric mean of the delays, of results with vehicles; infinite without one."""
    logs = [math.log(max(result.delay_s, MIN_DELAY_S)) for result in results if result is not None and result.total]
    return math.exp(float(np.mean(logs))) if logs else math.inf


@dataclass(frozen=True)
class StreetEpisode:
    """The results of an episode."""

    junctions: tuple[Junction, ...]
    transitions: tuple[Transitions, ...]
    """By junction; empty without exploration."""
    trips: Trips


class StreetSimulator:
    """Runs episodes on many streets, one after another, in this process."""

    def __init__(self, seconds: float, reward: str = "delay") -> None:
        self._seconds, self._reward = seconds, reward
        self._simulator = functools.lru_cache(MAX_KEPT_STREETS)(self._new_simulator)

    def run(
        self,
        street: StreetFiles,
        arrays: Sequence[Float32s],
        vehicles_per_lane_h: float,
        seed: int,
        explore: bool,
        sharpness: float,
    ) -> StreetEpisode | str:
        """Simulate an episode on a street; the reason if SUMO ends it early. Raises InputError.

        Args:
            street: of `synthetic.streets.generate`, or one like it.
            arrays: actor and critic; none for the heuristic.
            vehicles_per_lane_h: demand.
            seed: of the demand and the exploration.
            explore: sample actions and record transitions.
            sharpness: factor of the scores.
        """
        with unpacked(street) as folder:
            simulator = self._simulator(folder)
            traffic = RandomTraffic(simulator.street.net_file, seed, vehicles_per_lane_h, self._seconds)
            try:
                episode = simulator.run([list(arrays)], traffic, (seed, 5), explore, sharpness)
            except SimulationFailed as error:
                return str(error)  # one street must not end a training on hundreds
        (layout,) = simulator.layouts
        assert isinstance(layout, StreetLayout), "all TLs of a street have the street dialect"
        by_tl = dict(zip(layout.tls, layout.junctions, strict=True))
        pairs = [(junction, episode.transitions[tl]) for tl, junction in by_tl.items() if tl in episode.transitions]
        return StreetEpisode(tuple(j for j, _ in pairs), tuple(t for _, t in pairs), episode.trips)

    def _new_simulator(self, folder: Path) -> EpisodeSimulator:
        city = city_of(folder)
        return EpisodeSimulator(TrainingTask(city, tuple(city.tls), reward=self._reward, seconds=self._seconds))
