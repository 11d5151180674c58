"""One TL's export, from its checkpoint to its published version."""

import datetime
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from city.config import TL
from city.errors import InputError
from city.names import contains_tl
from city.version import VERSION
from controller import dialects
from export import contract, locate
from export.actors import Actor
from export.actors.architectures import ArchitectureHints
from export.checkpoints import scopes, source_of
from export.checkpoints.source import Rebuilt, Wanted
from export.config import Job
from export.graphs.graph_actor import GraphActor
from export.locate import Candidate
from export.rebuild import rebuild
from export.saved_model import manifest, publish, verify, warmup, write
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL, lanes


def export(job: Job, tl: str) -> str:
    """Locate, read, rebuild, write, prove and publish one TL; a line that says what was done.

    Raises InputError, or ParityError where the written model is not the checkpoint's actor.
    """
    begin = time.perf_counter()
    known = [*job.tls, *job.target_tls, *(job.city.tls if job.city else ())]
    candidate = locate.choose(tl, job.found, job.model_path, job.model_number, known)
    number = candidate.number if candidate.number is not None else 1 if job.model_number is None else job.model_number
    if number >= MAX_MODEL_NUMBER:
        raise InputError(f"{tl}: {candidate.label} has number {number}, more than a version can be")
    settings = contract.settings_of(job.city, tl, candidate)
    publish.check_free(job.models_dir, tl, number, job.overwrite)
    policy = contract.build(job.city, settings, job.street) if job.city and settings and job.street else None
    rebuilt = rebuild(candidate, _wanted(job, tl, candidate, settings, policy))
    actor = rebuilt.actor
    _check_whose(job, tl, candidate, rebuilt, settings)
    if policy is None:
        policy = contract.incomplete(tl, actor.inputs, _kind(job, candidate, settings), actor.outputs)
    _check_sizes(tl, candidate, actor, policy)
    sources = source_of(candidate.format).files(candidate.path)
    policy.origin.CopyFrom(_origin(candidate, sources, number))
    with publish.version(job.models_dir, tl, number, job.overwrite, job.keep) as draft:
        write.write(draft, actor, policy)
        warmup.write(draft, policy, number)
        difference = verify.prove(draft, actor, policy, rebuilt.reference_model)
        manifest.write(draft, rebuilt, policy, sources, verify.OBSERVATIONS, difference)
    return _line(job, tl, candidate, number, rebuilt, policy, difference, time.perf_counter() - begin)


MAX_MODEL_NUMBER = 1 << 62
"""Of model numbers; TensorFlow Serving's are 64 bits, and a fleet counts on from there."""


def _check_whose(job: Job, tl: str, candidate: Candidate, rebuilt: Rebuilt, settings: TL | None) -> None:
    """Raise InputError where one actor that carries nobody's name would be exported for several TLs."""
    if candidate.named(tl) or candidate.housed(tl, job.model_path):
        return
    said = bool(settings and settings.scope) or tl in job.target_tls or contains_tl(rebuilt.scope, tl)
    if len(job.tls) > 1 and not said:
        raise InputError(
            f"{tl}: {candidate.label} carries no TL's name, and nothing in it does; export it for one TL alone (--tl {tl}), "
            "or tell whose it is with scope in city.toml or --target-tls"
        )


def _kind(job: Job, candidate: Candidate, settings: TL | None) -> str:
    """Kind of the action, as city.toml, the flag or the file name tells it; else `continuous`."""
    if settings is not None:
        return dialects.find(settings.dialect, candidate.label).action_kind(settings)
    said = candidate.settings.get("action")
    if job.action and said and job.action != said:
        raise InputError(f"{candidate.label} says action {said}, but --action says {job.action}; mend the one that is wrong")
    return job.action or said or "continuous"


def _wanted(job: Job, tl: str, candidate: Candidate, settings: TL | None, policy: pb.PolicyContract | None) -> Wanted:
    sizes = candidate.sizes
    if settings and settings.hidden_sizes:
        sizes = contract.agree_or_raise(job.city, tl, candidate, "hidden_sizes", settings.hidden_sizes, sizes)
    return Wanted(
        tl=tl,
        scope=job.scope or (settings.scope if settings else None),
        target_tls=job.target_tls,
        output_tensor=job.output_tensor or (settings.output_tensor if settings else None),
        hints=ArchitectureHints(
            architecture=job.actor or (settings.actor if settings else None),
            hidden_activation=(settings.hidden_activation if settings else None) or "relu",
            output_activation=(settings.output_activation if settings else None) or "tanh",
            hidden_sizes=sizes,
            epsilon=settings.batch_norm_epsilon if settings else None,
            layer_order=job.layers or (settings.layers if settings else None),
        ),
        categorical=_kind(job, candidate, settings) == CATEGORICAL,
        inputs=policy.observation.size if policy else None,
        outputs=policy.action.size if policy else None,
    )


def _check_sizes(tl: str, candidate: Candidate, actor: Actor | GraphActor, policy: pb.PolicyContract) -> None:
    """Raise InputError unless the actor takes and gives what the street has."""
    if actor.inputs != policy.observation.size:
        told = f"{policy.observation.dialect} {policy.observation.state}".strip()
        raise InputError(
            f"{tl}: the actor of {candidate.label} takes {actor.inputs} inputs, but the network's lanes give "
            f"{policy.observation.size} ({told} on {len(lanes(policy))} lanes: {', '.join(lanes(policy))})"
        )
    if actor.outputs != policy.action.size:
        raise InputError(
            f"{tl}: the actor of {candidate.label} gives {actor.outputs} values, but action {policy.action.kind} "
            f"of signals {', '.join(policy.signal_ids)} takes {policy.action.size}"
        )


def _line(
    job: Job,
    tl: str,
    candidate: Candidate,
    number: int,
    rebuilt: Rebuilt,
    policy: pb.PolicyContract,
    difference: float,
    took_s: float,
) -> str:
    shape = " -> ".join(map(str, rebuilt.actor.widths))
    against = " from the trainer's graph" if rebuilt.reference_model else ""
    notes = [f"contract lacks {', '.join(policy.missing)}"] if policy.missing else []
    notes += [f"left unread: {left}"] if (left := unread(rebuilt.actor.unread, rebuilt.scope)) else []
    notes += [rebuilt.note] if rebuilt.note else []
    return "; ".join(
        [
            f"{tl}: {candidate.label} -> {job.models_dir / tl / str(number)} "
            f"({rebuilt.actor.description}, {policy.action.kind} {shape}), largest difference{against} {difference:.1e}, {took_s:.2f} s",
            *notes,
        ]
    )


def unread(names: Sequence[str], scope: str) -> str:
    """What an export left unread, counted by reason."""
    counted = Counter(scopes.why_unread(name, scope) for name in names)
    return ", ".join(f"{why} {count}" for why, count in sorted(counted.items()))


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
