"""Trains one policy on many streets: episodes on random streets, updates, a curve, and a state to resume from."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from city import whole_files
from simulation.executors import executor, in_order
from simulation.executors.simulator_per_process import SimulatorPerProcess
from simulation.street_simulation import SimulationFailed
from training.phase_competition import batch
from training.phase_competition.learner import ACTOR, StreetLearner, StreetPpo
from training.phase_competition.networks import initial_arrays
from training.phase_competition.street_pool import StreetEpisode, StreetSimulator
from training.transitions import Float32s

FIRST_VEHICLES_PER_LANE_H = 180.0
MIN_FACTOR, MAX_FACTOR = 0.55, 1.1
"""Bounds of an episode's demand, relative to the rate that its street has reached."""
MIN_HEAVY, MAX_HEAVY = 1.2, 1.7
"""The same for saturated episodes."""
CLONING_STEPS, SOFTENING = 250, 0.25


@dataclass(frozen=True)
class StreetsSettings:
    """Settings of a training on many streets."""

    out: Path
    streets: tuple[Path, ...]
    """Folders of the streets."""
    updates: int = 45
    episodes_per_update: int = 16
    seconds: float = 1200.0
    heavy: float = 0.35
    """Share of the episodes that are saturated."""
    cloning_episodes: int = 24
    """Episodes of the heuristic that the actor is first cloned from."""
    seed: int = 1
    workers: int = 1
    reward: str = "delay"
    ppo: StreetPpo = field(default_factory=StreetPpo)


class StreetsTrainer:
    """Trains the shared networks."""

    def __init__(self, settings: StreetsSettings) -> None:
        self._settings = settings
        self._executor = executor(settings.workers)
        make = functools.partial(StreetSimulator, settings.seconds, settings.reward)
        self._simulate = SimulatorPerProcess(make, make())
        self._learner = StreetLearner(initial_arrays(np.random.default_rng(settings.seed)), settings.ppo)
        self._rates = [FIRST_VEHICLES_PER_LANE_H] * len(settings.streets)
        self._rows: list[str] = []
        self._report: Callable[[str], None] = print
        self.update = 0

    def run(self, report: Callable[[str], None]) -> list[Float32s]:
        """Train to the end; return the actor's and the critic's arrays, with the sharpness in the actor's last layer."""
        settings, self._report = self._settings, report
        settings.out.mkdir(parents=True, exist_ok=True)
        with self._executor:
            if settings.cloning_episodes:
                report(self._clone())
            while self.update < settings.updates:
                report(self._update())
                if self.update % 10 == 0 or self.update == settings.updates:
                    self.save(settings.out / f"state_{self.update}.npz")
        return self.arrays

    @property
    def arrays(self) -> list[Float32s]:
        sharpness = np.float32(self._settings.ppo.sharpness(self.update / self._settings.updates))
        arrays = self._learner.arrays
        arrays[ACTOR - 2 : ACTOR] = [sharpness * array for array in arrays[ACTOR - 2 : ACTOR]]
        return arrays

    def save(self, path: Path) -> None:
        with whole_files.replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, **{f"a{k:02d}": array for k, array in enumerate(self.arrays)})  # type: ignore[arg-type]

    def _clone(self) -> str:
        rng = np.random.default_rng([self._settings.seed, 0, 6])
        episodes, _ = self._episodes(rng, self._settings.cloning_episodes, [])
        data = self._batch(episodes)
        loss = self._learner.clone(data, rng, CLONING_STEPS)
        self._learner.soften(SOFTENING)
        delay_s = np.mean([episode.trips.delay_s for episode in episodes])
        return f"cloned {len(data)} decisions of the heuristic: mean delay {delay_s:.1f} s, cross-entropy {loss:.3f}"

    def _update(self) -> str:
        settings = self._settings
        progress = self.update / settings.updates
        rng = np.random.default_rng([settings.seed, self.update, 7])
        arrays = self._learner.arrays
        episodes, loads = self._episodes(rng, settings.episodes_per_update, arrays, settings.ppo.sharpness(progress))
        data = self._batch(episodes)
        statistics = self._learner.learn(data, rng, progress)
        self.update += 1
        delay_s = float(np.mean([episode.trips.delay_s for episode in episodes]))
        values = {
            "update": self.update, "delay_s": delay_s, "load": float(np.mean(loads)), "decisions": len(data), **statistics,
        }  # fmt: skip
        self._log(values)
        return " ".join(f"{name} {value:.4g}" for name, value in values.items())

    def _log(self, values: dict[str, float]) -> None:
        self._rows.append(",".join(f"{value:.6g}" for value in values.values()))
        text = "\n".join([",".join(values), *self._rows]) + "\n"
        whole_files.write(self._settings.out / "curve.csv", text)

    def _batch(self, episodes: Sequence[StreetEpisode]) -> batch.StreetBatch:
        ppo = self._settings.ppo
        return batch.make_batch([(e.junctions, e.transitions) for e in episodes], ppo.gamma, ppo.gae_lambda)

    def _episodes(
        self, rng: np.random.Generator, count: int, arrays: Sequence[Float32s], sharpness: float = 1.0
    ) -> tuple[list[StreetEpisode], list[float]]:
        """Simulate episodes on random streets, and adapt the streets' rates; return them and their demand by lane and hour."""
        settings = self._settings
        jobs, drawn = [], []
        for _ in range(count):
            k = int(rng.integers(len(settings.streets)))
            is_heavy = rng.random() < settings.heavy
            factor = float(rng.uniform(MIN_HEAVY, MAX_HEAVY) if is_heavy else rng.uniform(MIN_FACTOR, MAX_FACTOR))
            seed = int(rng.integers(1, 1 << 30))
            rate = self._rates[k] * factor
            jobs.append((settings.streets[k], arrays, rate, seed, True, sharpness))
            drawn.append((k, is_heavy, factor, rate))
        episodes = []
        for (k, is_heavy, factor, _), episode in zip(drawn, in_order(self._executor.run(self._simulate, jobs)), strict=True):
            if isinstance(episode, str):
                self._report(f"an episode is left out: {episode}")
                continue
            episodes.append(episode)
            if not is_heavy:
                self._rates[k] *= _rate_factor(episode.trips.delay_s, factor)
        if not episodes:
            raise SimulationFailed("SUMO has ended every episode of an update early; look at the reasons above")
        return episodes, [rate for *_, rate in drawn]


def _rate_factor(delay_s: float, factor: float) -> float:
    """How a street's demand follows the policy's ability: less of it in congestion, more of it when the policy copes."""
    if delay_s > 80:
        return 0.75
    if delay_s > 45:
        return 0.9
    return 1.12 if delay_s < 25 * factor + 4 else 1.0
