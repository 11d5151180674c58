"""Verdicts on a new model: paired simulations, the record replayed against it, and the record of its canary.

What a verdict rests on is kept in a folder of the rollout: results of simulations, figures, and the names and digests
of the record's files, which the record deletes by age.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from city import config, whole_files
from city.errors import InputError
from city.ledger import CANARY, EVALUATE, UNDECIDED, WORSE, Model
from city.signatures import Signers
from controller.policies.served_contracts import same_contract
from controller.policies.served_policies import ServedPolicies
from evaluation import paired_runs, results_files
from evaluation.arms import SERVED, Arm
from evaluation.command import VARIED_DEMAND_SEED
from evaluation.paired_runs import PairedRuns
from evaluation.progress import Progress
from evaluation.simulation import EvaluationTask, delays_s
from protos import policy_pb2 as pb
from records.recorded_run import RecordedRun
from records.replay import Replay
from records.shadow import ShadowEvaluation, TlShadow, percentiles_ms
from rollout import model_files, verdicts
from rollout.record_figures import RecordFigures, Times, record_files, sha256_of
from rollout.verdicts import Limits, Verdict
from serving import signed_models
from serving.client import Client
from serving.contract import ContractError
from serving.errors import DeadlineExceeded, ServingError, Unavailable
from signals.observation import Observation
from signals.policy import Answer
from simulation import model_files as simulated_models
from simulation.demand import varied
from simulation.executors import executor

NEW, STABLE = "new", "stable"
"""Arms of the evaluation."""


class _NotReached(Exception):
    """The server did not answer in time: that says nothing of a model."""


class _ReachedPolicies(ServedPolicies):
    """Policies whose server must answer. A model that hangs never gets its evidence."""

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """The answers. Raises _NotReached."""
        answers = super().ask(observations, observed_s)
        if any(isinstance(answer, (Unavailable, DeadlineExceeded)) for answer in answers.values()):
            raise _NotReached
        return answers


@dataclass
class StreetJudges:
    """The verdicts of a city."""

    city: config.City
    models_dir: Path
    record: Path
    client: Client
    evidence_dir: Path
    limits: Limits
    seeds: int = 10
    workers: int = 1
    seconds: float | None = None
    """Simulated time of the evaluation (default: the sumocfg's)."""
    signers: Signers | None = None
    """Whose signature a new model needs."""
    _kept: dict[str, Any] = field(default_factory=dict)
    """By TL, the figures of the newest verdict, for a JSON file."""
    _shadows: dict[str, TlShadow] = field(default_factory=lambda: defaultdict(TlShadow))
    _shadow_from: tuple[str, int] = ("", 0)
    """Run, and wall clock of the newest step that was replayed."""
    _shadow_files: Sequence[Path] = ()
    _recorded_s: list[float] = field(default_factory=list)
    """Wall times of the running controller's requests in the steps of shadow."""
    _figures: RecordFigures | None = None

    def model(self, tl: str, number: int) -> Model:
        return model_files.of_version(self.models_dir, tl, number)

    def new_model(self, tl: str, number: int) -> Model:
        """A model that is to come onto the street. Raises InputError, also without a signature that it needs."""
        model = self.model(tl, number)
        if self.signers is not None:
            signed_models.verify(self.models_dir / tl / str(number), tl, number, self.signers)
        return model

    def evaluate(self, targets: Mapping[str, Model], stable: Mapping[str, Model], tick: Callable[[], None]) -> Verdict:
        """Paired simulations on varied demand; TLs that the ledger does not know keep their newest model."""
        arms = [Arm(NEW, SERVED), Arm(STABLE, SERVED)]
        now: dict[str, int | None] = {tl: model.number for tl, model in stable.items()}
        others = {tl: None for tl in self.city.tls if tl not in now and (self.models_dir / tl).is_dir()}
        found = simulated_models.find(self.models_dir, {**now, **others})
        new = simulated_models.find(self.models_dir, {tl: model.number for tl, model in targets.items()})
        task = EvaluationTask(self.city, tuple(found), self.seconds)
        seeds = range(1, self.seeds + 1)
        demands = [varied(np.random.default_rng([VARIED_DEMAND_SEED, seed]), varies=True) for seed in seeds]
        models = {NEW: {**found, **new}, STABLE: found}
        runs = PairedRuns(task, arms, demands, models)
        with executor(self.workers) as runner, Progress(arms, len(arms) * len(demands)) as progress:

            def report(outcomes: Sequence[Any]) -> None:
                progress.add(outcomes)
                tick()

            results = paired_runs.run(runner, runs, report)
        folder = self.evidence_dir / EVALUATE
        conditions: dict[str, Any] = {"varied_demand": True, "seeds": self.seeds, "seconds": self.seconds}
        conditions["models"] = {arm: {tl: str(path) for tl, path in each.items()} for arm, each in models.items()}
        results_files.write(folder, arms, results, conditions)

        def delays_of(tl: str, arm: str) -> list[float]:
            return [outcome.delay_by_tl[tl] for outcome in results[arm]]

        by_tl = {tl: (delays_of(tl, NEW), delays_of(tl, STABLE)) for tl in targets}
        return verdicts.of_evaluation(delays_s(results[NEW]), delays_s(results[STABLE]), by_tl)

    def shadow(self, targets: Mapping[str, Model]) -> Mapping[str, Verdict]:
        """By TL, the verdict on the would-be decisions in the record so far.

        Replays what the newest file of the record has gained since the last call against the new models.
        """
        self._shadow_files = record_files(self.record)[-1:]
        if not self._shadow_files:
            return dict.fromkeys(targets, Verdict(UNDECIDED, f"{self.record} has no files yet"))
        try:
            run = RecordedRun(self._shadow_files)
            contracts = {contract.tl: contract for contract in run.start.contracts if contract.tl in targets}
            served = {tl: self.client.contract(tl, targets[tl].number) for tl in contracts}
            if other := [tl for tl in served if not same_contract(contracts[tl], served[tl])]:
                names = ", ".join(f"{tl}/{targets[tl].number}" for tl in other)
                return dict.fromkeys(other, Verdict(WORSE, f"{names} has another contract than the controller's run"))
            self._replay(run, served, next(iter(targets.values())).number)
        except (InputError, ServingError, ContractError) as error:
            return dict.fromkeys(targets, Verdict(UNDECIDED, str(error)))
        recorded_p95_ms = percentiles_ms(self._recorded_s)["p95"] or 0.0
        return {
            tl: verdicts.of_shadow(self._shadows[tl], recorded_p95_ms, run.start.control.deadline_ms, self.limits)
            for tl in targets
        }

    def canary(
        self,
        targets: Mapping[str, Model],
        stable: Mapping[str, Model],
        wanted: Mapping[str, Times],
        alarms: Mapping[str, Sequence[str]],
    ) -> Mapping[str, Verdict]:
        numbers, old = ({tl: each[tl].number for tl in targets} for each in (targets, stable))
        if self._figures is None or self._figures.targets != numbers:
            self._figures = RecordFigures(self.record, numbers, old)
        found = self._figures.figures(wanted)
        self._kept = {tl: asdict(found[tl]) for tl in targets}
        return {
            tl: verdicts.of_canary(found[tl].new, found[tl].before, alarms.get(tl, ()), self.limits) for tl in targets
        }

    def keep(self, stage: str, tls: Sequence[str], verdicts: Mapping[str, Verdict]) -> dict[str, str]:
        """Keep the files of a verdict, and return their digests."""
        folder = self.evidence_dir / stage
        if stage == EVALUATE:
            return {f"{stage}/results.json": str(sha256_of(folder / "results.json")["sha256"])}
        document = {
            "verdicts": {tl: verdict._asdict() for tl, verdict in verdicts.items()},
            "limits": asdict(self.limits),
            "figures": {tl: self._kept[tl] for tl in tls if tl in self._kept},
            "record": self._record_files(stage),
        }
        path = folder / f"{'-'.join(tls)[:80]}.json"
        folder.mkdir(parents=True, exist_ok=True)
        whole_files.write(path, json.dumps(document, indent=1), "make room, then run this again")
        return {f"{stage}/{path.name}": str(sha256_of(path)["sha256"])}

    def _record_files(self, stage: str) -> list[dict[str, object]]:
        """Name, bytes and digest of the files that a verdict rests on."""
        if stage == CANARY:
            return self._figures.files() if self._figures is not None else []
        return [sha256_of(path) for path in self._shadow_files if path.exists()]

    def _replay(self, run: RecordedRun, served: Mapping[str, pb.PolicyContract], number: int) -> None:
        """Replay a file, and count its steps that are new. Raises InputError."""
        policies = _ReachedPolicies(self.client, served, number, run.start.control.deadline_ms / 1000, with_scores=True)
        replay = Replay(run, list(served))
        shadow = ShadowEvaluation(policies, served, lambda: replay.loop.intersections)
        shadow.by_tl = {tl: self._shadows[tl] for tl in served}
        since_ns = self._shadow_from[1] if self._shadow_from[0] == run.city.run else 0
        self._shadow_from = run.city.run, since_ns

        def ask(step: Any, answers: Any) -> None:
            if step.publish_ns > since_ns:
                self._shadow_from = run.city.run, step.publish_ns
                with contextlib.suppress(_NotReached):
                    shadow.ask(step, answers)
                    self._recorded_s.append(step.step.times.inference_s)

        replay.on_answers = ask
        replay.run()
        self._kept = {tl: each.as_dict() for tl, each in self._shadows.items()}
