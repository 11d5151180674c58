"""One TL's export, from its checkpoint to its published version."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.config import TL, Training
from city.errors import InputError, errors_about
from city.names import contains_tl
from export import training_record
from export.actors import Actor, GraphActor
from export.actors.architectures import ArchitectureHints
from export.checkpoints import scopes, source_of
from export.checkpoints.helper_process import run_in_helper
from export.checkpoints.source import ActorRequest, RebuiltActor
from export.checkpoints.stable_baselines3 import SOURCE as SB3_SOURCE
from export.config import Job, read_observations, settings_of
from export.locate import Candidate
from export.rebuild import rebuild
from export.saved_model import manifest, publish, verify, write
from export.training_record import TrainingRecord
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL, PROBABILITIES, Q_VALUES, lanes
from signals import contract as contracts
from signals import dialects, movement_names, varied_observations
from signals.movement_names import MovementNames

MAX_MODEL_NUMBER = 1 << 62
"""Model numbers are below this: TensorFlow Serving's versions are int64, and a fleet's next version is one more."""
_published: dict[tuple[Path, Path], Path] = {}
"""(folder of models, checkpoint) -> the version that was made of them last."""


def export(job: Job, tl: str) -> str:
    """Locate, read, rebuild, write, verify and publish one TL; return a summary, and a line if it has one action.

    Raises InputError; ParityError or NotInferenceOnly if the written model fails its verification.
    """
    begin = time.perf_counter()
    tl_export = TlExport.of(job, tl)
    version = job.models_dir / tl / str(tl_export.number)
    if job.skip_existing and publish.exists(job.models_dir, tl, tl_export.number):
        return f"{tl}: {version} exists already; left as it is"
    publish.check_version_absent(job.models_dir, tl, tl_export.number, job.overwrite)
    summary, notes, only_action = tl_export.publish()
    line = "; ".join([f"{tl}: {summary}, {time.perf_counter() - begin:.2f} s", *notes])
    return f"{line}\n{tl}: {varied_observations.warning(only_action)}" if only_action else line


@dataclass(frozen=True)
class TlExport:
    """The export of one TL: its checkpoint, its settings, and the version that they become."""

    job: Job
    tl: str
    candidate: Candidate
    number: int
    settings: TL | None
    """Settings in city.toml and the checkpoint's name; `None` without a city."""

    @classmethod
    def of(cls, job: Job, tl: str) -> "TlExport":
        """Locate a TL's checkpoint. Raises InputError if it is not clear, or contradicts city.toml."""
        candidate = job.search.choose(tl, job.model_number)
        number = next(n for n in (candidate.number, job.model_number, 1) if n is not None)
        if number >= MAX_MODEL_NUMBER:
            raise InputError(f"{candidate.path}: has model number {number}, but it must be below 2**62; rename it")
        return cls(job, tl, candidate, number, settings_of(job.city, tl, candidate))

    def publish(self) -> tuple[str, list[str], str]:
        """Write, verify and publish the version; return a summary, remarks on it, and its only action if it has but
        one. Raises InputError, ParityError."""
        job, candidate, source = self.job, self.candidate, source_of(self.candidate.format)
        observations = read_observations(job.observations, self.tl) if job.observations is not None else None
        rebuilt, contract = self.rebuild(observations)
        with errors_about(candidate.path):
            files = source.files(candidate.path)
        sha256s = map(manifest.sha256, files)
        change_s = contract.origin.change_s
        contract.origin.CopyFrom(manifest.origin(candidate.format, candidate.label, sha256s, self.number))
        contract.origin.change_s = change_s
        with publish.new_version(job.models_dir, self.tl, self.number, job.overwrite, job.keep) as draft:
            arguments = (draft, rebuilt, contract, observations, self._names())
            if rebuilt.runs_in_helper:
                with errors_about(candidate.path):
                    results = run_in_helper(_write_and_verify, *arguments)
            else:
                results = _write_and_verify(*arguments)
            manifest.write(draft, rebuilt, contract, files, results)
            key, version = (job.models_dir, candidate.path), job.models_dir / self.tl / str(self.number)
            if key in _published:
                publish.link_equal_variables(draft, _published[key])
            if job.signer is not None:
                job.signer.sign(draft, self.tl, self.number)  # last: a file that is added later breaks the signature
        _published[key] = version
        widths = " -> ".join(map(str, rebuilt.actor.widths))
        compared = " from the trainer's graph" if rebuilt.reference_model else ""
        return (
            (
                f"{candidate.label} -> {version} "
                f"({rebuilt.actor.description}, {contract.action.kind} {widths}), "
                f"largest difference{compared} {results.difference:.1e}"
            ),
            _notes(rebuilt, contract),
            results.only_action,
        )

    def rebuild(self, observations: NDArray[np.float32] | None = None) -> tuple[RebuiltActor, pb.PolicyContract]:
        """The actor and its contract, whose origin has no file. Raises InputError if the two do not fit each other.

        `observations`: of recorded traffic.
        """
        record = training_record.read(self.candidate, self.job.search.folder, self.number, self.tl)
        contract = self._contract(record)
        rebuilt = rebuild(self.candidate, self._request(contract, record, observations))
        with errors_about(self.tl):
            kind = self._action_kind(rebuilt.action_kind)
            self._check_assignment(rebuilt)
            if contract is None:
                contract = contracts.incomplete(self.tl, rebuilt.actor.inputs, kind, rebuilt.actor.outputs)
            elif self._is_padded:
                rebuilt = self._unpad(rebuilt, contract)
            self._check_sizes(rebuilt.actor, contract)
        scores = rebuilt.actor.scores
        requested = self.job.overrides.get("scores") or (self.settings.scores if self.settings else None)
        if kind == CATEGORICAL and requested not in (None, scores):
            raise InputError(
                f"{self.tl}: the policy of {self.candidate.label} gives {scores}, but --scores or [tl.{self.tl}] has "
                f"{requested}; fix the one that is wrong"
            )
        if scores != PROBABILITIES:
            contract.action.scores = scores
        contract.origin.change_s = record.change_s if record is not None else 0.0
        return rebuilt, contract

    def _contract(self, record: TrainingRecord | None) -> pb.PolicyContract | None:
        """The contract that the street determines; `None` without a street. Raises InputError."""
        city, street = self.job.city, self.job.street
        if city is None or self.settings is None or street is None:
            return None
        dialect = dialects.find(self.settings.dialect, f"{city.path}: [tl.{self.tl}]")
        programs = record.programs if record is not None else None
        return contracts.build(city, self.settings, street, record is None and dialect.takes_first_program, programs)

    def _names(self) -> dict[str, MovementNames]:
        """By signal, the names of its movements; none without a street. Raises InputError."""
        city, street = self.job.city, self.job.street
        if city is None or self.settings is None or street is None:
            return {}
        return movement_names.of_city(replace(city, tls={self.tl: self.settings}), street)

    def _request(
        self,
        contract: pb.PolicyContract | None,
        record: TrainingRecord | None,
        observations: NDArray[np.float32] | None,
    ) -> ActorRequest:
        """The actor that the checkpoint must have. Raises InputError."""
        job = self.job
        training = job.city.training if job.city is not None else Training()
        # without a city, only flags and the file's name define an actor
        tl = self.settings or TL(signals=(), dialect="", hidden_sizes=self.candidate.hidden_sizes)
        tl = replace(tl, **job.overrides)
        return ActorRequest(
            tl=self.tl,
            scope=tl.scope or training.scope,
            target_tls=job.target_tls,
            output_tensor=tl.output_tensor or training.output_tensor,
            hints=ArchitectureHints(
                architecture=tl.actor,
                # a fact of the checkpoint, unless a flag names another; city.toml's is for those that have none
                hidden_activation=job.overrides.get(
                    "hidden_activation", record.hidden_activation if record is not None else tl.hidden_activation
                ),
                output_activation=tl.output_activation,
                hidden_sizes=tl.hidden_sizes,
                epsilon=tl.batch_norm_epsilon,
                layer_order=tl.layers,
                scores=tl.scores,
            ),
            categorical=self._requested_kind == CATEGORICAL,
            inputs=contract.observation.size if contract else None,
            outputs=contract.action.size if contract else None,
            contract=contract,
            observations=observations,
            file_name=self.candidate.path.name,
        )

    @property
    def _is_padded(self) -> bool:
        return self.job.city is not None and self.job.city.training.padding is not None

    @property
    def _requested_kind(self) -> str:
        """Kind of the action from city.toml, --action or the file name; `continuous` by default. Raises InputError."""
        if self.settings is not None:
            return dialects.find(self.settings.dialect, self.candidate.label).action_kind(self.settings)
        flag, from_file_name = self.job.action, self.candidate.settings.get("action")
        if flag and from_file_name and flag != from_file_name:
            raise InputError(
                f"{self.candidate.label} has action {from_file_name}, but --action is {flag}; fix the one that is wrong"
            )
        return flag or from_file_name or "continuous"

    def _action_kind(self, stored: str | None) -> str:
        """Kind of the action. `stored`: that in the checkpoint, if it has one. Raises InputError if they contradict."""
        requested = self._requested_kind
        if stored is None or (stored == CATEGORICAL) == (requested == CATEGORICAL):
            return requested
        if self.settings is None and self.job.action is None and "action" not in self.candidate.settings:
            return stored
        where = f"{self.job.city.path}: [tl.{self.tl}]" if self.job.city else "--action, or the file's name,"
        raise InputError(
            f"the policy of {self.candidate.label} is {stored}, but {where} has action {requested}; fix the one that "
            "is wrong"
        )

    def _check_assignment(self, rebuilt: RebuiltActor) -> None:
        """Raise InputError if an actor without a TL's name would be exported for several TLs."""
        job = self.job
        is_assigned = (
            len(job.tls) == 1
            or self._is_padded
            or source_of(self.candidate.format).serves_any_tl
            or (self.settings is not None and self.settings.scope is not None)
            or self.tl in job.target_tls
            or contains_tl(rebuilt.scope, self.tl)
            or job.search.is_assigned(self.candidate)
        )
        if not is_assigned:
            raise InputError(
                f"neither {self.candidate.label} nor a scope in it has a TL's name; export it for one TL only (--tl "
                f"{self.tl}); assign it with scope in city.toml or --target-tls; or, if all TLs share this policy, "
                'padded by SuperSuit, set padding = "supersuit" under [training]'
            )

    def _unpad(self, rebuilt: RebuiltActor, contract: pb.PolicyContract) -> RebuiltActor:
        """The TL's part of a padded policy, which TLs of several sizes share. Raises InputError."""
        actor = rebuilt.actor
        if not isinstance(actor, Actor) or contract.action.kind != CATEGORICAL:
            raise InputError(
                f"[training] padding is for categorical policies of linear layers; {self.candidate.label} holds another"
            )
        contract.observation.padded_size, contract.action.padded_size = actor.inputs, actor.outputs
        with errors_about(f"{self.tl}: {self.candidate.label}"):
            return replace(rebuilt, actor=actor.for_tl(contract.observation.size, contract.action.size))

    def _check_sizes(self, actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
        if actor.inputs != contract.observation.size:
            kind = f"{contract.observation.dialect} {contract.observation.state}".strip()
            advice = ""
            if contract.action.kind == CATEGORICAL:
                advice += "; another observation function is a dialect of its own (docs/reference/dialects.md)"
            if actor.inputs > contract.observation.size:
                advice += (
                    '; if TLs of several sizes share this policy, padded by SuperSuit, set padding = "supersuit" under '
                    "[training]"
                )
            raise InputError(
                f"the actor of {self.candidate.label} has {actor.inputs} inputs, but the network's lanes give "
                f"{contract.observation.size} ({kind} on {len(lanes(contract))} lanes: {', '.join(lanes(contract))}); "
                "use the SUMO network that the policy was trained on, or another "
                f"checkpoint{advice}"
            )
        if actor.outputs != contract.action.size:
            raise InputError(
                f"the actor of {self.candidate.label} has {actor.outputs} outputs, but action {contract.action.kind} "
                f"of signals {', '.join(contract.signal_ids)} takes {contract.action.size}; "
                "use the signals of training, or another checkpoint"
            )


def _write_and_verify(
    draft: Path,
    rebuilt: RebuiltActor,
    contract: pb.PolicyContract,
    of_traffic: NDArray[np.float32] | None,
    names: Mapping[str, MovementNames],
) -> verify.Verification:
    """Write an actor's SavedModel into an empty folder and verify it. Raises ParityError, NotInferenceOnly."""
    write.write(draft, rebuilt.actor, contract)
    return verify.compare_with_checkpoint(draft, rebuilt.actor, contract, rebuilt.reference_model, of_traffic, names)


def _notes(rebuilt: RebuiltActor, contract: pb.PolicyContract) -> list[str]:
    """Remarks of the summary, such as `left unread: critic 6, optimizer 12`."""
    notes = []
    if contract.missing:
        notes.append(f"contract incomplete: {', '.join(contract.missing)}")
    if rebuilt.actor.unread:
        counts = Counter(scopes.unread_reason(name, rebuilt.scope) for name in rebuilt.actor.unread)
        notes.append(f"left unread: {', '.join(f'{reason} {count}' for reason, count in sorted(counts.items()))}")
    if contract.action.scores == Q_VALUES and contract.origin.source_format != SB3_SOURCE.format:
        notes.append("its outputs are served as they are, as q_values; pass --scores probabilities if they are logits")
    if rebuilt.note:
        notes.append(rebuilt.note)
    return notes
