"""Trains one policy on many streets: episodes on random streets, updates, a curve, and a state to resume from."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from city.errors import InputError
from city.version import VERSION
from pretraining.street_results import StreetEpisode, StreetSimulator
from pretraining.streets import for_jobs
from simulation.executors import SimulatorPerProcess, executor, in_order
from simulation.street_simulation import SimulationFailed
from simulation.trips import mean_delay_s
from training.phase_competition.networks import initial_arrays, policy_path, save_policy
from training.phase_competition.street_learner import StreetLearner, inputs_of, make_batch
from training.ppo import Batch, Tensors, taken
from training.saved_state import Arrays, TrainingState, Values, state_file
from training.settings import StreetPpo
from training.training_log import TrainingLog
from training.transitions import Float32s

FIRST_VEHICLES_PER_LANE_H = 180.0
MIN_FACTOR, MAX_FACTOR = 0.55, 1.1
"""Bounds of an episode's demand, relative to the rate that its street has reached."""
MIN_HEAVY, MAX_HEAVY = 1.2, 1.7
"""Bounds for saturated episodes."""
MIN_LIGHT, MAX_LIGHT = 0.05, 0.5
"""Bounds for episodes of light traffic."""
CLONING_STEPS, SOFTENING = 250, 0.25
MEAN_CLONING_STEPS = 10
"""Last steps of cloning over whose losses the mean is taken."""
SAVE_EVERY = 5
"""Updates between two saved states."""


@dataclass(frozen=True)
class StreetsSettings:
    """Settings of a training on many streets."""

    out: Path
    streets: tuple[Path, ...]
    """Folders of the streets."""
    number: int = 1
    """Model number of the policy."""
    updates: int = 80
    episodes_per_update: int = 24
    seconds: float = 1200.0
    heavy: float = 0.4
    """Share of the episodes that are saturated."""
    light: float = 0.2
    """Share of those with light traffic."""
    cloning_episodes: int = 16
    """Episodes of the heuristic that the actor is first cloned from."""
    seed: int = 1
    workers: int = 1
    ray: str | None = None
    """Address of a Ray cluster that simulates; None: this machine."""
    reward: str = "delay"
    ppo: StreetPpo = field(default_factory=StreetPpo)
    resume: bool = False

    @property
    def policy_file(self) -> Path:
        return policy_path(self.out, self.number)

    @property
    def state(self) -> TrainingState:
        """The state of this training; one with the same identity resumes from it."""
        identity = self.description | {"--episodes": self.updates}
        del identity["--updates"]
        return TrainingState(state_file(self.out, self.number), identity)

    @property
    def description(self) -> dict[str, Any]:
        """The training in its policy's file, by flag."""
        return {
            "--streets": [folder.name for folder in self.streets], "--updates": self.updates,
            "--episodes-per-update": self.episodes_per_update, "--seconds": self.seconds, "--seed": self.seed,
            "--reward": self.reward, **self.ppo.by_flag(), "heavy": self.heavy, "light": self.light,
            "greenserve": VERSION,
            "sumo": version("eclipse-sumo"),
        }  # fmt: skip

    def check_files(self) -> None:
        """Raise InputError if the training would replace results of this model number."""
        remedies = {self.state.path: ", or --resume to continue a training", self.policy_file: ", or remove it"}
        for path, remedy in remedies.items():
            if path.exists():
                raise InputError(
                    f"{path}: already exists, with model number {self.number}; pass another --model-number or "
                    f"--out{remedy}"
                )


class StreetsTrainer:
    """Trains one network on many streets."""

    def __init__(self, settings: StreetsSettings, report: Callable[[str], None]) -> None:
        """Prepare the network, or read the state to resume from. Raises InputError. `report`: called with lines of
        progress."""
        self._settings, self._report = settings, report
        self._executor = executor(settings.workers, settings.ray)
        make = functools.partial(StreetSimulator, settings.seconds, settings.reward)
        self._simulate = SimulatorPerProcess(make, make())
        arrays = initial_arrays(np.random.default_rng(settings.seed))
        self._learner = StreetLearner(arrays, settings.ppo)
        self._rates = [FIRST_VEHICLES_PER_LANE_H] * len(settings.streets)
        self._update = 0
        self._log = TrainingLog(settings.out, f"trial_{settings.number}", settings.updates, report)
        self._state = settings.state
        if settings.resume:
            self._state.restore(self._set_state)
        else:
            settings.check_files()
        settings.policy_file.parent.mkdir(parents=True, exist_ok=True)

    def run(self) -> Path:
        """Train to the end; return the file of the policy. Raises InputError, SimulationFailed, NotFinite."""
        settings = self._settings
        with self._executor:
            if self._update == 0 and settings.cloning_episodes:
                self._report(self._clone())
            with self._log:
                while self._update < settings.updates:
                    self._next_update()
                    if self._update % SAVE_EVERY == 0 or self._update == settings.updates:
                        self._save()
                    self._log.show()
        sharpness = settings.ppo.sharpness(1.0)
        save_policy(settings.policy_file, self._learner.arrays, sharpness, settings.description)
        return settings.policy_file

    def _clone(self) -> str:
        rng = np.random.default_rng([self._settings.seed, 0, 6])
        episodes, _ = self._episodes(rng, self._settings.cloning_episodes, [])
        decisions, junctions = self._batch(episodes)
        loss = clone(self._learner, decisions, junctions, rng, CLONING_STEPS)
        # the last layer, so that the actor explores beyond what it was cloned from
        for variable in self._learner.actor[-2:]:
            variable.assign(variable * SOFTENING)
        delay_s = mean_delay_s(episode.trips for episode in episodes)
        count = len(decisions["target"])
        return f"cloned {count} decisions of the heuristic: mean delay {delay_s:.1f} s, cross-entropy {loss:.3f}"

    def _next_update(self) -> None:
        settings = self._settings
        progress = self._update / settings.updates
        rng = np.random.default_rng([settings.seed, self._update, 7])
        sharpness = settings.ppo.sharpness(progress)
        episodes, loads = self._episodes(rng, settings.episodes_per_update, self._learner.arrays, sharpness)
        decisions, junctions = self._batch(episodes)
        statistics = self._learner.learn([decisions], rng, progress, junctions)
        self._update += 1
        delay_s, load = mean_delay_s(episode.trips for episode in episodes), float(np.mean(loads))
        values = {
            "update": self._update,
            "delay_s": delay_s,
            "vehicles_per_lane_h": load,
            "decisions": statistics["decisions"],
        }
        transitions = [tl for episode in episodes for tl in episode.transitions]
        text = f"mean delay {delay_s:.1f} s at {load:.0f} vehicles an hour and lane"
        self._log.add(values, {"street": statistics}, transitions, text)

    def _batch(self, episodes: Sequence[StreetEpisode]) -> tuple[Batch, Batch]:
        return make_batch([(e.junctions, e.transitions) for e in episodes], self._settings.ppo)

    def _episodes(
        self, rng: np.random.Generator, count: int, arrays: Sequence[Float32s], sharpness: float = 1.0
    ) -> tuple[list[StreetEpisode], list[float]]:
        """Simulate episodes on random streets, and adapt the streets' rates; return them, and the demand of all by lane
        and hour.

        Raises SimulationFailed if SUMO ends all of them early.
        """
        settings = self._settings
        jobs, drawn = [], []
        for _ in range(count):
            k = int(rng.integers(len(settings.streets)))
            kind = rng.random()
            is_usual = kind >= settings.heavy + settings.light
            is_heavy = kind < settings.heavy
            bounds = (
                (MIN_FACTOR, MAX_FACTOR) if is_usual else (MIN_HEAVY, MAX_HEAVY) if is_heavy else (MIN_LIGHT, MAX_LIGHT)
            )
            factor = float(rng.uniform(*bounds))
            seed = int(rng.integers(1, 1 << 30))
            rate = self._rates[k] * factor
            street = for_jobs(self._executor, settings.streets[k])
            jobs.append((street, arrays, rate, seed, True, sharpness))
            drawn.append((k, is_usual, factor, rate))
        episodes = []
        for (k, is_usual, factor, _), episode in zip(drawn, self._simulated(jobs), strict=True):
            if isinstance(episode, str):
                self._report(f"left out an episode: {episode}")
                continue
            episodes.append(episode)
            if is_usual:
                self._rates[k] *= _rate_factor(episode.trips.delay_s, factor)
        if not episodes:
            raise SimulationFailed("SUMO has ended every episode of an update early; look at the reasons above")
        if not any(episode.trips.total for episode in episodes):
            raise SimulationFailed("no vehicle departs in any episode of an update; pass longer --seconds")
        return episodes, [rate for *_, rate in drawn]

    def _simulated(self, jobs: Sequence[tuple[Any, ...]]) -> list[StreetEpisode | str]:
        """Simulate episodes; return them in order. `jobs`: arguments of `StreetSimulator.run`."""
        # the fullest streets first, which take longest: one of them at the end would keep the other processes waiting
        order = sorted(range(len(jobs)), key=lambda k: -jobs[k][2])
        outcomes = dict(zip(order, in_order(self._executor.run(self._simulate, [jobs[k] for k in order])), strict=True))
        return [outcomes[k] for k in range(len(jobs))]

    def _save(self) -> None:
        arrays = {f"{k:03d}": array for k, array in enumerate(self._learner.state())}
        self._state.save({"update": self._update, "rates": self._rates, "rows": self._log.rows}, arrays)

    def _set_state(self, values: Values, arrays: Arrays) -> None:
        self._learner.restore([arrays[name] for name in sorted(arrays)])
        self._update, self._rates, self._log.rows = values["update"], values["rates"], values["rows"]


def _rate_factor(delay_s: float, factor: float) -> float:
    """How a street's demand follows the policy's ability: less of it in congestion, more of it while the policy
    copes."""
    if delay_s > 80:
        return 0.75
    if delay_s > 45:
        return 0.9
    return 1.12 if delay_s < 25 * factor + 4 else 1.0


def clone(learner: StreetLearner, batch: Batch, junctions: Batch, rng: np.random.Generator, steps: int) -> float:
    """Fit the actor to the actions of a batch, whatever greens were allowed; return the last mean cross-entropy.

    Args:
        learner: has the actor.
        batch: the decisions, and the junctions that they share.
        junctions: as `phase_competition.street_learner.make_batch` returns them.
        rng: draws the decisions of each step.
        steps: of the optimiser.
    """
    learner.set_schedules(learner.ppo.learning_rate, sharpness=1.0)
    actor_optimiser, _ = learner.optimisers

    def step(columns: Tensors, shared: Tensors, indices: tf.Tensor) -> tf.Tensor:
        decisions = taken(columns, indices)
        inputs = inputs_of(decisions, shared)
        with tf.GradientTape() as tape:
            y = learner.log_p(inputs, inputs.junctions["green_mask"] > 0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(decisions["action"][0], y))
        actor_optimiser.step(tape.gradient(loss, learner.actor), tf.ones(1))
        return loss

    run = tf.function(step, input_signature=[*learner.data_specs, tf.TensorSpec([1, None], tf.int32)])
    data = learner.tensors([batch], junctions)
    shape = 1, min(learner.ppo.minibatch, len(batch["target"]))
    losses = [float(run(*data, rng.integers(0, len(batch["target"]), shape, np.int32))) for _ in range(steps)]
    return float(np.mean(losses[-MEAN_CLONING_STEPS:]))
