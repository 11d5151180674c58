"""One TL's export, from its checkpoint to its published version."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.config import TL
from city.errors import InputError
from city.names import MAX_SIGNAL_NAME, contains_tl
from export import locate, tl_settings, traffic_observations, training_record
from export.actors import Actor, padding
from export.actors.architectures import ArchitectureHints
from export.checkpoints import scopes, source_of
from export.checkpoints.source import ActorRequest
from export.config import Job
from export.graphs import graph_process
from export.graphs.graph_actor import PARITY_OBSERVATIONS, GraphActor
from export.locate import Candidate
from export.rebuild import RebuiltActor, rebuild
from export.saved_model import manifest, publish, verify, warmup, write
from export.saved_model.manifest import Verification
from export.training_record import TrainingRecord
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL, PROBABILITIES, lanes
from signals import contract as contracts
from signals import dialects

MAX_MODEL_NUMBER = 1 << 62
"""Model numbers are below this: TensorFlow Serving's versions are int64, and a fleet's next version is one more."""
NUMPY_REFERENCE = "NumPy float64 evaluation of the checkpoint's variables"


def export(job: Job, tl: str) -> str:
    """Locate, read, rebuild, write, verify and publish one TL; return a one-line summary.

    Raises InputError; ParityError or NotInferenceOnly if the written model fails its verification.
    """
    begin = time.perf_counter()
    known_tls = [*job.tls, *job.target_tls, *(job.city.tls if job.city else ())]
    candidate = locate.choose_candidate(
        tl, job.candidates, job.model_path, job.model_number, known_tls, _signal_of(job)
    )
    number = next(n for n in (candidate.number, job.model_number, 1) if n is not None)
    if number >= MAX_MODEL_NUMBER:
        raise InputError(f"{tl}: {candidate.label} has model number {number}, but it must be below 2**62; rename it")
    settings = tl_settings.settings_of(job.city, tl, candidate)
    if job.skip_existing and publish.exists(job.models_dir, tl, number):
        return f"{tl}: {job.models_dir / tl / str(number)} exists already; left as it is"
    publish.check_version_absent(job.models_dir, tl, number, job.overwrite)
    record = training_record.read(candidate, job.model_path, number, tl)
    of_traffic = traffic_observations.read(job.observations, tl) if job.observations is not None else None
    rebuilt, contract = _rebuild(job, tl, candidate, settings, record, of_traffic)
    files = source_of(candidate.format).files(candidate.path)
    contract.origin.CopyFrom(manifest.origin(candidate.format, candidate.label, map(manifest.sha256, files), number))
    contract.origin.change_s = record.change_s if record is not None else 0.0
    with publish.new_version(job.models_dir, tl, number, job.overwrite, job.keep) as draft:
        if rebuilt.runs_in_helper:
            results = graph_process.run(candidate.path, _write_and_verify, draft, rebuilt, contract, number, of_traffic)
        else:
            results = _write_and_verify(draft, rebuilt, contract, number, of_traffic)
        manifest.write(draft, rebuilt, contract, files, results)
    model = f"{rebuilt.actor.description}, {contract.action.kind} {' -> '.join(map(str, rebuilt.actor.widths))}"
    compared = " from the trainer's graph" if rebuilt.reference_model else ""
    summary = (
        f"{tl}: {candidate.label} -> {job.models_dir / tl / str(number)} ({model}), "
        f"largest difference{compared} {results.parity.difference:.1e}, {time.perf_counter() - begin:.2f} s"
    )
    return "; ".join([summary, *_notes(rebuilt, contract)])


def _signal_of(job: Job) -> dict[str, str]:
    """TL -> its only signal, if `city init` does not name the TL after it because its id is too long."""
    tls = job.city.tls if job.city else {}
    return {
        name: tl.signals[0] for name, tl in tls.items() if len(tl.signals) == 1 and len(tl.signals[0]) > MAX_SIGNAL_NAME
    }


def _write_and_verify(
    draft: Path, rebuilt: RebuiltActor, contract: pb.PolicyContract, number: int, of_traffic: NDArray[np.float32] | None
) -> Verification:
    """Write an actor's SavedModel into an empty folder and verify it. Raises ParityError, NotInferenceOnly."""
    write.write(draft, rebuilt.actor, contract)
    warmup.write(draft, contract, number)
    parity = verify.compare_with_checkpoint(draft, rebuilt.actor, contract, rebuilt.reference_model, of_traffic)
    reference = rebuilt.reference_model.description if rebuilt.reference_model else NUMPY_REFERENCE
    observations = PARITY_OBSERVATIONS + (0 if of_traffic is None else len(of_traffic))
    return Verification(verify.count_operations(draft), observations, parity, reference)


def _rebuild(
    job: Job,
    tl: str,
    candidate: Candidate,
    settings: TL | None,
    record: TrainingRecord | None,
    of_traffic: NDArray[np.float32] | None,
) -> tuple[RebuiltActor, pb.PolicyContract]:
    """A TL's actor, and its contract without an origin. Raises InputError if the two do not fit each other.

    `record`: the record of its training, if greenserve train wrote one. `of_traffic`: recorded observations.
    """
    contract = None
    if job.city and settings and job.street:
        programs = record.programs if record is not None else None
        takes_first = (
            record is None and dialects.find(settings.dialect, f"{job.city.path}: [tl.{tl}]").takes_first_program
        )
        contract = contracts.build(job.city, settings, job.street, takes_first, programs)
    rebuilt = rebuild(
        candidate, replace(_actor_request(job, tl, candidate, settings, contract), observations=of_traffic)
    )
    kind = _action_kind(job, tl, candidate, settings, rebuilt.action_kind)
    _check_assignment(job, tl, candidate, rebuilt, settings)
    if contract is None:
        contract = contracts.incomplete(tl, rebuilt.actor.inputs, kind, rebuilt.actor.outputs)
    elif job.city is not None and job.city.training.padding is not None:
        rebuilt = _unpad(tl, candidate, rebuilt, contract)
    actor = rebuilt.actor
    _check_sizes(tl, candidate, actor, contract)
    if isinstance(actor, Actor) and actor.scores != PROBABILITIES:
        contract.action.scores = actor.scores
    return rebuilt, contract


def _check_assignment(job: Job, tl: str, candidate: Candidate, rebuilt: RebuiltActor, settings: TL | None) -> None:
    """Raise InputError if an actor without a TL's name would be exported for several TLs."""
    signal = _signal_of(job).get(tl)
    if any(
        candidate.is_named_after(n) or candidate.is_in_folder_of(n, job.model_path) for n in filter(None, (tl, signal))
    ):
        return
    is_shared = job.city is not None and job.city.training.padding is not None
    is_shared = is_shared or source_of(candidate.format).serves_any_tl
    is_assigned = (
        is_shared or bool(settings and settings.scope) or tl in job.target_tls or contains_tl(rebuilt.scope, tl)
    )
    if len(job.tls) > 1 and not is_assigned:
        raise InputError(
            f"{tl}: neither {candidate.label} nor a scope in it has a TL's name; export it for one TL only (--tl "
            f"{tl}); assign it with scope in city.toml or --target-tls; or, if all TLs share this policy, padded by "
            "SuperSuit, set "
            'padding = "supersuit" under [training]'
        )


def _requested_kind(job: Job, candidate: Candidate, settings: TL | None) -> str:
    """Kind of the action from city.toml, --action or the file name; `continuous` by default."""
    if settings is not None:
        return dialects.find(settings.dialect, candidate.label).action_kind(settings)
    from_file_name = candidate.settings.get("action")
    if job.action and from_file_name and job.action != from_file_name:
        raise InputError(
            f"{candidate.label} has action {from_file_name}, but --action is {job.action}; fix the one that is wrong"
        )
    return job.action or from_file_name or "continuous"


def _action_kind(job: Job, tl: str, candidate: Candidate, settings: TL | None, stored: str | None) -> str:
    """The action's kind. `stored`: the kind in the checkpoint, if it has one. Raises InputError if settings contradict
    it."""
    requested = _requested_kind(job, candidate, settings)
    if stored is None or (stored == CATEGORICAL) == (requested == CATEGORICAL):
        return requested
    if settings is None and job.action is None and "action" not in candidate.settings:
        return stored
    where = f"{job.city.path}: [tl.{tl}]" if job.city and settings else "--action, or the file's name,"
    raise InputError(
        f"{tl}: the policy of {candidate.label} is {stored}, but {where} has action {requested}; fix the one that is "
        "wrong"
    )


def _unpad(tl: str, candidate: Candidate, rebuilt: RebuiltActor, contract: pb.PolicyContract) -> RebuiltActor:
    """The TL's part of a padded policy, which TLs of several sizes share. Raises InputError."""
    actor = rebuilt.actor
    if not isinstance(actor, Actor) or contract.action.kind != CATEGORICAL:
        raise InputError(
            f"{tl}: [training] padding is for categorical policies of linear layers; {candidate.label} holds another"
        )
    contract.observation.padded_size, contract.action.padded_size = actor.inputs, actor.outputs
    return replace(
        rebuilt, actor=padding.for_tl(tl, candidate.label, actor, contract.observation.size, contract.action.size)
    )


def _actor_request(
    job: Job, tl: str, candidate: Candidate, settings: TL | None, contract: pb.PolicyContract | None
) -> ActorRequest:
    hidden_sizes = candidate.hidden_sizes
    if settings and settings.hidden_sizes:
        hidden_sizes = tl_settings.agree_or_raise(
            job.city, tl, candidate, "hidden_sizes", settings.hidden_sizes, hidden_sizes
        )
    return ActorRequest(
        tl=tl,
        scope=job.scope or (settings.scope if settings else None),
        target_tls=job.target_tls,
        output_tensor=job.output_tensor or (settings.output_tensor if settings else None),
        hints=ArchitectureHints(
            architecture=job.actor or (settings.actor if settings else None),
            hidden_activation=job.hidden_activation or (settings.hidden_activation if settings else None),
            output_activation=settings.output_activation if settings else None,
            hidden_sizes=hidden_sizes,
            epsilon=settings.batch_norm_epsilon if settings else None,
            layer_order=job.layers or (settings.layers if settings else None),
        ),
        categorical=_requested_kind(job, candidate, settings) == CATEGORICAL,
        inputs=contract.observation.size if contract else None,
        outputs=contract.action.size if contract else None,
        contract=contract,
    )


def _check_sizes(tl: str, candidate: Candidate, actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
    """Raise InputError unless the actor's sizes are the contract's."""
    if actor.inputs != contract.observation.size:
        kind = f"{contract.observation.dialect} {contract.observation.state}".strip()
        raise InputError(
            f"{tl}: the actor of {candidate.label} has {actor.inputs} inputs, but the network's lanes give "
            f"{contract.observation.size} ({kind} on {len(lanes(contract))} lanes: {', '.join(lanes(contract))}); "
            "use the SUMO network that the policy was trained on, or another "
            f"checkpoint{_size_advice(actor.inputs, contract)}"
        )
    if actor.outputs != contract.action.size:
        raise InputError(
            f"{tl}: the actor of {candidate.label} has {actor.outputs} outputs, but action {contract.action.kind} "
            f"of signals {', '.join(contract.signal_ids)} takes {contract.action.size}; "
            "use the signals of training, or another checkpoint"
        )


def _size_advice(inputs: int, contract: pb.PolicyContract) -> str:
    """Other possible causes of an actor whose inputs do not fit its TL."""
    advice = ""
    if contract.action.kind == CATEGORICAL:
        advice += "; another observation function is a dialect of its own (docs/reference/dialects.md)"
    if inputs > contract.observation.size:
        advice += "; if TLs of several sizes share this policy, padded by SuperSuit, "
        advice += 'set padding = "supersuit" under [training]'
    return advice


def _notes(rebuilt: RebuiltActor, contract: pb.PolicyContract) -> list[str]:
    """Remarks of the summary, such as `left unread: critic 6, optimizer 12`."""
    notes = []
    if contract.missing:
        notes.append(f"contract incomplete: {', '.join(contract.missing)}")
    if rebuilt.actor.unread:
        counts = Counter(scopes.unread_reason(name, rebuilt.scope) for name in rebuilt.actor.unread)
        notes.append(f"left unread: {', '.join(f'{reason} {count}' for reason, count in sorted(counts.items()))}")
    if rebuilt.note:
        notes.append(rebuilt.note)
    return notes
