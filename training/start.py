"""Policies that a training continues: of a checkpoint that greenserve export reads, a published model, or the policy
that greenserve ships."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from city import model_folders, network
from city.config import City
from city.errors import InputError, errors_about
from export import config, pretrained
from export.actors import Actor, GraphActor
from export.actors.phase_competition import SHAPES, PhaseCompetition
from export.actors.steps import Activation, Dense
from export.checkpoints import phase_networks
from export.checkpoints.trained_saved_model import MANIFEST
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL, Q_VALUES
from signals import contract as contracts
from signals.dialects import street as street_dialect
from training.actor_critics import ACTIVATIONS
from training.phase_competition.networks import load_policy
from training.settings import Layers, TrainingStart, sizes_of
from training.transitions import Float32s

STREET = street_dialect.DIALECT.name
PRETRAINED = "pretrained"
"""Stands for the policy that greenserve ships."""


def load(given: str, city: City, tls: Sequence[str]) -> tuple[TrainingStart, str]:
    """(the start of TLs, a remark on their critics). Raises InputError.

    `given`: a checkpoint, a folder of checkpoints or of published models, a published model, or `pretrained`.
    """
    path = pretrained.policy() if given == PRETRAINED else Path(given)
    if not path.exists() and not path.with_name(f"{path.name}.index").is_file():
        raise InputError(f"--start-from {path}: no such file or folder; pass a checkpoint, a model, or {PRETRAINED}")
    street, layers, shared = network.of_city(city), {}, {}
    activations: dict[str, str] = {}
    for tl in tls:
        contract = contracts.build(city, city.tls[tl], street)
        actor, file = _actor(path, city, contract)
        with errors_about(f"--start-from {file}"):
            _check_sizes(actor, contract)
            match actor:
                case Actor(steps=(PhaseCompetition() as step,)):
                    is_stored = file.suffix == phase_networks.SUFFIX
                    arrays = load_policy(file) if is_stored else [step.network[name] for name in SHAPES]
                    shared[tl] = arrays
                case Actor() if contract.observation.dialect != STREET:
                    layers[tl], activations[tl] = _layers(actor, contract)
                case Actor():
                    raise InputError(
                        f"is no network of dialect {STREET}, of which {tl} is; pass a .policy file or {PRETRAINED}"
                    )
                case _:
                    raise InputError(_refusal(tl, "is a graph of unknown layers"))
    first = next(iter(shared.values()), [])
    if other := [tl for tl, arrays in shared.items() if not _is_equal(arrays, first)]:
        raise InputError(
            f"--start-from {path}: {next(iter(shared))} and {other[0]} have different policies there, and TLs of "
            "dialect street share one; pass the file of one"
        )
    kinds = {tl: (sizes_of(own), activations[tl]) for tl, own in layers.items()}
    if len(set(kinds.values())) > 1:
        (a, b) = list(dict((kind, tl) for tl, kind in kinds.items()).values())[:2]
        raise InputError(
            f"--start-from {path}: {a} has hidden layers {_text(kinds[a])}, {b} {_text(kinds[b])}, and TLs that are "
            "trained together have the same; train them apart (--target-tl)"
        )
    has_critic = len(first) > len(SHAPES) and not layers
    note = "" if has_critic else f"--start-from {path}: holds no critic that can be continued; critics start anew"
    return TrainingStart(layers, next(iter(activations.values()), "relu"), first), note


def _actor(path: Path, city: City, contract: pb.PolicyContract) -> tuple[Actor | GraphActor, Path]:
    """(a TL's actor at a path, the file or version that holds it). Raises InputError."""
    # not at the top: they load TensorFlow, which takes seconds
    from export.saved_model import read
    from export.single_model import TlExport

    tl = contract.tl
    versions = {0: path} if (path / MANIFEST).is_file() else model_folders.versions(path / tl)
    if versions and (versions[max(versions)] / MANIFEST).is_file():
        version = versions[max(versions)]
        published, actor = read.read(version)
        with errors_about(f"--start-from {version}"):
            found, own = _kind(published), _kind(contract)
            if published.members or (published.observation.dialect and found != own):
                raise InputError(f"is a model of {found or 'several TLs'}, and {tl} is {own}; pass one of the same")
            if published.action.scores == Q_VALUES and isinstance(actor, Actor):
                actor = replace(actor, scores=Q_VALUES)
        return actor, version
    job = config.city_job(city, [tl], path, city.serving.models_dir, None, "--start-from")
    if path.is_dir():
        chosen = TlExport.of(job, tl)
    else:  # a file that is named is for all TLs, whatever its name
        (candidate,) = job.search.candidates
        chosen = TlExport(job, tl, candidate, candidate.number or 0, config.settings_of(city, tl, candidate))
    return chosen.rebuild()[0].actor, chosen.candidate.path


def _kind(contract: pb.PolicyContract) -> str:
    observation = contract.observation
    return " ".join(filter(None, (observation.dialect, observation.state, contract.action.kind)))


def _check_sizes(actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
    sizes, own = (actor.inputs, actor.outputs), (contract.observation.size, contract.action.size)
    if sizes != own:
        raise InputError(
            f"has {sizes[0]} inputs and {sizes[1]} outputs, and {contract.tl} has an observation of {own[0]} and "
            f"{own[1]} actions; pass a policy of the same sizes"
        )


def _layers(actor: Actor, contract: pb.PolicyContract) -> tuple[Layers, str]:
    """(layers, activation of the hidden ones) of an actor that `training.actor_critics` computes. Raises InputError."""
    is_categorical = contract.action.kind == CATEGORICAL
    steps = list(actor.steps)
    if actor.scores == Q_VALUES and is_categorical:
        raise InputError(
            f'gives Q-values, and PPO continues logits; if they are logits, set scores = "probabilities" in '
            f"[tl.{contract.tl}]"
        )
    if not is_categorical and (not steps or steps.pop() != Activation("tanh")):
        raise InputError(_refusal(contract.tl, f"is {actor.description}, whose output is not a tanh"))
    hidden = steps[1::2]
    kinds = {step.kind if isinstance(step, Activation) else "" for step in hidden} or {"relu"}
    is_mlp = len(steps) % 2 == 1 and all(isinstance(step, Dense) for step in steps[::2])
    if not is_mlp or len(kinds) > 1 or not kinds <= set(ACTIVATIONS):
        names = ", ".join(dict.fromkeys(step.note or step.key for step in actor.steps))
        raise InputError(_refusal(contract.tl, f"is {actor.description} ({names})"))
    layers = []
    for step in actor.dense:
        bias = np.zeros(step.kernel.shape[1], np.float32) if step.bias is None else step.bias
        layers.append((step.kernel.astype(np.float32), bias.astype(np.float32)))
    return layers, kinds.pop()


def _refusal(tl: str, reason: str) -> str:
    return (
        f"cannot be continued for {tl}: its actor {reason}; a training continues dense layers with "
        f"{' or '.join(ACTIVATIONS)} between them, without a normalisation before them"
    )


def _is_equal(arrays: Sequence[Float32s], others: Sequence[Float32s]) -> bool:
    return len(arrays) == len(others) and all(map(np.array_equal, arrays, others))


def _text(kind: tuple[tuple[int, ...], str]) -> str:
    sizes, activation = kind
    return f"{','.join(map(str, sizes)) or 'none'} ({activation})"
