"""One simulated episode: target TLs explore, served models control the infer TLs, other signals run their programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.actors.phase_competition import Junction
from export.training_record import TrainingRecord
from signals.change_times import change_times, signal_safeties
from signals.dialects import street
from signals.policy import Action
from simulation.demand import SimulatedDemand
from simulation.scratch_folder import scratch_folder
from simulation.target_tls import TargetSimulation, TargetTask, TargetTls
from simulation.trips import Trips, read_trips
from training.actor_critics import ActorCritics, ParameterLayout, layouts
from training.phase_competition.networks import Heuristic, StreetActorCritic, StreetLayout
from training.transitions import Float32s, Transitions

Networks = ActorCritics | StreetActorCritic | Heuristic
STREET = street.DIALECT.name
Arrays = Sequence[Sequence[Float32s]]
"""The arrays of `ActorCritics`, by layout."""


@dataclass(frozen=True)
class TrainingTask(TargetTask):
    """Task of a training, the same for all episodes of a run."""

    reward: str = "delay"
    shared: bool = False
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    """Activation of the hidden layers."""


@dataclass(frozen=True)
class Episode:
    """The results of an episode."""

    transitions: Mapping[str, Transitions]
    """By target TL; empty without exploration."""
    trips: Trips
    """Without `delay_by_departure`."""
    overrides: int


class EpisodeSimulator:
    """Runs the episodes of a task, one after another."""

    def __init__(self, task: TrainingTask) -> None:
        """Read the street and the contracts. Raises InputError."""
        self.task = task
        self.tls = TargetTls(task)
        self.street, self.contracts = self.tls.street, self.tls.contracts
        of_streets = [contract for contract in self.contracts if contract.observation.dialect == STREET]
        others = [contract for contract in self.contracts if contract.observation.dialect != STREET]
        self.layouts: list[ParameterLayout | StreetLayout] = [
            *layouts(others, task.shared, task.hidden, task.activation)
        ]
        if of_streets:
            tls = tuple(contract.tl for contract in of_streets)
            self.layouts.append(StreetLayout(tls, tuple(map(Junction.of_contract, of_streets))))

    def records(self) -> dict[str, TrainingRecord]:
        """By target TL, its programs and change times, which a checkpoint does not contain."""
        records = {}
        for trained in self.contracts:
            change = change_times(trained, signal_safeties(trained, self.street, self.task.city.safety))
            programs = {signal.id: signal.program_id for signal in trained.signals}
            activation = None if trained.observation.dialect == STREET else self.task.activation
            change_s = change.total_s if change is not None else 0.0
            records[trained.tl] = TrainingRecord(programs, change_s, activation)
        return records

    def run(
        self, arrays: Arrays, demand: SimulatedDemand, seed: Sequence[int], explore: bool, sharpness: float = 1.0
    ) -> Episode:
        """Simulate an episode.

        Args:
            arrays: the networks' arrays.
            demand: the episode's demand.
            seed: seed of the exploration.
            explore: sample actions and record transitions, instead of taking every TL's best action.
            sharpness: factor of categorical actors' logits.
        """
        networks = [layout.networks(state, sharpness) for layout, state in zip(self.layouts, arrays, strict=True)]
        explorer = Explorer(networks, np.random.default_rng(list(seed)), explore)
        with scratch_folder() as folder:
            tripinfo = folder / "tripinfo.xml"
            with self.tls.simulation(demand, tripinfo, rewards=explore) as simulation:
                while not simulation.is_over:
                    simulation.act(explorer.actions(simulation))
            trips = replace(read_trips(tripinfo), delay_by_departure=())
        return Episode(explorer.transitions(), trips, sum(simulation.loop.counters.overrides.values()))


class Explorer:
    """Chooses the actions of the target TLs, and records their decisions if it explores."""

    def __init__(self, networks: Sequence[Networks], rng: np.random.Generator, explore: bool) -> None:
        self._networks, self._rng, self._explore = networks, rng, explore
        self._index = {tl: (k, i) for k, actors in enumerate(networks) for i, tl in enumerate(actors.layout.tls)}
        """TL -> (index of its layout, index in the layout)."""
        self._is_difference = False
        self._decisions: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in networks]
        """By layout, of TLs that decided at the same moment: index in the layout, x, action, log_p, reward since the
        TL's last decision, and now; arrays with one row per TL."""

    def actions(self, simulation: TargetSimulation) -> dict[str, Action]:
        """The actions of all target TLs that decide now."""
        observations = {tl: observation for tl, observation in simulation.observe().items() if simulation.decides(tl)}
        actions: dict[str, Action] = {}
        for k, networks in enumerate(self._networks):
            tls = [tl for tl in observations if self._index[tl][0] == k]
            if not tls:
                continue
            rows = networks.rows_of(tls)
            x = networks.inputs_of([observations[tl] for tl in tls], rows)
            if self._explore:
                chosen, log_p = networks.sample(rows, x, self._rng)
                reward = np.array(simulation.rewards.since_last(tls, simulation.now))
                self._is_difference = simulation.rewards.is_difference
                indices, now = np.array([self._index[tl][1] for tl in tls]), np.full(len(tls), simulation.now)
                self._decisions[k].append((indices, x, chosen, log_p, reward, now))
            else:
                chosen = networks.greedy_actions(rows, x)
            layout = networks.layout
            for tl, action in zip(tls, chosen.astype(np.float64), strict=True):
                if isinstance(layout, StreetLayout) or layout.is_categorical:
                    actions[tl] = action
                else:
                    actions[tl] = np.clip(action[: layout.action_sizes[self._index[tl][1]]], -1, 1)
        return actions

    def transitions(self) -> dict[str, Transitions]:
        """The recorded transitions by TL; the reward of a decision is measured at the next one."""
        result = {}
        for networks, decisions in zip(self._networks, self._decisions, strict=True):
            if not decisions:
                continue
            indices, *columns = (np.concatenate(parts) for parts in zip(*decisions, strict=True))
            # one sort: comparing all decisions with each TL takes the square of the number of TLs
            order = np.argsort(indices, kind="stable")
            ends = np.cumsum(np.bincount(indices, minlength=len(networks.layout.tls)))
            for tl, rows in zip(networks.layout.tls, np.split(order, ends[:-1]), strict=True):
                x, action, log_p, reward, now = (column[rows] for column in columns)
                # a TL's values at once: they are only needed after the episode
                value = networks.critic(networks.rows_of([tl] * len(x)), x)
                reward = np.append(reward[1:], 0.0).astype(np.float32)
                duration_s = np.append(np.diff(now), 0.0).astype(np.float32)[: len(now)]
                log_p, value = log_p.astype(np.float32), value.astype(np.float32)
                result[tl] = Transitions(x, action, log_p, value, reward, duration_s, self._is_difference)
        return result
