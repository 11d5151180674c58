"""Rounds: train every group, export, evaluate all models in one run, keep the better ones.

    for every round:
        train      each group in its own task, beside the models kept so far
        export     every TL's best checkpoint, with the round's number as version
        evaluate   before | new, on the same demand; before | mixed, on other demand
        keep       the better new models, beside those of earlier rounds

Files in the rounds' folder: `round_N/group_K` (checkpoints), `round_N/models` (the round's
new models), `models` (kept models, one version or more of each TL) and `rounds.json` (the decisions).

New models are kept only if they reduce delay at their TLs and in the network. Every comparison is a one-sided paired
t-test on the same demand. Over all rounds, the probability of at least one wrong rejection is at most FAMILY_LEVEL,
once for the comparisons of TLs and once for those of arms:

- round k spends 1 / (k (k + 1)) of the level: the shares of any number of rounds, which may grow on resuming, add up to
  less than 1;
- within a round the TLs share it by Holm's step-down procedure (Holm 1979), and the two arms equally;
- the mixture of the better TLs' models is compared on fresh demand, because its TLs were chosen on the first one.
"""

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from city import network, whole_files
from city.config import City
from city.errors import InputError
from city.program import print_line
from evaluation import paired_runs
from evaluation.arms import FIXED, SERVED, Arm
from evaluation.paired_runs import PairedRuns
from evaluation.simulation import EvaluationTask, Outcome, delays_s
from evaluation.statistics import holm, p_value
from export import config as export_config
from export import single_model
from export.saved_model import publish
from signals import contract
from simulation import model_files
from simulation.demand import varied
from simulation.executors import Executor
from simulation.model_files import Versions
from simulation.model_server import model_server
from training.episode import TrainingTask
from training.saved_state import as_json, differing
from training.settings import Settings
from training.statistics import NotFinite
from training.trainer import Trainer, common_identity, serialized_contracts

STATE_FILE = "rounds.json"
"""File of the decisions, in the rounds' folder."""
ROUND_EVALUATION_SEED = 1_000_037
"""First part of the seeds of the evaluations' demand, so that no training has the same demand."""
BEFORE, NEW, MIXED = "before", "new", "mixed"
"""Arms of a round's evaluation: the models kept so far, all new models, and only the better new models."""
FAMILY_LEVEL = 0.025
"""One-sided level; a single comparison at this level corresponds to a 95 % interval below 0."""
CANDIDATE_ARMS = 2
"""`new` and `mixed`."""

Results = Mapping[str, Sequence[Outcome]]
"""Arm -> outcomes, in the order of their demand."""


@dataclass(frozen=True)
class RoundsConfig:
    """Configuration of the rounds."""

    city: City
    groups: tuple[tuple[str, ...], ...]
    rounds: int
    task: TrainingTask
    """The task of every group, without its TLs and its server."""
    settings: Settings
    """Settings of every group's training; `out` is the rounds' folder."""
    seeds: int
    """Simulations of each arm in a round's evaluation."""

    @property
    def tls(self) -> tuple[str, ...]:
        return tuple(tl for group in self.groups for tl in group)


class Rounds:
    """Runs the rounds."""

    def __init__(self, config: RoundsConfig, executor: Executor, resume: bool, report: Callable[[str], None]) -> None:
        """Read the decisions of earlier rounds.

        Args:
            config: the rounds' configuration.
            executor: runs trainings and simulations.
            resume: whether to continue the rounds in the folder.
            report: prints a line for the user.

        Raises:
            InputError: the folder has rounds and `resume` is False, or their configuration differs.
        """
        self._config, self._executor, self._report = config, executor, report
        self._out = config.settings.out
        self._state_file = self._out / STATE_FILE
        self._decisions: list[dict[str, Any]] = []
        if resume:
            self._restore()
        elif self._state_file.exists():
            raise InputError(
                f"{self._state_file}: there are rounds already; pass --resume to continue them, or another --out"
            )
        elif any(self._out.glob("round_*")):
            raise InputError(
                f"{self._out}: has results of rounds, but no {STATE_FILE}; pass another --out, or remove them"
            )
        # so that a server can start before the first model is kept
        (self._out / "models").mkdir(parents=True, exist_ok=True)
        if not resume:
            self._save()

    def run(self) -> dict[str, Path]:
        """Run the remaining rounds; return the kept version of each TL. Raises InputError, SimulationFailed."""
        for number in range(len(self._decisions) + 1, self._config.rounds + 1):
            self._train(number)
            self._decide(number, self._export(number))
        return self._kept()

    def _kept(self) -> dict[str, Path]:
        versions = self._decisions[-1]["kept"] if self._decisions else {}
        return model_files.find(self._out / "models", versions)

    def _train(self, number: int) -> None:
        """Train the groups that have no result yet."""
        folder, kept = self._out / f"round_{number}", self._kept()
        task, settings = self._config.task, self._config.settings
        # every round has other episodes
        settings = replace(settings, number=number, seed=settings.seed + number - 1)
        trainings: dict[str, GroupTraining] = {}
        for k, tls in enumerate(self._config.groups, 1):
            if not (folder / f"group_{k}").is_dir():
                others = {tl: path for tl, path in kept.items() if tl not in tls}
                trainings[f"group_{k}"] = GroupTraining(
                    f"round {number}, group {','.join(tls)}",
                    replace(task, target_tls=tls, infer_tls=tuple(others)),
                    settings,
                    model_files.pack_versions(others) if self._executor.moves_files else others,
                )
        groups = list(trainings)
        for index, trained in self._executor.run(train_group, list(trainings.values()), settings.workers):
            group = groups[index]
            partial = folder / f".{group}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir(parents=True)
                model_files.unpack(trained.files, partial)
                partial.rename(folder / group)
            except OSError as error:
                raise InputError(
                    f"{folder}: the checkpoints cannot be written: {error.strerror or error}; make room there, then "
                    "pass --resume"
                ) from None
            early_end = f" (ended early: {trained.reason})" if trained.reason else ""
            delay_s = trained.validation_delay_s
            delay = f"mean delay {delay_s:.1f} s on the validation demand that chose its state"
            self._report(f"{trainings[group].name}: {delay if math.isfinite(delay_s) else 'no validation'}{early_end}")

    def _export(self, number: int) -> dict[str, Path]:
        """Export every TL that has no model of this round yet; return the round's models."""
        folder = self._out / f"round_{number}"
        trained: list[str] = []
        for k, group in enumerate(self._config.groups, 1):
            checkpoints = folder / f"group_{k}"
            if all(path.suffix == ".csv" or path.name == "tensorboard" for path in checkpoints.iterdir()):
                continue  # no checkpoint: its training ended before its first evaluation
            trained += group
            missing = [tl for tl in group if not (folder / "models" / tl / str(number)).is_dir()]
            if missing:
                job = export_config.city_job(self._config.city, missing, checkpoints, folder / "models", number)
                for tl in missing:
                    self._report(single_model.export(job, tl))
        return model_files.find(folder / "models", dict.fromkeys(trained, number))

    def _decide(self, number: int, new: Mapping[str, Path]) -> None:
        """Evaluate the new models and the kept ones on the same demand, and keep the better ones."""
        kept = self._kept()
        new = {**kept, **new}
        results = self._evaluate(number, {BEFORE: kept, NEW: new})
        better = better_tls(results[BEFORE], results[NEW], number)
        mixed = {**kept, **{tl: new[tl] for tl in better}}
        fresh = self._evaluate(number, {BEFORE: kept, MIXED: mixed}, fresh=True) if mixed not in (kept, new) else {}
        chosen = choose(results, fresh, number)
        versions = {BEFORE: kept, NEW: new, MIXED: mixed}[chosen]
        for tl, path in versions.items():
            if path != kept.get(tl):
                with publish.new_version(self._out / "models", tl, number, overwrite=True) as draft:
                    shutil.copytree(path, draft, dirs_exist_ok=True)
        mean_delay_s = {arm: float(np.mean(delays_s(outcomes))) for arm, outcomes in results.items()}
        fresh_mean_delay_s = {arm: float(np.mean(delays_s(outcomes))) for arm, outcomes in fresh.items()}
        decision = {
            "round": number,
            "chosen": chosen,
            "kept": {tl: int(path.name) for tl, path in versions.items()},
            "mean_delay_s": mean_delay_s,
            "mean_delay_on_fresh_demand_s": fresh_mean_delay_s,
            "better_tls": better,
            "simulations": [
                asdict(outcome) for outcomes in (*results.values(), *fresh.values()) for outcome in outcomes
            ],
        }
        self._decisions.append(decision)
        self._save()
        delays = ", ".join(f"{arm} {mean:.1f} s" for arm, mean in mean_delay_s.items())
        if fresh:
            delays += "; on fresh demand " + ", ".join(
                f"{arm} {mean:.1f} s" for arm, mean in fresh_mean_delay_s.items()
            )
        replaced = [tl for tl, path in versions.items() if int(path.name) == number]
        self._report(f"round {number}: mean delay {delays}; new models kept: {', '.join(replaced) or 'none'}")

    def _evaluate(
        self, number: int, models: Mapping[str, Mapping[str, Path]], fresh: bool = False
    ) -> dict[str, list[Outcome]]:
        """Simulate arms on the same demand. `fresh`: on a second demand, on which no model was chosen."""
        config = self._config
        arms = [Arm(name, SERVED if versions else FIXED) for name, versions in models.items()]
        task = EvaluationTask(config.city, config.tls, config.task.seconds)
        first = config.seeds if fresh else 0
        seeds = [[ROUND_EVALUATION_SEED, config.settings.seed, number, first + k] for k in range(config.seeds)]
        demands = [varied(np.random.default_rng(seed), config.settings.varies) for seed in seeds]
        return paired_runs.run(self._executor, PairedRuns(task, arms, demands, models))

    def _identity(self) -> dict[str, Any]:
        """The flags and settings that may not change when rounds are resumed; `rounds` may grow."""
        config, city = self._config, self._config.city
        street = network.of_city(city)
        identity = {
            "--groups": config.groups,
            "--seeds": config.seeds,
            "[tl] tables": serialized_contracts(contract.build(city, city.tls[tl], street) for tl in config.tls),
            **common_identity(config.task, config.settings),
        }
        return as_json(identity)

    def _save(self) -> None:
        state = {"identity": self._identity(), "rounds": self._decisions}
        whole_files.write(self._state_file, json.dumps(state, indent=1))

    def _restore(self) -> None:
        try:
            state = json.loads(self._state_file.read_text())
            identity, self._decisions = dict(state["identity"]), list(state["rounds"])
        except FileNotFoundError:
            raise InputError(f"{self._state_file}: there are no rounds to resume; leave out --resume") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._state_file}: is not the state of rounds ({error}); start in another --out"
            ) from None
        current = self._identity()
        if identity != current:
            names = ", ".join(differing(identity, current))
            raise InputError(
                f"{self._state_file}: the rounds to resume had another {names}; pass the same, or another --out"
            )


@dataclass(frozen=True)
class GroupTraining:
    """Arguments of `train_group`."""

    name: str
    """The group's name in messages."""
    task: TrainingTask
    """Has no server, because `train_group` starts its own."""
    settings: Settings
    """`out` is not used, because results are returned."""
    models: Versions | bytes
    """The infer TLs' models, as folders or packed."""


@dataclass(frozen=True)
class TrainedGroup:
    """The result of a group's training."""

    validation_delay_s: float
    """Least mean delay on validation demand; inf if the training ended before its first evaluation."""
    files: bytes
    """Learning curve and checkpoints, packed; there are no checkpoints before the first evaluation."""
    reason: str = ""
    """Reason of an early end; empty if the training was completed."""


def train_group(group: GroupTraining) -> TrainedGroup:
    """Train a group until its last episode or a value that is not finite. Raises InputError, SimulationFailed."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="greenserve-")))
        models = group.models
        if isinstance(models, bytes):
            models = model_files.unpack_versions(models, folder / "models")
        server = stack.enter_context(model_server(models))
        trainer = Trainer(
            replace(group.task, server=server),
            replace(group.settings, out=folder / "checkpoints"),
            report=lambda line: print_line(f"{group.name}: {line}"),
            shows_bar=False,
        )
        reason = ""
        try:
            trainer.run(fresh_demands=0)  # the round evaluates all models together
        except NotFinite as error:
            reason = str(error)
        files = {path.name: path for path in (folder / "checkpoints").iterdir() if not path.name.startswith(".")}
        return TrainedGroup(trainer.best_delay_s, model_files.pack(files), reason)


def level_of(number: int) -> float:
    """The share of FAMILY_LEVEL that a round spends. `number`: of the round, from 1."""
    return FAMILY_LEVEL / (number * (number + 1))


def better_tls(before: Sequence[Outcome], new: Sequence[Outcome], number: int) -> list[str]:
    """TLs with significantly less delay on their approaches with the new models. `number`: of the round, from 1."""
    p_values = {
        tl: p_value([outcome.delay_by_tl[tl] for outcome in new], [outcome.delay_by_tl[tl] for outcome in before])
        for tl in before[0].delay_by_tl
    }
    is_better = holm(list(p_values.values()), level_of(number))
    return [tl for tl, better in zip(p_values, is_better, strict=True) if better]


def choose(results: Results, fresh: Results, number: int) -> str:
    """The arm with the largest mean reduction of delay among those that are significantly better than `before`, else
    `before`.

    Args:
        results: `before` and `new`, on the same demand.
        fresh: `before` and `mixed`, on demand that did not choose the TLs of `mixed`; empty if there is no mixture.
        number: of the round, from 1.
    """
    reductions_s = {}
    for arm, outcomes in ((NEW, results), (MIXED, fresh)):
        if outcomes:
            candidate, before = (delays_s(outcomes[name]) for name in (arm, BEFORE))
            if p_value(candidate, before) < level_of(number) / CANDIDATE_ARMS:
                reductions_s[arm] = float(np.mean(before) - np.mean(candidate))
    return max(reductions_s, key=lambda arm: reductions_s[arm], default=BEFORE)
