"""One simulated episode: target TLs explore, served models control the infer TLs, other signals run their programs."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city import config, network
from controller.assembly import assemble
from controller.decision_step import DecisionLoop
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.network import check_contracts_match_city
from export.training_record import TrainingRecord
from protos import policy_pb2 as pb
from serving.client import Client
from signals import contract
from signals.change_times import change_times, signal_safeties
from signals.dialects import street
from signals.observation import Observation
from signals.policy import Answer
from signals.simulation_time import next_multiple_s
from simulation.demand import SimulatedDemand
from simulation.street_simulation import SERVED_DEADLINE_S, check_answers, end_of, simulated
from simulation.trips import Trips, read_trips
from training.actor_critics import ActorCritics, Layout, layouts
from training.phase_competition.networks import StreetLayout, StreetNetworks
from training.rewards import REWARD_INTERVAL_S, Rewards
from training.transitions import Float32s, Transitions

Networks = ActorCritics | StreetNetworks
STREET = street.DIALECT.name
Arrays = Sequence[Sequence[Float32s]]
"""The arrays of `ActorCritics`, by layout."""


@dataclass(frozen=True)
class TrainingTask:
    """What is trained, the same for all episodes of a run."""

    city: config.City
    target_tls: tuple[str, ...]
    infer_tls: tuple[str, ...] = ()
    server: str = ""
    """HOST:PORT of the server of the infer TLs' models."""
    infer_model_number: int | None = None
    reward: str = "delay"
    shared: bool = False
    hidden: tuple[int, ...] = (64, 64)
    seconds: float | None = None
    """Simulated time of an episode (default: until the configuration's end)."""


@dataclass(frozen=True)
class Episode:
    """The results of an episode."""

    transitions: Mapping[str, Transitions]
    """By target TL; empty without exploration."""
    trips: Trips
    """Without `delay_by_departure`."""
    overrides: int


class EpisodeSimulator:
    """Runs the episodes of a task, one after another, over libsumo in this process."""

    def __init__(self, task: TrainingTask) -> None:
        """Read the street and the contracts. Raises InputError."""
        self.task = task
        self.street = network.of_city(task.city)
        self.contracts = [contract.build(task.city, task.city.tls[tl], self.street) for tl in task.target_tls]
        of_streets = [contract for contract in self.contracts if contract.observation.dialect == STREET]
        others = [contract for contract in self.contracts if contract.observation.dialect != STREET]
        self.layouts: list[Layout | StreetLayout] = [*layouts(others, task.shared, task.hidden)]
        if of_streets:
            self.layouts.append(StreetLayout.of(of_streets))
        self._served: dict[str, pb.PolicyContract] = {}
        if task.infer_tls:
            with self._client() as client:
                self._served = fetch_contracts(client, task.infer_tls, task.infer_model_number)
        check_contracts_match_city(task.city, self._served)

    @property
    def served_contracts(self) -> list[pb.PolicyContract]:
        """The contracts of the infer TLs' models."""
        return list(self._served.values())

    def records(self) -> dict[str, TrainingRecord]:
        """By target TL, its programs and change times, which a checkpoint does not contain."""
        records = {}
        for trained in self.contracts:
            change = change_times(trained, signal_safeties(trained, self.street, self.task.city.safety))
            programs = {signal.id: signal.program_id for signal in trained.signals}
            records[trained.tl] = TrainingRecord(programs, change.total_s if change is not None else 0.0)
        return records

    def run(self, arrays: Arrays, demand: SimulatedDemand, seed: Sequence[int], explore: bool, sharpness: float = 1.0) -> Episode:
        """Simulate an episode.

        Args:
            arrays: the networks' arrays.
            demand: the episode's demand.
            seed: seed of the exploration.
            explore: sample actions and record transitions, instead of taking every TL's best action.
            sharpness: factor of categorical actors' logits.
        """
        networks = [layout.networks(state, sharpness) for layout, state in zip(self.layouts, arrays, strict=True)]
        city = self.task.city
        with tempfile.TemporaryDirectory(prefix="greenserve-") as folder, self._served_policies() as served:
            tripinfo = Path(folder) / "tripinfo.xml"
            with simulated(city, demand, tripinfo) as connection:
                policies = ExploringPolicies(networks, np.random.default_rng(list(seed)), explore, served)
                contracts = [*self.contracts, *self._served.values()]
                loop = assemble(connection, self.street, contracts, policies, city.safety, city.controller)
                if explore:
                    rewards = Rewards(self.task.reward, connection, self.street, self.contracts, loop.now)
                    policies.begin(loop, rewards)
                begin_s = loop.now
                end_s = end_of(self.street, begin_s, self.task.seconds)
                while loop.now < end_s:
                    until_s = min(next_multiple_s(loop.now, begin_s, REWARD_INTERVAL_S), end_s)
                    while loop.now < until_s:
                        loop.step(until_s)
                    if explore:
                        rewards.sample(loop.now)
            check_answers(loop.counters.missing_answers, self._served)
            trips = replace(read_trips(tripinfo), delay_by_departure=())
        return Episode(policies.transitions(), trips, sum(loop.counters.overrides.values()))

    def _client(self) -> Client:
        return Client(self.task.server, retries=2)

    @contextlib.contextmanager
    def _served_policies(self) -> Iterator[ServedPolicies | None]:
        """The infer TLs' policies, on a connection of this episode; None without infer TLs."""
        if not self._served:
            yield None
            return
        with self._client() as client:
            yield ServedPolicies(client, self._served, self.task.infer_model_number, SERVED_DEADLINE_S)


@dataclass(frozen=True)
class _Decision:
    """The TLs of one layout that decided at the same moment; arrays with one row per TL."""

    indices: NDArray[np.intp]
    """Indices of these TLs in the layout."""
    x: Float32s
    action: Float32s
    log_p: Float32s
    reward: NDArray[np.float64]
    """For the time since the TL's last decision."""
    now: NDArray[np.float64]
    """The second of the decision."""


class ExploringPolicies:
    """The `Policies` of the decision step while target TLs learn."""

    def __init__(
        self, networks: Sequence[Networks], rng: np.random.Generator, explore: bool, served: ServedPolicies | None
    ) -> None:
        self._networks, self._rng, self._explore, self._served = networks, rng, explore, served
        self._index = {tl: (k, i) for k, actors in enumerate(networks) for i, tl in enumerate(actors.layout.tls)}
        """TL -> (index of its layout, index in the layout)."""
        self._decisions: list[list[_Decision]] = [[] for _ in networks]
        self._loop: DecisionLoop | None = None
        self._rewards: Rewards | None = None

    def begin(self, loop: DecisionLoop, rewards: Rewards) -> None:
        """Start to record decisions; called once the decision loop exists."""
        self._loop, self._rewards = loop, rewards

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Answer | Exception]:
        """The answers for all TLs that are due."""
        answers: dict[str, Answer | Exception] = {}
        if self._served is not None:
            others = {tl: observation for tl, observation in observations.items() if tl not in self._index}
            if others:
                answers.update(self._served.ask(others))
        for k, networks in enumerate(self._networks):
            tls = [tl for tl in observations if tl in self._index and self._index[tl][0] == k]
            if tls:
                answers.update(self._decide(k, networks, tls, [observations[tl] for tl in tls]))
        return answers

    def _decide(
        self, k: int, networks: Networks, tls: Sequence[str], observations: Sequence[Observation]
    ) -> dict[str, Answer | Exception]:
        rows = networks.rows_of(tls)
        x = networks.inputs_of(observations, rows)
        if not self._explore:
            actions = networks.greedy_actions(rows, x)
        else:
            actions, log_p = networks.sample(rows, x, self._rng)
            self._record(k, tls, x, actions, log_p)
        layout = networks.layout
        if isinstance(layout, StreetLayout) or layout.is_categorical:
            return {tl: Answer(action.astype(np.float64)) for tl, action in zip(tls, actions, strict=True)}
        sizes = dict(zip(layout.tls, layout.action_sizes, strict=True))
        return {
            tl: Answer(np.clip(action[: sizes[tl]], -1, 1).astype(np.float64)) for tl, action in zip(tls, actions, strict=True)
        }

    def _record(self, k: int, tls: Sequence[str], x: Float32s, actions: Float32s, log_p: Float32s) -> None:
        """Record the decisions of the TLs that apply their action now."""
        assert self._loop is not None and self._rewards is not None
        now = self._loop.now
        applied = [i for i, tl in enumerate(tls) if self._loop.intersections[tl].decides_at(now)]
        if applied:
            reward = np.array(self._rewards.since_last([tls[i] for i in applied], now))
            indices = np.array([self._index[tls[i]][1] for i in applied], np.intp)
            columns = (x[applied], actions[applied], log_p[applied], reward, np.full(len(applied), now))
            self._decisions[k].append(_Decision(indices, *columns))

    def transitions(self) -> dict[str, Transitions]:
        """The recorded transitions by TL; the reward of a decision is measured at the next one."""
        result = {}
        for networks, decisions in zip(self._networks, self._decisions, strict=True):
            if not decisions:
                continue
            indices = np.concatenate([decision.indices for decision in decisions])
            columns = [
                np.concatenate([getattr(decision, name) for decision in decisions])
                for name in ("x", "action", "log_p", "reward", "now")
            ]
            # one sort: comparing all decisions with each TL takes the square of the number of TLs
            order = np.argsort(indices, kind="stable")
            ends = np.cumsum(np.bincount(indices, minlength=len(networks.layout.tls)))
            for tl, rows in zip(networks.layout.tls, np.split(order, ends[:-1]), strict=True):
                x, action, log_p, reward, now = (column[rows] for column in columns)
                # a TL's values at once: they are only needed after the episode
                value = networks.critic(networks.rows_of([tl] * len(x)), x)
                reward = np.append(reward[1:], 0.0).astype(np.float32)
                duration_s = np.append(np.diff(now), 0.0).astype(np.float32)[: len(now)]
                result[tl] = Transitions(x, action, log_p.astype(np.float32), value.astype(np.float32), reward, duration_s)
        return result
