"""Target TLs in simulation: their actions are given, served models control the infer TLs, other signals run their
programs.

The trainer and the environment stand on this:

    with target_tls.simulation(demand, ...) as simulation:
        while not simulation.is_over:
            simulation.act(actions_for(simulation.observe()))
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from city import config, names, network
from city.arguments import check_server
from city.errors import InputError
from controller.events import Sent
from controller.policies.no_policies import NoPolicies
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from controller.sumo.network import check_contract_matches_network, check_contracts_match_city
from protos import policy_pb2 as pb
from serving.client import Client
from serving.contract import CATEGORICAL
from signals import contract
from signals.observation import Observation
from signals.policy import Action, Answer, Policies
from signals.simulation_time import next_multiple_s
from simulation.controlled_simulation import Control, ControlledSimulation
from simulation.demand import SimulatedDemand
from simulation.rewards import REWARD_INTERVAL_S, CombinedRewards, Reward, RewardedTls, RewardPart, Rewards
from simulation.street_simulation import SERVED_DEADLINE_S, TRACI, end_of, simulated


@dataclass(frozen=True)
class TargetTask:
    """Task of a simulation, the same for all episodes."""

    city: config.City
    target_tls: tuple[str, ...]
    infer_tls: tuple[str, ...] = ()
    server: str = ""
    """HOST:PORT of the server of the infer TLs' models."""
    infer_model_number: int | None = None
    """Their model number (default: the newest)."""
    reward: Reward = "delay"
    seconds: float | None = None
    """Simulated time of an episode (default: until the configuration's end)."""


def select_tls(
    city: config.City,
    targets: tuple[str, Iterable[str] | None],
    infers: tuple[str, Iterable[str]],
    served: Mapping[str, Any],
) -> tuple[list[str], list[str]]:
    """(target TLs, infer TLs) that a user named. Raises InputError.

    Args:
        city: their city.
        targets: the argument's name, and its value; None: all but the infer TLs.
        infers: the argument's name, and its value.
        served: name -> value of the arguments for the server's address and the models' folder, then others.
    """
    (target_flag, target_names), (infer_flag, infer_names) = targets, infers
    tls = list(city.tls)
    infer_tls = names.select(infer_names, tls, infer_flag, city.tl_of_signal) if infer_names else []
    if target_names is not None:
        target_tls = names.select(target_names, tls, target_flag, city.tl_of_signal)
    elif not (target_tls := [tl for tl in tls if tl not in infer_tls]):
        raise InputError(f"{infer_flag} names every TL; leave out the target TLs")
    if both := [tl for tl in target_tls if tl in infer_tls]:
        raise InputError(
            f"{', '.join(both)} cannot be in {target_flag} and {infer_flag} at once; name it in one of them"
        )
    given = [name for name, value in served.items() if value is not None]
    if given and not infer_tls:
        raise InputError(f"{given[0]} needs {infer_flag}, the TLs that a served model controls")
    server, folder, *_ = served
    if server in given and folder in given:
        raise InputError(f"{server} and {folder} both name the models; pass one of them")
    check_server(served[server], server)
    return target_tls, infer_tls


class TargetTls:
    """The target TLs of a task, in one simulation after another."""

    def __init__(self, task: TargetTask) -> None:
        """Read the street and the contracts. Raises InputError."""
        self.task = task
        self.street = network.of_city(task.city)
        self.contracts = [contract.build(task.city, task.city.tls[tl], self.street) for tl in task.target_tls]
        self.served: dict[str, pb.PolicyContract] = {}
        """The contracts of the infer TLs' models."""
        if task.infer_tls:
            with Client(task.server, retries=2) as client:
                self.served = fetch_contracts(client, task.infer_tls, task.infer_model_number)
        check_contracts_match_city(task.city, self.served)
        # once: they are the same in every episode
        for each in [*self.contracts, *self.served.values()]:
            check_contract_matches_network(each, self.street)
        parts = task.reward
        if not isinstance(parts, tuple):
            parts = (RewardPart(parts, 1.0, frozenset(task.target_tls)),)
        self._rewarded = [(part, RewardedTls(part.reward, self.street, self.contracts)) for part in parts]

    @contextlib.contextmanager
    def simulation(
        self,
        demand: SimulatedDemand,
        tripinfo: Path | None,
        rewards: bool = True,
        folder: Path | None = None,
        transport: str = TRACI,
        options: Sequence[str] = (),
    ) -> Iterator["TargetSimulation"]:
        """Run an episode; the tripinfo file is complete after the block.

        Args:
            demand: the episode's demand.
            tripinfo, folder, transport, options: see `simulated`.
            rewards: whether rewards are measured.

        Raises InputError, SimulationFailed.
        """
        task, city = self.task, self.task.city
        policies: Policies = NoPolicies()
        with contextlib.ExitStack() as stack:
            if self.served:
                client = stack.enter_context(Client(task.server, retries=2))
                policies = ServedPolicies(client, self.served, task.infer_model_number, SERVED_DEADLINE_S)
            connection = stack.enter_context(simulated(city, demand, tripinfo, options, folder, transport))
            control = Control([*self.contracts, *self.served.values()], policies, is_checked=True)
            simulation = ControlledSimulation(connection, city, self.street, control)
            measured = None
            if rewards:
                parts = [(part, Rewards(rewarded, connection, simulation.now)) for part, rewarded in self._rewarded]
                measured = CombinedRewards(parts)
            end_s = end_of(self.street, simulation.now, task.seconds)
            yield TargetSimulation(self.contracts, simulation, measured, end_s)


class TargetSimulation:
    """One episode, while it runs."""

    def __init__(
        self,
        contracts: Sequence[pb.PolicyContract],
        simulation: ControlledSimulation,
        rewards: CombinedRewards | None,
        end_s: float,
    ) -> None:
        """`contracts`: of the target TLs."""
        self.connection, self.loop = simulation.connection, simulation.loop
        self._simulation, self._rewards = simulation, rewards
        self.begin_s, self.end_s = simulation.now, end_s
        self._idle = {c.tl: np.zeros(1 if c.action.kind == CATEGORICAL else c.action.size) for c in contracts}
        """By target TL, an answer for a moment at which it does not decide: valid, and not followed."""
        self._sample_at_s = self._next_sample_s()
        self._overridden: list[Sent] = []

    @property
    def now(self) -> float:
        """Simulated second."""
        return self.loop.now

    @property
    def is_over(self) -> bool:
        return self.loop.now >= self.end_s

    @property
    def rewards(self) -> CombinedRewards:
        assert self._rewards is not None, "the episode is simulated with rewards"
        return self._rewards

    def observe(self) -> dict[str, Observation]:
        """The observations of the target TLs that are due now; {} if none is."""
        return {tl: observation for tl, observation in self._simulation.observe().items() if tl in self._idle}

    def decides(self, tl: str) -> bool:
        """True if the action of a TL that is due now is a decision; if not, it is not followed."""
        return self.loop.intersections[tl].decides_at(self.now)

    def take_overrides(self) -> list[Sent]:
        """Return what was sent with overrides since the last call."""
        overridden, self._overridden = self._overridden, []
        return overridden

    def act(self, actions: Mapping[str, Action]) -> None:
        """Apply actions of the target TLs, then simulate until a target TL is due, at most to the end.

        `actions`: of all that decide now. Raises SimulationFailed.
        """
        self._step(actions)
        while not self.is_over and not self.observe():
            self._step({})

    def _step(self, actions: Mapping[str, Action]) -> None:
        """Run a decision step, at most to the next sample of the rewards."""
        given = {tl: Answer(actions[tl] if self.decides(tl) else self._idle[tl]) for tl in self.observe()}
        self._simulation.step(self._sample_at_s, given)
        self._overridden += [sent for sent in self.loop.sent if sent.overrides]
        if self._rewards is not None and self.now >= self._sample_at_s:
            self._rewards.sample(self.now)
            self._sample_at_s = self._next_sample_s()

    def _next_sample_s(self) -> float:
        """The next second at which the rewards are sampled, or the end."""
        if self._rewards is None or not self._rewards.is_sampled:
            return self.end_s
        return min(next_multiple_s(self.now, self.begin_s, REWARD_INTERVAL_S), self.end_s)
