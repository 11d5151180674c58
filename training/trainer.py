"""The training loop: episodes, updates, evaluation on validation demand, best and newest state, and a fresh evaluation
of what is written."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city import sumo_files, whole_files
from city.errors import InputError
from export import training_record
from export.locate import find_candidates
from protos import policy_pb2 as pb
from simulation.demand import Demand, varied
from simulation.executors import Executor, SimulatorPerProcess, executor, in_order
from simulation.trips import TripMeans, Trips, mean_delay_s
from training.episode import Arrays, Episode, EpisodeSimulator, TrainingTask
from training.learning import learning_of
from training.saved_state import Arrays as SavedArrays
from training.saved_state import TrainingState, Values, state_file
from training.settings import Settings
from training.statistics import UpdateStatistics, cell
from training.training_log import TrainingLog
from training.transitions import Float32s

VALIDATION_SEED = 1_000_003
"""First part of the seeds of validation demand, which no training episode uses."""
FRESH_SEED = 1_000_039
"""First part of the seeds of the last evaluation's demand, on which nothing was chosen."""
FRESH_DEMANDS = 5


@dataclass(frozen=True)
class FreshEvaluation:
    """The written state, and the policy that the training started from, on demand that was not looked at before."""

    demands: Sequence[Demand]
    trips: Sequence[TripMeans]
    """By demand, with the trained state: the best or the newest one."""
    start: Sequence[TripMeans]
    """By demand, with the policy of --start-from; empty without one."""
    varies: bool
    """True if the demands have other vehicles; else they have other drivers alone."""
    may_keep: bool
    """True if the start is written unless the trained policy is better."""

    @property
    def keeps_start(self) -> bool:
        """True if the start is written: the trained policy is no better."""
        return self.may_keep and bool(self.start) and not mean_delay_s(self.trips) < mean_delay_s(self.start)

    def text(self) -> str:
        """The delays in a clause."""
        count = f"{len(self.trips)} {'fresh demands' if self.varies else 'simulations with fresh drivers'}"
        text = f"mean delay {delay_text(mean_delay_s(self.trips))} on {count}"
        if self.start:
            lower = sum(own.delay_s < other.delay_s for own, other in zip(self.trips, self.start, strict=True))
            text += (
                f"; {delay_text(mean_delay_s(self.start))} with the policy of --start-from; the trained one is better "
                f"on {lower} of {len(self.trips)}"
            )
        if self.keeps_start:
            text += "; the start was kept"
        return text

    def table(self) -> str:
        """The delays as CSV, a row for each demand."""
        rows = ["sumo_seed,scale,vehicles,delay_s,start_delay_s"]
        starts: Sequence[TripMeans | None] = self.start or [None] * len(self.trips)
        for demand, own, start in zip(self.demands, self.trips, starts, strict=True):
            delays_s = [cell(trips.delay_s if trips is not None and trips.total else None) for trips in (own, start)]
            rows.append(",".join([str(demand.seed), cell(demand.scale), str(own.total), *delays_s]))
        return "\n".join(rows) + "\n"


def delay_text(delay_s: float) -> str:
    """A mean delay for the user."""
    return "unknown (no vehicle)" if math.isnan(delay_s) else f"{delay_s:.1f} s"


@dataclass(frozen=True)
class Result:
    """The result of a training."""

    episodes: int
    best_delay_s: float
    """Least mean delay on validation demand, by which the best state was chosen: lower than that of other demand."""
    paths: dict[str, Path]
    """TL -> checkpoint."""
    fresh: FreshEvaluation | None
    """None if it was not asked for."""


class Trainer:
    """Trains the target TLs of a task."""

    def __init__(
        self,
        task: TrainingTask,
        settings: Settings,
        runner: Executor | None = None,
        report: Callable[[str], None] = lambda line: None,
        shows_bar: bool = True,
    ) -> None:
        """Read the street, and the state to resume from. Raises InputError.

        Args:
            task: what is trained.
            settings: how it is trained.
            runner: executor of the simulations (default: by the number of workers).
            report: called with a line per update if there is no progress bar.
            shows_bar: show a progress bar if stderr is a terminal.
        """
        self._task, self._settings, self._report = task, settings, report
        self._simulation = EpisodeSimulator(task)
        self._executor = runner or executor(settings.workers)
        self._simulate = SimulatorPerProcess(functools.partial(EpisodeSimulator, task), self._simulation)
        rng = np.random.default_rng(settings.seed)
        self._learnings = [learning_of(layout, settings, rng) for layout in self._simulation.layouts]
        self._start = [list(arrays) for arrays in self._arrays()]
        """The first weights: those of --start-from, if it is given."""
        self._best = self._arrays()
        self.best_delay_s = float("inf")
        """Mean delay of the best state on validation demand; inf before the first evaluation."""
        self._best_sharpness = 1.0
        self._stale = 0
        """Evaluations since the best one."""
        self._update = 0
        self._prepared: Future[None] | None = None
        self._updates = -(-settings.episodes // settings.episodes_per_update)
        self._state = TrainingState(state_file(settings.out, settings.number), self._identity())
        self._log = TrainingLog(settings.out, f"trial_{settings.number}", self._updates, report, shows_bar)
        if settings.resume:
            self._state.restore(self._set_state)
        else:
            self._refuse_existing()
        settings.out.mkdir(parents=True, exist_ok=True)

    def run(self, fresh_demands: int = FRESH_DEMANDS) -> Result:
        """Train to the end, then evaluate what was written.

        `fresh_demands`: simulations of this evaluation; 0 for none.

        Raises InputError (no demand, disk full), SimulationFailed, NotFinite; the checkpoints are then the last ones
        that were written.
        """
        settings = self._settings
        with ThreadPoolExecutor(1) as thread, self._executor, self._log as log:
            if settings.workers > 1:
                self._prepared = thread.submit(self._prepare)
            if settings.start is not None and self._update == 0:
                # kept unless the training finds better
                self._report(f"before the first update: validation {delay_text(self._evaluate())}")
                self._write()
            while self._update < self._updates and not (settings.patience and self._stale >= settings.patience):
                episodes, statistics = self.update()
                validation_s = None
                if self._update % settings.evaluate_every == 0 or self._update == self._updates:
                    validation_s = self._evaluate()
                if settings.writes_newest or (validation_s is not None and self._stale == 0):
                    self._write()  # before the curve's row, which says that they are there
                self._log_update(log, episodes, statistics, validation_s)
                self._save()
                log.show()
            paths = self._write()
            fresh = self._evaluate_written(fresh_demands) if fresh_demands else None
            if fresh is not None and fresh.keeps_start:
                self._best, self._best_sharpness = self._start, 1.0
                paths = self._write()
        return Result(self._update * settings.episodes_per_update, self.best_delay_s, paths, fresh)

    def update(self) -> tuple[list[Episode], dict[str, UpdateStatistics]]:
        """Simulate the next episodes and learn from them; return them and statistics by kind of actor. Raises as
        `run`."""
        settings = self._settings
        first = self._update * settings.episodes_per_update
        jobs = []
        for number in range(first, first + settings.episodes_per_update):
            # a generator per episode: a resumed training repeats the same episodes with any number of workers
            demand = varied(np.random.default_rng([settings.seed, number]), settings.varies)
            jobs.append((self._arrays(), demand, (settings.seed, number, 1), True, self._sharpness()))
        episodes = self._simulated(jobs)
        # a varied demand of few vehicles may have none; then the city's own must have one
        if not (
            any(episode.trips.total for episode in episodes)
            or self._greedy(self._arrays(), [Demand(settings.seed + 1)])[0].total
        ):
            raise InputError(
                f"{self._task.city.network.sumocfg}: no vehicle departs in an episode; name route files in it"
            )
        statistics = self._learn(episodes)
        self._update += 1
        return episodes, statistics

    def _simulated(self, jobs: Sequence[tuple[Any, ...]]) -> list[Episode]:
        """Simulate episodes; return them in order. `jobs`: arguments of `EpisodeSimulator.run`."""
        return in_order(self._executor.run(self._simulate, jobs))

    def _sharpness(self) -> float:
        return self._settings.ppo.sharpness(self._update / self._updates)

    def _prepare(self) -> None:
        """Prepare the learning in another thread, while the first episodes run in other processes: it takes seconds."""
        for learning in self._learnings:
            learning.prepare()

    def _learn(self, episodes: Sequence[Episode]) -> dict[str, UpdateStatistics]:
        if self._prepared is not None:
            self._prepared.result()
        statistics: dict[str, UpdateStatistics] = {}
        transitions = [episode.transitions for episode in episodes]
        for k, learning in enumerate(self._learnings):
            rng = np.random.default_rng([self._settings.seed, self._update, 2 + k])
            learned = learning.learn(transitions, rng, self._update / self._updates)
            if learned is not None:
                statistics[learning.kind] = learned
        return statistics

    def _evaluate(self) -> float:
        """Mean delay in s of the newest state on validation demand. Keeps the best state, or the newest without any
        vehicle (NaN)."""
        delay_s = mean_delay_s(self._greedy(self._arrays(), self._demands(VALIDATION_SEED, self._settings.held_out)))
        if math.isnan(delay_s) or delay_s < self.best_delay_s:
            self._best, self._stale = self._arrays(), 0
            self.best_delay_s = min(self.best_delay_s, delay_s)
            self._best_sharpness = self._sharpness()
        else:
            self._stale += 1
        return delay_s

    def _evaluate_written(self, count: int) -> FreshEvaluation:
        """Evaluate the written state, and the policy that the training started from; write both. Raises InputError."""
        settings = self._settings
        demands = self._demands(FRESH_SEED, count)
        written = self._greedy(self._arrays() if settings.writes_newest else self._best, demands)
        start = [] if settings.start is None else self._greedy(self._start, demands)
        fresh = FreshEvaluation(demands, written, start, settings.varies, not settings.writes_newest)
        whole_files.write(settings.out / f"trial_{settings.number}_evaluation.csv", fresh.table())
        return fresh

    def _demands(self, seed: int, count: int) -> list[Demand]:
        settings = self._settings
        rngs = [np.random.default_rng([seed, settings.seed, k]) for k in range(count)]
        return [varied(rng, settings.varies) for rng in rngs]

    def _greedy(self, arrays: Arrays, demands: Sequence[Demand]) -> list[Trips]:
        """The trips with networks that do not explore."""
        return [episode.trips for episode in self._simulated([(arrays, demand, (0,), False) for demand in demands])]

    def _log_update(
        self,
        log: TrainingLog,
        episodes: Sequence[Episode],
        statistics: Mapping[str, UpdateStatistics],
        validation_s: float | None,
    ) -> None:
        delay_s = mean_delay_s(episode.trips for episode in episodes)
        values = {
            "episode": self._update * self._settings.episodes_per_update,
            "delay_s": delay_s,
            "finished": sum(episode.trips.finished for episode in episodes),
            "total": sum(episode.trips.total for episode in episodes),
            "overrides": sum(episode.overrides for episode in episodes),
            "validation_delay_s": validation_s,
        }
        validation = "" if validation_s is None else f", validation {delay_text(validation_s)}"
        transitions = [tl for episode in episodes for tl in episode.transitions.values()]
        log.add(values, statistics, transitions, f"mean delay {delay_text(delay_s)}{validation}")

    def _refuse_existing(self) -> None:
        number = self._settings.number
        if self._state.path.exists():
            raise InputError(
                f"{self._state.path}: a training of this model number exists; pass --resume to continue it, or another "
                "--model-number"
            )
        existing = [self._log.curve] if self._log.curve.exists() else []
        for candidate in find_candidates(self._settings.out) if self._settings.out.is_dir() else []:
            if candidate.number == number and any(candidate.is_named_after(tl) for tl in self._task.target_tls):
                existing.append(candidate.path)
        if existing:
            raise InputError(
                f"{existing[0]}: already exists, with model number {number}; pass another --model-number or --out"
            )

    def _arrays(self) -> list[list[Float32s]]:
        return [learning.arrays for learning in self._learnings]

    def _write(self) -> dict[str, Path]:
        settings, contracts = self._settings, self._simulation.contracts
        state, sharpness = self._best, self._best_sharpness
        if settings.writes_newest:
            state, sharpness = self._arrays(), self._sharpness()
        training_record.write(settings.out, settings.number, self._simulation.records())
        paths: dict[str, Path] = {}
        for learning, arrays in zip(self._learnings, state, strict=True):
            paths |= learning.write(settings, contracts, arrays, sharpness)
        return paths

    def _identity(self) -> dict[str, Any]:
        return {
            "--target-tl or their [tl] tables": serialized_contracts(self._simulation.contracts),
            "--infer-tl or their models": serialized_contracts(list(self._simulation.tls.served.values())),
            "--format": self._settings.formats,
            **common_identity(self._task, self._settings),
        }

    def _save(self) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for k, (learning, best) in enumerate(zip(self._learnings, self._best, strict=True)):
            arrays |= {f"state/{k}/{i:03d}": array for i, array in enumerate(learning.state())}
            arrays |= {f"best/{k}/{i:03d}": array for i, array in enumerate(best)}
        values = {
            "update": self._update,
            "best_delay_s": self.best_delay_s,
            "best_sharpness": self._best_sharpness,
            "stale": self._stale,
            "rows": self._log.rows,
        }
        self._state.save(values, arrays)

    def _set_state(self, values: Values, arrays: SavedArrays) -> None:
        for k, learning in enumerate(self._learnings):
            learning.restore([arrays[name] for name in sorted(arrays) if name.startswith(f"state/{k}/")])
            self._best[k][:] = [arrays[name] for name in sorted(arrays) if name.startswith(f"best/{k}/")]
        self._update, self._stale = values["update"], values["stale"]
        self.best_delay_s, self._best_sharpness = values["best_delay_s"], values["best_sharpness"]
        self._log.rows = values["rows"]


def common_identity(task: TrainingTask, settings: Settings) -> dict[str, Any]:
    """Everything that must be the same when a training or rounds are resumed, by the flag or table that changes it."""
    sumocfg = task.city.network.sumocfg
    street_ppo = settings.street_ppo.by_flag()
    assert sumocfg is not None, "a city without demand is refused before it is trained"
    return {
        "[network] or its files": [sumo_files.digest(sumocfg), task.city.network.begin_s],
        "[safety]": asdict(task.city.safety),
        "--reward": task.reward, "--shared": task.shared, "--hidden-sizes": task.hidden, "--seconds": task.seconds,
        "--seed": settings.seed, "--episodes": settings.episodes, "--episodes-per-update": settings.episodes_per_update,
        "--same-demand": not settings.varies, "--evaluate-every": settings.evaluate_every,
        "--held-out": settings.held_out, "--patience": settings.patience,
        **{flag: [value, street_ppo[flag]] for flag, value in settings.ppo.by_flag().items()},
        "--start-from": None if settings.start is None else settings.start.digest(),
    }  # fmt: skip


def serialized_contracts(contracts: Iterable[pb.PolicyContract]) -> list[str]:
    """Contracts as hex strings, which are equal if the contracts are."""
    return [contract.SerializeToString(deterministic=True).hex() for contract in contracts]
