"""One simulated episode: target TLs explore, infer TLs are asked from their server, other signals run their programs."""

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city import config, network
from controller.assembly import assemble
from controller.observation import Observation
from controller.policies.policy import Action
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS, Trips, read_trips
from export import contract
from serving.client import Client
from training.actor_critics import ActorCritics, Floats, layouts
from training.demand import Demand
from training.rewards import Rewards
from training.transitions import Transitions

SERVED_DEADLINE_S = 30.0
"""Wall time for an infer TL's answer: training need not keep up with a street, and must not depend on the machine's load."""


Arrays = Sequence[Sequence[Floats]]
"""Of the networks, by layout."""


@dataclass(frozen=True)
class Task:
    """What is trained, the same for all episodes of a run."""

    city: config.City
    target_tls: tuple[str, ...]
    infer_tls: tuple[str, ...] = ()
    server: str = ""
    """HOST:PORT of the infer TLs' models."""
    infer_model_number: int | None = None
    reward: str = "delay"
    shared: bool = False
    hidden: tuple[int, ...] = (64, 64)
    seconds: float | None = None
    """Simulated time of an episode; None: up to the configuration's end."""
    sumo_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Episode:
    """What happened in an episode."""

    transitions: Mapping[str, Transitions]
    """By target TL; empty without exploration."""
    trips: Trips
    """Without `delay_by_departure`."""
    overrides: int
    missing_answers: int
    """Of infer TLs."""
    wall_s: float


class Simulation:
    """Runs the episodes of a task, one after another, with libsumo in this process."""

    def __init__(self, task: Task) -> None:
        """Read the street and the contracts. Raises InputError."""
        self.task = task
        self.street = network.of_city(task.city)
        self.contracts = [contract.build(task.city, task.city.tls[tl], self.street) for tl in task.target_tls]
        self.layouts = layouts(self.contracts, task.shared, task.hidden)
        self._client = Client(task.server, retries=2) if task.infer_tls else None
        self._served = fetch_contracts(self._client, task.infer_tls, task.infer_model_number) if self._client else {}

    def run(self, arrays: Arrays, demand: Demand, seed: Sequence[int], explore: bool) -> Episode:
        """Simulate an episode.

        Args:
            arrays: the networks.
            demand: of this episode.
            seed: of the exploration.
            explore: sample actions and record transitions; without, every TL takes its best action.
        """
        begin = time.perf_counter()
        networks = [ActorCritics(layout, each) for layout, each in zip(self.layouts, arrays, strict=True)]
        with tempfile.TemporaryDirectory(prefix="greenserve-") as folder:
            tripinfo = Path(folder) / "tripinfo.xml"
            options = ["-c", str(self.task.city.network.sumocfg), *demand.options, "--no-step-log", "--no-warnings"]
            options += ["--tripinfo-output", str(tripinfo), *TRIPINFO_OPTIONS, *self.task.sumo_options]
            with contextlib.closing(start_libsumo(options)) as connection:
                policies = ExploringPolicies(networks, np.random.default_rng(list(seed)), explore, self._served_policies())
                contracts = [*self.contracts, *self._served.values()]
                city = self.task.city
                loop = assemble(connection, self.street, contracts, policies, city.safety, city.controller)
                if explore:
                    policies.rewards = Rewards(self.task.reward, connection, self.street, self.contracts)
                end_s = self._end_s(loop.now)
                while loop.now < end_s:
                    loop.step(end_s)
                counters = loop.counters
            trips = replace(read_trips(tripinfo), delay_by_departure=())
        missing = sum(count for tl, count in counters.missing_answers.items() if tl in self._served)
        return Episode(policies.transitions(), trips, sum(counters.overrides.values()), missing, time.perf_counter() - begin)

    def _served_policies(self) -> ServedPolicies | None:
        if self._client is None:
            return None
        return ServedPolicies(self._client, self._served, self.task.infer_model_number, SERVED_DEADLINE_S)

    def _end_s(self, begin_s: float) -> float:
        if self.task.seconds is not None:
            return begin_s + self.task.seconds
        if self.street.end_s is None:
            raise AssertionError("a task without an end is refused before it starts")
        return self.street.end_s


@dataclass(frozen=True)
class _Decision:
    """The TLs of one layout that decided at the same moment; arrays with one row per TL."""

    indices: NDArray[np.intp]
    """Of the layout's TLs."""
    x: Floats
    action: Floats
    log_p: Floats
    value: Floats
    reward: NDArray[np.float64]
    """Of the time before this decision."""


class ExploringPolicies:
    """The `Policies` of the decision step while target TLs learn."""

    def __init__(
        self, networks: Sequence[ActorCritics], rng: np.random.Generator, explore: bool, served: ServedPolicies | None
    ) -> None:
        self._networks, self._rng, self._explore, self._served = networks, rng, explore, served
        self._of = {tl: (k, i) for k, each in enumerate(networks) for i, tl in enumerate(each.layout.tls)}
        self._decisions: list[list[_Decision]] = [[] for _ in networks]
        self.rewards: Rewards | None = None
        """Set when the run is assembled."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        """The actions of all TLs that are due."""
        answers: dict[str, Action | Exception] = {}
        if self._served is not None:
            others = {tl: observation for tl, observation in observations.items() if tl not in self._of}
            if others:
                answers.update(self._served.ask(others))
        for k, networks in enumerate(self._networks):
            tls = [tl for tl in observations if tl in self._of and self._of[tl][0] == k]
            if tls:
                answers.update(self._decide(k, networks, tls, [observations[tl] for tl in tls]))
        return answers

    def _decide(
        self, k: int, networks: ActorCritics, tls: Sequence[str], observations: Sequence[Observation]
    ) -> dict[str, Action | Exception]:
        rows, x = networks.rows_of(tls), networks.inputs_of(observations)
        if not self._explore:
            actions = networks.best(rows, x)
        else:
            actions, log_p = networks.sample(rows, x, self._rng)
            assert self.rewards is not None
            reward = np.array(self.rewards.since_last(tls))
            indices = np.array([self._of[tl][1] for tl in tls], np.intp)
            self._decisions[k].append(_Decision(indices, x, actions, log_p, networks.critic(rows, x), reward))
        layout = networks.layout
        if layout.is_categorical:
            return {tl: action.astype(np.float64) for tl, action in zip(tls, actions, strict=True)}
        sizes = dict(zip(layout.tls, layout.action_sizes, strict=True))
        return {tl: np.clip(action[: sizes[tl]], -1, 1).astype(np.float64) for tl, action in zip(tls, actions, strict=True)}

    def transitions(self) -> dict[str, Transitions]:
        """By TL, what it experienced; the reward of a decision is measured at the next one."""
        result = {}
        for networks, decisions in zip(self._networks, self._decisions, strict=True):
            if not decisions:
                continue
            indices = np.concatenate([each.indices for each in decisions])
            columns = [
                np.concatenate([getattr(each, name) for each in decisions])
                for name in ("x", "action", "log_p", "value", "reward")
            ]
            for i, tl in enumerate(networks.layout.tls):
                x, action, log_p, value, reward = (column[indices == i] for column in columns)
                following = np.append(reward[1:], 0.0).astype(np.float32)
                result[tl] = Transitions(x, action, log_p.astype(np.float32), value.astype(np.float32), following)
        return result
