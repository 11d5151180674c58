"""One TL's export, from its checkpoint to its published version."""

import datetime
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from city.config import TL
from city.errors import InputError
from city.names import contains_tl
from city.version import VERSION
from export import contract as contracts
from export import locate
from export.actors import PROBABILITIES, Actor, padding
from export.actors.architectures import ArchitectureHints
from export.checkpoints import scopes, source_of
from export.checkpoints.source import ActorRequest
from export.config import Job
from export.graphs.graph_actor import GraphActor
from export.locate import Candidate
from export.rebuild import RebuiltActor, rebuild
from export.saved_model import manifest, publish, verify, warmup, write
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL, lanes
from signals import dialects

MAX_MODEL_NUMBER = 1 << 62
"""Model numbers are below this: TensorFlow Serving's versions are int64, and a fleet counts on from the newest."""
NUMPY_REFERENCE = "NumPy float64 evaluation of the checkpoint's variables"


def export(job: Job, tl: str) -> str:
    """Locate, read, rebuild, write, verify and publish one TL; return a one-line summary.

    Raises InputError; ParityError or NotInferenceOnly if the written model fails its verification.
    """
    begin = time.perf_counter()
    known = [*job.tls, *job.target_tls, *(job.city.tls if job.city else ())]
    candidate = locate.choose_candidate(tl, job.candidates, job.model_path, job.model_number, known)
    number = candidate.number if candidate.number is not None else 1 if job.model_number is None else job.model_number
    if number >= MAX_MODEL_NUMBER:
        raise InputError(f"{tl}: {candidate.label} has model number {number}, but it must be below 2**62; rename it")
    settings = contracts.settings_of(job.city, tl, candidate)
    if job.skip_existing and publish.exists(job.models_dir, tl, number):
        return f"{tl}: {job.models_dir / tl / str(number)} exists already; left as it is"
    publish.check_version_absent(job.models_dir, tl, number, job.overwrite)
    contract = contracts.build(job.city, settings, job.street) if job.city and settings and job.street else None
    rebuilt = rebuild(candidate, _wanted(job, tl, candidate, settings, contract))
    kind = _agreed_kind(job, tl, candidate, settings, rebuilt.action_kind)
    _check_assignment(job, tl, candidate, rebuilt, settings)
    if contract is None:
        contract = contracts.incomplete(tl, rebuilt.actor.inputs, kind, rebuilt.actor.outputs)
    rebuilt = _cut_to_tl(job, tl, candidate, rebuilt, contract)
    actor = rebuilt.actor
    _check_sizes(tl, candidate, actor, contract)
    if isinstance(actor, Actor) and actor.scores != PROBABILITIES:
        contract.action.scores = actor.scores
    sources = source_of(candidate.format).files(candidate.path)
    contract.origin.CopyFrom(_origin(candidate, sources, number))
    with publish.new_version(job.models_dir, tl, number, job.overwrite, job.keep) as draft:
        write.write(draft, actor, contract)
        warmup.write(draft, contract, number)
        parity = verify.compare_with_checkpoint(draft, actor, contract, rebuilt.reference_model)
        reference = rebuilt.reference_model.description if rebuilt.reference_model else NUMPY_REFERENCE
        results = manifest.Verification(verify.count_operations(draft), verify.PARITY_OBSERVATIONS, parity, reference)
        manifest.write(draft, rebuilt, contract, sources, results)
    return _line(job, tl, candidate, number, rebuilt, contract, parity.difference, time.perf_counter() - begin)


def _check_assignment(job: Job, tl: str, candidate: Candidate, rebuilt: RebuiltActor, settings: TL | None) -> None:
    """Raise InputError if an actor without a TL's name would be exported for several TLs."""
    if candidate.is_named_after(tl) or candidate.is_in_folder_of(tl, job.model_path):
        return
    is_shared = job.city is not None and job.city.training.padding is not None
    is_assigned = is_shared or bool(settings and settings.scope) or tl in job.target_tls or contains_tl(rebuilt.scope, tl)
    if len(job.tls) > 1 and not is_assigned:
        raise InputError(
            f"{tl}: neither {candidate.label} nor a scope in it has a TL's name; export it for one TL only (--tl {tl}), "
            "or assign it with scope in city.toml or --target-tls"
        )


def _kind(job: Job, candidate: Candidate, settings: TL | None) -> str:
    """Kind of the action from city.toml, --action or the file name; `continuous` by default."""
    if settings is not None:
        return dialects.find(settings.dialect, candidate.label).action_kind(settings)
    from_file_name = candidate.settings.get("action")
    if job.action and from_file_name and job.action != from_file_name:
        raise InputError(
            f"{candidate.label} has action {from_file_name}, but --action is {job.action}; fix the one that is wrong"
        )
    return job.action or from_file_name or "continuous"


def _agreed_kind(job: Job, tl: str, candidate: Candidate, settings: TL | None, found: str | None) -> str:
    """The action's kind, of which a checkpoint may tell whether it is categorical. Raises InputError if they contradict."""
    given = _kind(job, candidate, settings)
    if found is None or (found == CATEGORICAL) == (given == CATEGORICAL):
        return given
    if settings is None and job.action is None and "action" not in candidate.settings:
        return found
    where = f"{job.city.path}: [tl.{tl}]" if job.city and settings else "--action, or the file's name,"
    raise InputError(
        f"{tl}: the policy of {candidate.label} is {found}, but {where} has action {given}; fix the one that is wrong"
    )


def _cut_to_tl(job: Job, tl: str, candidate: Candidate, rebuilt: RebuiltActor, contract: pb.PolicyContract) -> RebuiltActor:
    """The TL's part of a policy that TLs of several sizes share, if [training] padding says so. Raises InputError."""
    actor = rebuilt.actor
    if job.city is None or job.city.training.padding is None or contract.missing:
        return rebuilt
    if not isinstance(actor, Actor) or contract.action.kind != CATEGORICAL:
        raise InputError(
            f"{tl}: [training] padding is for categorical policies of linear layers; {candidate.label} holds another"
        )
    contract.observation.padded_size, contract.action.padded_size = actor.inputs, actor.outputs
    return replace(rebuilt, actor=padding.for_tl(tl, candidate.label, actor, contract.observation.size, contract.action.size))


def _wanted(job: Job, tl: str, candidate: Candidate, settings: TL | None, contract: pb.PolicyContract | None) -> ActorRequest:
    sizes = candidate.sizes
    if settings and settings.hidden_sizes:
        sizes = contracts.agree_or_raise(job.city, tl, candidate, "hidden_sizes", settings.hidden_sizes, sizes)
    return ActorRequest(
        tl=tl,
        scope=job.scope or (settings.scope if settings else None),
        target_tls=job.target_tls,
        output_tensor=job.output_tensor or (settings.output_tensor if settings else None),
        hints=ArchitectureHints(
            architecture=job.actor or (settings.actor if settings else None),
            hidden_activation=job.hidden_activation or (settings.hidden_activation if settings else None),
            output_activation=settings.output_activation if settings else None,
            hidden_sizes=sizes,
            epsilon=settings.batch_norm_epsilon if settings else None,
            layer_order=job.layers or (settings.layers if settings else None),
        ),
        categorical=_kind(job, candidate, settings) == CATEGORICAL,
        inputs=contract.observation.size if contract else None,
        outputs=contract.action.size if contract else None,
    )


def _check_sizes(tl: str, candidate: Candidate, actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
    """Raise InputError unless the actor's sizes are the contract's."""
    if actor.inputs != contract.observation.size:
        kind = f"{contract.observation.dialect} {contract.observation.state}".strip()
        raise InputError(
            f"{tl}: the actor of {candidate.label} has {actor.inputs} inputs, but the network's lanes give "
            f"{contract.observation.size} ({kind} on {len(lanes(contract))} lanes: {', '.join(lanes(contract))}); "
            f"use the SUMO network that the policy was trained on, or another checkpoint{_size_advice(actor.inputs, contract)}"
        )
    if actor.outputs != contract.action.size:
        raise InputError(
            f"{tl}: the actor of {candidate.label} has {actor.outputs} outputs, but action {contract.action.kind} "
            f"of signals {', '.join(contract.signal_ids)} takes {contract.action.size}; "
            "use the signals of training, or another checkpoint"
        )


def _size_advice(actual: int, contract: pb.PolicyContract) -> str:
    """Two other causes of an actor that does not fit its TL."""
    dialect = "; another observation function is a dialect of its own, a file in signals/dialects"
    padding = "; if TLs of several sizes share this policy, padded by SuperSuit, set [training] padding = 'supersuit'"
    return (dialect if contract.action.kind == CATEGORICAL else "") + (padding if actual > contract.observation.size else "")


def _line(
    job: Job,
    tl: str,
    candidate: Candidate,
    number: int,
    rebuilt: RebuiltActor,
    contract: pb.PolicyContract,
    difference: float,
    took_s: float,
) -> str:
    shape = " -> ".join(map(str, rebuilt.actor.widths))
    against = " from the trainer's graph" if rebuilt.reference_model else ""
    notes = [f"contract incomplete: {', '.join(contract.missing)}"] if contract.missing else []
    notes += [f"left unread: {reasons}"] if (reasons := count_unread(rebuilt.actor.unread, rebuilt.scope)) else []
    notes += [rebuilt.note] if rebuilt.note else []
    return "; ".join(
        [
            f"{tl}: {candidate.label} -> {job.models_dir / tl / str(number)} "
            f"({rebuilt.actor.description}, {contract.action.kind} {shape}), "
            f"largest difference{against} {difference:.1e}, {took_s:.2f} s",
            *notes,
        ]
    )


def count_unread(names: Sequence[str], scope: str) -> str:
    """Number of unread variables by reason, such as `critic 6, optimizer 12`."""
    counts = Counter(scopes.unread_reason(name, scope) for name in names)
    return ", ".join(f"{why} {count}" for why, count in sorted(counts.items()))


def _origin(candidate: Candidate, sources: Sequence[Path], number: int) -> pb.Origin:
    digest = hashlib.sha256()
    for path in sources:
        digest.update(bytes.fromhex(manifest.sha256(path)))
    return pb.Origin(
        source_format=candidate.format,
        file_name=candidate.label,
        sha256=digest.hexdigest(),
        model_number=number,
        exporter_version=VERSION,
        tensorflow_version=tf.__version__,
        exported_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
