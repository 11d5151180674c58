"""The training loop: episodes, updates, evaluation on held-out demand, best and newest state."""

import functools
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from city import sumo_files, whole_files
from city.errors import InputError, first_line
from export import training_record
from export.locate import find_candidates
from protos import policy_pb2 as pb
from simulation.demand import Demand, varied
from simulation.executors import Executor, executor, in_order
from simulation.executors.simulator_per_process import SimulatorPerProcess
from training.episode import Arrays, Episode, EpisodeSimulator, TrainingTask
from training.mlp_learning import MlpLearning
from training.phase_competition.networks import StreetLayout
from training.phase_competition.street_learning import StreetLearning
from training.ppo_config import PpoConfig, StreetPpo
from training.progress import Progress, progress_file
from training.statistics import IN_CURVES, Rollouts, UpdateStatistics, cell, combined, summary
from training.tensorboard_log import TensorBoardLog
from training.transitions import Float32s

HELD_OUT_SEED = 1_000_003
"""First part of the seeds of held-out demand, which no training episode uses."""
CURVE = ("episode", "delay_s", "finished", "total", "overrides", "held_out_delay_s", *IN_CURVES)


@dataclass(frozen=True)
class Settings:
    """Settings of a training."""

    out: Path
    number: int = 1
    """Model number of the checkpoints."""
    episodes: int = 300
    episodes_per_update: int = 4
    seed: int = 1
    workers: int = 1
    ppo: PpoConfig = field(default_factory=PpoConfig)
    street_ppo: StreetPpo = field(default_factory=StreetPpo)
    """Of TLs of the street dialect; the final sharpness is that of `ppo` for all TLs."""
    varies: bool = True
    """Whether demand varies between episodes."""
    evaluate_every: int = 10
    """Updates between two evaluations on held-out demand."""
    held_out: int = 2
    """Held-out simulations of an evaluation."""
    patience: int = 0
    """Evaluations without an improvement after which the training ends; 0 for no early end."""
    formats: dict[str, str] = field(default_factory=dict)
    """Checkpoint format by TL (default: `tf2`)."""
    start: Sequence[Float32s] | None = None
    """Arrays of a policy of the street dialect to start from (`street_learning.load`)."""
    resume: bool = False
    writes_newest: bool = False
    """Whether the newest state is written, after each update, instead of the best one after an evaluation that finds
    it."""


@dataclass(frozen=True)
class Result:
    """The result of a training."""

    episodes: int
    best_delay_s: float
    """Mean delay of the best state on held-out demand."""
    paths: dict[str, Path]
    """TL -> checkpoint."""


class Trainer:
    """Trains the target TLs of a task."""

    def __init__(self, task: TrainingTask, settings: Settings, runner: Executor | None = None) -> None:
        """Read the street, and the state to resume from. Raises InputError.

        `runner`: executor of the simulations (default: by the number of workers).
        """
        self._task, self._settings = task, settings
        self._simulation = EpisodeSimulator(task)
        self._executor = runner or executor(settings.workers)
        self._simulate = SimulatorPerProcess(functools.partial(EpisodeSimulator, task), self._simulation)
        layouts = self._simulation.layouts
        rng = np.random.default_rng(settings.seed)
        self._learners: list[MlpLearning | StreetLearning] = []
        for layout in layouts:
            if isinstance(layout, StreetLayout):
                ppo = replace(settings.street_ppo, final_sharpness=settings.ppo.final_sharpness)
                self._learners.append(StreetLearning(layout, ppo, rng, settings.start))
            else:
                self._learners.append(MlpLearning(layout, settings.ppo, rng))
        self._best = self._arrays()
        self.best_delay_s = float("inf")
        """Mean delay of the best state on held-out demand; inf before the first evaluation."""
        self._best_sharpness = 1.0
        self._stale = 0
        """Evaluations since the best one."""
        self._update = 0
        self._prepared: Future[None] | None = None
        self._rollouts = Rollouts()
        self._updates = -(-settings.episodes // settings.episodes_per_update)
        self._progress = Progress(progress_file(settings.out, settings.number))
        self._curve = settings.out / f"trial_{settings.number}_curve.csv"
        self._rows: list[str] = []
        """Rows of the curve, without its header."""
        if settings.resume:
            self._restore()
            self._rows = self._read_curve()[: self._update]
        else:
            self._refuse_existing()
        settings.out.mkdir(parents=True, exist_ok=True)

    def run(self, report: Callable[[str], None] = lambda line: None, shows_bar: bool = True) -> Result:
        """Train to the end.

        Args:
            report: called with a line per update if there is no progress bar.
            shows_bar: show a progress bar if stderr is a terminal.

        Raises InputError (no demand, disk full), SimulationFailed, NotFinite; the checkpoints are then the last ones
        that were written.
        """
        settings = self._settings
        tqdm.set_lock(
            threading.RLock()
        )  # the default lock is a semaphore between processes, which a killed process leaks
        bar = tqdm(total=self._updates, initial=self._update, unit="update", disable=None if shows_bar else True)
        logs = settings.out / "tensorboard" / f"trial_{settings.number}"
        with ThreadPoolExecutor(1) as thread, self._executor, TensorBoardLog(logs) as log, bar:
            if settings.workers > 1:
                self._prepared = thread.submit(self._prepare)
            self._rollouts = Rollouts()
            if settings.start is not None and self._update == 0:
                report(
                    f"before the first update: held-out {self._evaluate():.1f} s"
                )  # kept unless the training finds better
                self._write()
            while self._update < self._updates and not (settings.patience and self._stale >= settings.patience):
                episodes, statistics = self.update()
                held_out_s = None
                if self._update % settings.evaluate_every == 0 or self._update == self._updates:
                    held_out_s = self._evaluate()
                if settings.writes_newest or (held_out_s is not None and self._stale == 0):
                    self._write()  # before the curve's row, which says that they are there
                values = self._log_update(log, episodes, statistics, held_out_s)
                self._save()
                delay_s = values["delay_s"]
                bar.update()
                bar.set_postfix_str(f"delay {delay_s:.1f} s, best {self.best_delay_s:.1f} s, {summary(values)}")
                if bar.disable:
                    held_out = f", held-out {held_out_s:.1f} s" if held_out_s is not None else ""
                    report(
                        f"update {self._update} of {self._updates}: mean delay {delay_s:.1f} s{held_out}; "
                        f"{summary(values)}"
                    )
        return Result(self._update * settings.episodes_per_update, self.best_delay_s, self._write())

    def update(self) -> tuple[list[Episode], dict[str, UpdateStatistics]]:
        """Simulate the next episodes and learn from them; return them and statistics by kind of actor. Raises as
        `run`."""
        episodes = self._simulated(self._jobs())
        if not any(episode.trips.total for episode in episodes) and not self._has_demand():
            raise InputError(
                f"{self._task.city.network.sumocfg}: no vehicle departs in an episode; name route files in it"
            )
        statistics = self._learn(episodes)
        self._update += 1
        return episodes, statistics

    def _has_demand(self) -> bool:
        """Whether a vehicle departs in an episode of the city's own demand; a varied one of few vehicles may have
        none."""
        (episode,) = self._simulated([(self._arrays(), Demand(self._settings.seed + 1), (0,), False)])
        return episode.trips.total > 0

    def _jobs(self) -> Sequence[tuple[Arrays, Demand, tuple[int, ...], bool, float]]:
        """The arguments of the next episodes."""
        settings = self._settings
        first = self._update * settings.episodes_per_update
        jobs = []
        for episode in range(first, first + settings.episodes_per_update):
            # a generator per episode: a resumed training repeats the same episodes with any number of workers
            demand = varied(np.random.default_rng([settings.seed, episode]), settings.varies)
            jobs.append((self._arrays(), demand, (settings.seed, episode, 1), True, self._sharpness()))
        return jobs

    def _simulated(self, jobs: Sequence[tuple[Any, ...]]) -> list[Episode]:
        """Simulate episodes; return them in order. `jobs`: arguments of `EpisodeSimulator.run`."""
        return in_order(self._executor.run(self._simulate, jobs))

    def _progress_share(self) -> float:
        """The share of the updates that are done, in [0, 1]."""
        return self._update / self._updates

    def _sharpness(self) -> float:
        return self._settings.ppo.sharpness(self._progress_share())

    def _prepare(self) -> None:
        """Prepare the learning in another thread, while the first episodes run in other processes: it takes seconds."""
        for learner in self._learners:
            learner.prepare()

    def _learn(self, episodes: Sequence[Episode]) -> dict[str, UpdateStatistics]:
        if self._prepared is not None:
            self._prepared.result()
        statistics: dict[str, UpdateStatistics] = {}
        transitions = [episode.transitions for episode in episodes]
        for k, learner in enumerate(self._learners):
            rng = np.random.default_rng([self._settings.seed, self._update, 2 + k])
            learned = learner.learn(transitions, rng, self._progress_share())
            if learned is not None:
                statistics[learner.kind] = learned
        return statistics

    def _evaluate(self) -> float:
        """Mean delay in s of the newest state on held-out demand, without exploration. Keeps the best state."""
        settings = self._settings
        demands: list[Demand] = [
            varied(np.random.default_rng([HELD_OUT_SEED, settings.seed, k]), settings.varies)
            for k in range(settings.held_out)
        ]
        episodes = self._simulated([(self._arrays(), demand, (0,), False) for demand in demands])
        delay_s = float(np.mean([episode.trips.delay_s for episode in episodes]))
        if delay_s < self.best_delay_s:
            self._best, self.best_delay_s, self._stale = self._arrays(), delay_s, 0
            self._best_sharpness = self._sharpness()
        else:
            self._stale += 1
        return delay_s

    def _log_update(
        self,
        log: TensorBoardLog,
        episodes: Sequence[Episode],
        statistics: Mapping[str, UpdateStatistics],
        held_out_s: float | None,
    ) -> dict[str, float]:
        """Log an update in the curve and in TensorBoard; return the values by name."""
        count = self._update * self._settings.episodes_per_update
        transitions = [tl for episode in episodes for tl in episode.transitions.values()]
        values: dict[str, float] = {
            "delay_s": float(np.mean([episode.trips.delay_s for episode in episodes])),
            "finished": sum(episode.trips.finished for episode in episodes),
            "total": sum(episode.trips.total for episode in episodes),
            "overrides": sum(episode.overrides for episode in episodes),
        }
        learning = self._rollouts.statistics(transitions) | combined(list(statistics.values()))
        row = [
            count,
            *(round(value, 2) for value in values.values()),
            "" if held_out_s is None else round(held_out_s, 2),
        ]
        row += [cell(learning.get(name)) for name in IN_CURVES]
        self._rows.append(",".join(map(str, row)))
        whole_files.write(self._curve, "\n".join([",".join(CURVE), *self._rows]) + "\n")
        if held_out_s is not None:
            values["held_out_delay_s"] = held_out_s
        values |= learning
        # with several kinds of actors, TensorBoard has the statistics of each
        kinds = statistics if len(statistics) > 1 else {}
        by_kind = {f"{name}/{kind}": value for kind, part in kinds.items() for name, value in part.named().items()}
        log.add({**values, **by_kind}, count)
        return values

    def _refuse_existing(self) -> None:
        """Raise InputError if the training would replace results of this model number."""
        number = self._settings.number
        if self._progress.path.exists():
            raise InputError(
                f"{self._progress.path}: a training of this model number exists; pass --resume to continue it, or "
                "another --model-number"
            )
        existing = [self._curve] if self._curve.exists() else []
        candidates = find_candidates(self._settings.out) if self._settings.out.is_dir() else []
        existing += [
            candidate.path
            for candidate in candidates
            if candidate.number == number and any(candidate.is_named_after(tl) for tl in self._task.target_tls)
        ]
        if existing:
            raise InputError(
                f"{existing[0]}: already exists, with model number {number}; pass another --model-number or --out"
            )

    def _read_curve(self) -> list[str]:
        """The rows of the curve, without its header. Raises InputError."""
        try:
            return self._curve.read_text(encoding="utf-8").splitlines()[1:] if self._curve.is_file() else []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self._curve}: is not the curve of a training ({first_line(error)}); remove it"
            ) from None

    def _arrays(self) -> Arrays:
        return [learner.arrays for learner in self._learners]

    def _write(self) -> dict[str, Path]:
        """Write the checkpoints; return TL -> path."""
        paths: dict[str, Path] = {}
        contracts = {contract.tl: contract for contract in self._simulation.contracts}
        is_newest = self._settings.writes_newest
        state, sharpness = (self._arrays(), self._sharpness()) if is_newest else (self._best, self._best_sharpness)
        training_record.write(self._settings.out, self._settings.number, self._simulation.records())
        for learner, arrays in zip(self._learners, state, strict=True):
            settings = self._settings
            paths |= learner.write(settings.out, contracts, arrays, sharpness, settings.number, settings.formats)
        return paths

    def _identity(self) -> str:
        """Everything that must be the same when a training is resumed, as JSON."""
        return json.dumps(
            {
                "--target-tl or their [tl] tables": serialized_contracts(self._simulation.contracts),
                "--infer-tl or their models": serialized_contracts(self._simulation.served_contracts),
                "--format": self._settings.formats,
                **common_identity(self._task, self._settings),
            }
        )

    def _save(self) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for k, (learner, best) in enumerate(zip(self._learners, self._best, strict=True)):
            arrays |= {f"state/{k}/{i:03d}": array for i, array in enumerate(learner.state())}
            arrays |= {f"best/{k}/{i:03d}": array for i, array in enumerate(best)}
        values = {
            "identity": self._identity(),
            "update": self._update,
            "best_delay_s": self.best_delay_s,
            "best_sharpness": self._best_sharpness,
            "stale": self._stale,
        }
        self._progress.save(values, arrays)

    def _restore(self) -> None:
        loaded = self._progress.load()
        if loaded is None:
            raise InputError(f"{self._progress.path}: no such file, so no training to resume; leave out --resume")
        values, arrays = loaded
        try:
            self._check_identity(values)
            self._set_state(values, arrays)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self._progress.damaged(error) from None

    def _check_identity(self, values: dict[str, Any]) -> None:
        if values["identity"] != self._identity():
            identity, saved = json.loads(self._identity()), json.loads(values["identity"])
            differing = ", ".join(name for name in identity if identity[name] != saved.get(name))
            raise InputError(
                f"{self._progress.path}: the training to resume had another {differing}; pass the same flags and city, "
                "or another --model-number without --resume"
            )

    def _set_state(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        for k, learner in enumerate(self._learners):
            learner.restore([arrays[name] for name in sorted(arrays) if name.startswith(f"state/{k}/")])
            self._best[k][:] = [arrays[name] for name in sorted(arrays) if name.startswith(f"best/{k}/")]  # type: ignore[index]
        self._update, self._stale = values["update"], values["stale"]
        self.best_delay_s, self._best_sharpness = values["best_delay_s"], values["best_sharpness"]


def common_identity(task: TrainingTask, settings: Settings) -> dict[str, Any]:
    """What must be the same when a training or rounds are resumed, by the flag or table that changes it."""
    sumocfg = task.city.network.sumocfg
    street_ppo = settings.street_ppo.by_flag()
    assert sumocfg is not None, "a city without demand is refused before it is trained"
    return {
        "[network] or its files": [sumo_files.digest(sumocfg), task.city.network.begin_s],
        "[safety]": asdict(task.city.safety),
        "--reward": task.reward, "--shared": task.shared, "--hidden-sizes": task.hidden, "--seconds": task.seconds,
        "--seed": settings.seed, "--episodes": settings.episodes, "--episodes-per-update": settings.episodes_per_update,
        "--same-demand": not settings.varies, "--evaluate-every": settings.evaluate_every,
        "--held-out": settings.held_out,
        "--patience": settings.patience, **{flag: [value, street_ppo[flag]] for flag,
        value in settings.ppo.by_flag().items()},
        "--start-from": None if settings.start is None else _digest(settings.start),
    }  # fmt: skip


def _digest(arrays: Iterable[Float32s]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def serialized_contracts(contracts: Iterable[pb.PolicyContract]) -> list[str]:
    """Contracts as hex strings, which are equal if the contracts are."""
    return [contract.SerializeToString(deterministic=True).hex() for contract in contracts]


def print_line(line: str) -> None:
    """Print a line to stderr and flush, so that a log file shows the training's progress."""
    print(line, file=sys.stderr, flush=True)
