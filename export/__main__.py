"""`python -m export`: export TLs one by one; one that fails does not stop the others."""

import datetime
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

# TensorFlow's own start-up messages would bury ours
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from city.errors import InputError
from export import __version__, contract, locate
from export.actors import Actor
from export.config import Job, parse
from export.locate import Candidate
from protos import policy_pb2 as pb
from serving.contract import lanes


def main(argv: list[str] | None = None) -> int:
    # an end from outside must clean up like Ctrl-C; only a main thread may say so
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        words = sys.argv[1:] if argv is None else argv
        if words[:1] == ["describe"]:
            from export import describe

            return describe.main(words[1:])
        if words[:1] == ["inspect"]:
            from export import inspect_checkpoint

            return inspect_checkpoint.main(words[1:])
        return run(parse(words))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted; versions published before are whole, nothing else was left", file=sys.stderr)
        return 1


def run(job: Job) -> int:
    """Export every TL of the job; the exit code."""
    from export import quiet
    from export.certificate import NotInference
    from export.verify import NotProved

    quiet.first_session()
    wrong, unproved = [], []
    for tl in job.tls:
        try:
            print(export_one(job, tl), flush=True)
        except InputError as error:
            wrong.append(tl)
            print(f"error: {error}", file=sys.stderr)
        except (NotProved, NotInference) as error:
            unproved.append(tl)
            print(f"error: {tl}: not published: {error}", file=sys.stderr)
    if (wrong or unproved) and len(job.tls) > 1:
        failed = [tl for tl in job.tls if tl in wrong or tl in unproved]
        print(f"{len(job.tls) - len(failed)} of {len(job.tls)} TLs exported; not: {', '.join(failed)}", file=sys.stderr)
    return 2 if wrong else 1 if unproved else 0


def export_one(job: Job, tl: str) -> str:
    """Locate, read, rebuild, write, prove and publish one TL; a line that says what was done.

    Raises InputError, or NotProved where the written model is not the checkpoint's actor.
    """
    from export import certificate, publish, saved_model, verify, warmup

    begin = time.perf_counter()
    settings = job.city.tls.get(tl) if job.city else None
    scope = job.scope or (settings.scope if settings else None)
    candidate = locate.choose(tl, job.model_path, job.model_number, scope)
    number = candidate.number if candidate.number is not None else (job.model_number or 1)
    actor = _actor(job, tl, candidate, scope)
    files = _files(candidate)
    policy = _contract(job, tl, candidate, actor)
    policy.origin.CopyFrom(_origin(candidate, files, number))
    with publish.version(job.models_dir, tl, number, job.overwrite) as draft:
        saved_model.write(draft, actor, policy)
        warmup.write(draft, policy, number)
        difference = verify.prove(draft, actor, policy)
        certificate.write(draft, actor, policy, files, verify.OBSERVATIONS, difference)
    shape = " -> ".join(str(n) for n in [actor.inputs, *(layer.kernel.shape[1] for layer in actor.dense)])
    incomplete = f"; contract lacks {', '.join(policy.missing)}" if policy.missing else ""
    return (
        f"{tl}: {candidate.label} -> {job.models_dir / tl / str(number)} ({actor.told}, {policy.action.kind} {shape}), "
        f"largest difference {difference:.1e}, {time.perf_counter() - begin:.2f} s{incomplete}"
    )


def _actor(job: Job, tl: str, candidate: Candidate, scope: str | None) -> Actor:
    from export.actors.architectures import Shape, build

    settings = job.city.tls.get(tl) if job.city else None
    if candidate.format == "keras-h5":
        if scope is not None:
            raise InputError(f"{tl}: scope {scope} is for checkpoints of several agents; {candidate.label} holds one actor")
        from export.checkpoints import keras_h5

        layers = keras_h5.read(candidate.path)
    else:
        from export.checkpoints import tensorflow_files

        layers = tensorflow_files.read(candidate.path, tl, scope)
    shape = Shape(
        architecture=job.actor or (settings.actor if settings else None),
        hidden_activation=(settings.hidden_activation if settings else None) or "relu",
        output_activation=(settings.output_activation if settings else None) or "tanh",
        sizes=candidate.sizes,
        order=settings.layers if settings else None,
    )
    categorical = settings is not None and settings.dialect == "sumo-rl"
    return build(candidate.path, layers, shape, categorical)


def _files(candidate: Candidate) -> list[Path]:
    if candidate.format == "keras-h5":
        return [candidate.path]
    from export.checkpoints import tensorflow_files

    return tensorflow_files.files(candidate.path)


def _contract(job: Job, tl: str, candidate: Candidate, actor: Actor) -> pb.Policy:
    settings = job.city.tls.get(tl) if job.city else None
    if settings is None or job.street is None or job.city is None:
        kind = candidate.said("action") or ("categorical" if settings and settings.dialect == "sumo-rl" else "continuous")
        return contract.incomplete(tl, actor.inputs, kind, actor.outputs)
    for key, mine in (("state", settings.state), ("action", settings.action)):
        said = candidate.said(key)
        if said is not None and mine is not None and said != mine:
            raise InputError(
                f"{tl}: {candidate.label} says {key} {said}, but {job.city.path} says {mine}; mend the one that is wrong"
            )
    policy = contract.build(job.city, settings, job.street)
    if actor.inputs != policy.observation.size:
        listed = ", ".join(lanes(policy))
        raise InputError(
            f"{tl}: the actor of {candidate.label} takes {actor.inputs} inputs, but the network's lanes give "
            f"{policy.observation.size} ({settings.dialect} {settings.state or ''} on {len(lanes(policy))} lanes: {listed})"
        )
    if actor.outputs != policy.action.size:
        raise InputError(
            f"{tl}: the actor of {candidate.label} gives {actor.outputs} values, but action {policy.action.kind} "
            f"of signals {', '.join(settings.signals)} takes {policy.action.size}"
        )
    return policy


def _origin(candidate: Candidate, files: list[Path], number: int) -> pb.Origin:
    import tensorflow as tf

    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return pb.Origin(
        source_format=candidate.format,
        file_name=candidate.label,
        sha256=digest.hexdigest(),
        model_number=number,
        exporter_version=__version__,
        tensorflow_version=tf.__version__,
        exported_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


if __name__ == "__main__":
    sys.exit(main())
