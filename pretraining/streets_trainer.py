"""Trains one policy on many streets: episodes on random streets, updates, a curve, and a state to resume from."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from city import whole_files
from city.errors import InputError
from city.version import VERSION
from pretraining import packed_streets
from pretraining.state_files import AGAIN, network_progress_file, networks_folder, shared_progress_file
from pretraining.street_pool import StreetEpisode, StreetSimulator
from simulation.executors import executor, in_order
from simulation.executors.simulator_per_process import SimulatorPerProcess
from simulation.street_simulation import SimulationFailed
from training.phase_competition import batch
from training.phase_competition.learner import StreetLearner
from training.phase_competition.networks import initial_arrays
from training.phase_competition.street_learning import policy_file, save
from training.ppo_config import StreetPpo
from training.progress import ANEW, Progress, progress_file
from training.statistics import FPS, Rollouts, cell, combined, summary
from training.tensorboard_log import TensorBoardLog
from training.transitions import Float32s

FIRST_VEHICLES_PER_LANE_H = 180.0
MIN_FACTOR, MAX_FACTOR = 0.55, 1.1
"""Bounds of an episode's demand, relative to the rate that its street has reached."""
MIN_HEAVY, MAX_HEAVY = 1.2, 1.7
"""The same for saturated episodes."""
MIN_LIGHT, MAX_LIGHT = 0.05, 0.5
"""The same for episodes of light traffic."""
CLONING_STEPS, SOFTENING = 250, 0.25
SAVE_EVERY = 5
"""Updates between two saved states."""
PROGRESS_KEYS = {"identity", "update", "rates", "rows"}


@dataclass(frozen=True)
class StreetsSettings:
    """Settings of a training on many streets."""

    out: Path
    streets: tuple[Path, ...]
    """Folders of the streets."""
    number: int = 1
    """Model number of the policy."""
    updates: int = 40
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
    is_part: bool = False
    """Whether the policy is one of the networks of a product; the names of its files then have the seed."""
    shared_updates: int = 0
    """First updates that the networks of a product have in common."""
    shared_seed: int = 1
    """Seed of these updates, and of what comes before them."""

    @property
    def policy_file(self) -> Path:
        return (
            policy_file(networks_folder(self.out, self.number), self.seed)
            if self.is_part
            else policy_file(self.out, self.number)
        )

    @property
    def progress_file(self) -> Path:
        if self.is_part:
            return network_progress_file(self.out, self.number, self.seed)
        return progress_file(self.out, self.number)

    @property
    def shared_progress_file(self) -> Path:
        """The state after the shared updates."""
        return shared_progress_file(self.out, self.number)

    def progress(self) -> Progress:
        """The state of this training."""
        return Progress(self.progress_file, PROGRESS_KEYS, AGAIN if self.is_part else ANEW)

    def shared_progress(self) -> Progress:
        """The state after the shared updates."""
        return Progress(self.shared_progress_file, PROGRESS_KEYS, AGAIN)

    @property
    def label(self) -> str:
        """Name of the curve and of the logs."""
        return f"trial_{self.number}_seed_{self.seed}" if self.is_part else f"trial_{self.number}"

    @property
    def curve_file(self) -> Path:
        return self.out / f"{self.label}_curve.csv"

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that must be the same when a training is resumed, by the flag that changes it if there is one."""
        shared = {"--shared-updates": [self.shared_updates, self.shared_seed]} if self.shared_updates else {}
        return shared | {
            "--streets": [folder.name for folder in self.streets], "--updates": self.updates,
            "--episodes-per-update": self.episodes_per_update, "--seconds": self.seconds, "--seed": self.seed,
            "--reward": self.reward, **self.ppo.by_flag(), "heavy": self.heavy, "light": self.light,
            "greenserve": VERSION,
            "sumo": version("eclipse-sumo"),
        }  # fmt: skip

    def seed_of(self, update: int) -> int:
        """The seed of an update, counted from 0."""
        return self.shared_seed if update < self.shared_updates else self.seed

    def check_files(self) -> None:
        """Raise InputError if there is nothing to resume, or the training would replace results of this model
        number."""
        if self.resume:
            saved_state(self, self.progress())
            return
        if self.progress_file.exists():
            raise InputError(
                f"{self.progress_file}: already exists, with model number {self.number}; pass another --model-number "
                "or --out, or --resume to continue a training"
            )
        if self.policy_file.exists():
            raise InputError(
                f"{self.policy_file}: already exists, and there is no saved state to resume its training from; remove "
                "it, or pass another --model-number or --out"
            )
        if self.shared_updates and self.shared_progress_file.exists():
            # made by another network, or before an interruption
            saved_state(self, self.shared_progress())


class StreetsTrainer:
    """Trains the shared networks."""

    def __init__(self, settings: StreetsSettings, report: Callable[[str], None]) -> None:
        """Prepare the networks, or read the state to resume from. Raises InputError. `report`: called with lines of
        progress."""
        self._settings, self._report = settings, report
        self._executor = executor(settings.workers, settings.ray)
        make = functools.partial(StreetSimulator, settings.seconds, settings.reward)
        self._simulate = SimulatorPerProcess(make, make())
        self._learner = StreetLearner(initial_arrays(np.random.default_rng(settings.seed_of(0))), settings.ppo)
        self._rates = [FIRST_VEHICLES_PER_LANE_H] * len(settings.streets)
        self._rows: list[str] = []
        """Rows of the curve, the header first."""
        self._update = 0
        self._rollouts = Rollouts()
        self._progress, self._shared = settings.progress(), settings.shared_progress()
        if settings.resume:
            self._restore(self._progress)
        else:
            settings.check_files()
            if settings.shared_updates and self._shared.path.exists():
                self._restore(self._shared)
        settings.policy_file.parent.mkdir(parents=True, exist_ok=True)

    def run(self) -> Path:
        """Train to the end; return the file of the policy. Raises InputError, SimulationFailed, NotFinite."""
        settings = self._settings
        bar = tqdm(total=settings.updates, initial=self._update, unit="update", disable=None)
        with self._executor, TensorBoardLog(settings.out / "tensorboard" / settings.label) as log, bar:
            if self._update == 0 and settings.cloning_episodes:
                self._report(self._clone())
            self._rollouts = Rollouts()
            while self._update < settings.updates:
                line = self._next_update(log)
                bar.update()
                if bar.disable:
                    self._report(line)
                if self._update == settings.shared_updates:
                    self._save(self._shared)
                if self._update % SAVE_EVERY == 0 or self._update == settings.updates:
                    self._save(self._progress)
        self._write()
        return settings.policy_file

    def _clone(self) -> str:
        rng = np.random.default_rng([self._settings.seed_of(0), 0, 6])
        episodes, _ = self._episodes(rng, self._settings.cloning_episodes, [])
        data = self._batch(episodes)
        loss = self._learner.clone(data, rng, CLONING_STEPS)
        self._learner.soften(SOFTENING)
        delay_s = np.mean([episode.trips.delay_s for episode in episodes])
        return f"cloned {len(data)} decisions of the heuristic: mean delay {delay_s:.1f} s, cross-entropy {loss:.3f}"

    def _next_update(self, log: TensorBoardLog) -> str:
        settings = self._settings
        progress = self._update / settings.updates
        rng = np.random.default_rng([settings.seed_of(self._update), self._update, 7])
        sharpness = settings.ppo.sharpness(progress)
        episodes, loads = self._episodes(rng, settings.episodes_per_update, self._learner.arrays, sharpness)
        data = self._batch(episodes)
        statistics = self._learner.learn(data, rng, progress)
        self._update += 1
        values = {
            "update": self._update,
            "delay_s": float(np.mean([episode.trips.delay_s for episode in episodes])),
            "vehicles_per_lane_h": float(np.mean(loads)),
            "decisions": len(data),
            **self._rollouts.statistics([tl for episode in episodes for tl in episode.transitions]),
            **combined([statistics]),
        }
        self._log(log, values)
        return (
            f"update {self._update} of {settings.updates}: mean delay {values['delay_s']:.1f} s at "
            f"{values['vehicles_per_lane_h']:.0f} vehicles an hour and lane; {summary(values)}"
        )

    def _log(self, log: TensorBoardLog, values: dict[str, float]) -> None:
        columns = {name: value for name, value in values.items() if name != FPS}
        self._rows = self._rows or [",".join(columns)]
        self._rows.append(",".join(cell(value) for value in columns.values()))
        whole_files.write(self._settings.curve_file, "\n".join(self._rows) + "\n")
        log.add(values, self._update)

    def _batch(self, episodes: Sequence[StreetEpisode]) -> batch.StreetBatch:
        ppo = self._settings.ppo
        return batch.make_batch([(e.junctions, e.transitions) for e in episodes], ppo.gamma, ppo.gae_lambda)

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
            street = packed_streets.for_jobs(self._executor, settings.streets[k])
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
        return episodes, [rate for *_, rate in drawn]

    def _simulated(self, jobs: Sequence[tuple[Any, ...]]) -> list[StreetEpisode | str]:
        """Simulate episodes; return them in order. `jobs`: arguments of `StreetSimulator.run`."""
        # the fullest streets first, which take longest: one of them at the end would keep the other processes waiting
        order = sorted(range(len(jobs)), key=lambda k: -jobs[k][2])
        outcomes = dict(zip(order, in_order(self._executor.run(self._simulate, [jobs[k] for k in order])), strict=True))
        return [outcomes[k] for k in range(len(jobs))]

    def _write(self) -> None:
        description = {"training": [self._settings.identity]}
        save(self._settings.policy_file, self._learner.arrays, self._settings.ppo.sharpness(1.0), description)

    def _save(self, progress: Progress) -> None:
        state: dict[str, NDArray[Any]] = {f"{k:03d}": array for k, array in enumerate(self._learner.state())}
        identity = json.dumps(self._settings.identity)
        progress.save({"identity": identity, "update": self._update, "rates": self._rates, "rows": self._rows}, state)

    def _restore(self, progress: Progress) -> None:
        """Continue from a saved state. Raises InputError."""
        values, state = saved_state(self._settings, progress)
        try:
            self._learner.restore([state[name] for name in sorted(state)])
            self._update, self._rates, self._rows = int(values["update"]), list(values["rates"]), list(values["rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise progress.damaged(error) from None


def saved_state(settings: StreetsSettings, progress: Progress) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """(values, arrays) that a training has saved. Raises InputError if there are none, or they are of other
    settings."""
    loaded = progress.load()
    if loaded is None:
        raise InputError(f"{progress.path}: no such file, so no training to resume; leave out --resume")
    values, state = loaded
    identity, saved = json.loads(json.dumps(settings.identity)), json.loads(values["identity"])
    # also what only the saved one has
    differing = [name for name in {**identity, **saved} if identity.get(name) != saved.get(name)]
    if progress.path == settings.shared_progress_file:
        differing = [name for name in differing if name != "--seed"]
    if any(not name.startswith("--") for name in differing):
        raise InputError(
            f"{progress.path}: the training to resume was begun by another version of greenserve or SUMO; pass another "
            "--model-number without --resume"
        )
    if differing:
        names = ", ".join(_flag(name, identity.get(name), saved.get(name)) for name in differing)
        raise InputError(
            f"{progress.path}: the training to resume had another {names}; pass the same flags, or another "
            "--model-number without --resume"
        )
    return values, state


def _flag(name: str, own: Any, saved: Any) -> str:
    """The flag that explains a difference of an identity's value. Of shared updates, the value is [updates, seed]."""
    if name == "--shared-updates" and own and saved and own[0] == saved[0]:
        return "--seed"
    return "--episodes" if name == "--updates" else name


def _rate_factor(delay_s: float, factor: float) -> float:
    """How a street's demand follows the policy's ability: less of it in congestion, more of it while the policy
    copes."""
    if delay_s > 80:
        return 0.75
    if delay_s > 45:
        return 0.9
    return 1.12 if delay_s < 25 * factor + 4 else 1.0
