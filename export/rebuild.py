"""From a checkpoint's files to an inference-only actor, and the reference model that it is compared with.

A graph takes precedence over weights alone: it has activations and wiring, and the
trainer's own actions can be compared. If an architecture gives the same actions as
the graph, its steps are exported (a fleet stacks them); else the graph's own
operations are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from city.errors import InputError
from export.actors import Actor
from export.actors.architectures import Layers, build, find_equivalent_actor
from export.actors.steps import BatchNorm, Dense
from export.checkpoints import scopes, source_of
from export.checkpoints.checkpoint import Checkpoint, unread_variables
from export.checkpoints.layers import read_layers
from export.checkpoints.source import ActorRequest, KerasModel, MetaGraph, SavedFunction, Source
from export.checkpoints.tensorflow_files import meta_graph_path
from export.graphs import keras_model, trained_function, training_graph, user_builder
from export.graphs.graph_actor import GraphActor, ReferenceModel, extract_actor
from export.graphs.output_tensor import NotInGraph
from export.graphs.trained_function import TrainedActor
from export.graphs.user_builder import Sizes
from export.locate import Candidate


@dataclass(frozen=True)
class RebuiltActor:
    """An actor, and the trainer's own model if there is one."""

    actor: Actor | GraphActor
    reference_model: ReferenceModel | None
    scope: str
    note: str = ""
    """For the user: how it was rebuilt."""
    action_kind: str | None = None
    """`categorical` or `continuous`, if the checkpoint says so; None: it is as requested."""


def rebuild(candidate: Candidate, wanted: ActorRequest) -> RebuiltActor:
    """The actor of a checkpoint. Raises InputError if it holds none, or several without a clear choice."""
    source, path, label, spec = source_of(candidate.format), candidate.path, candidate.label, wanted.hints.architecture
    is_built = spec is not None and ":" in spec
    graph = source.graph(path, wanted) if not is_built or candidate.format == "saved-model" else None
    note = ""
    match graph:
        case MetaGraph():
            return _from_meta_graph(path, label, wanted, source.open(path))
        case SavedFunction() if is_built:
            raise InputError(f"{wanted.tl}: {label} comes with its graph; leave --actor {spec} out")
        case SavedFunction():
            trained = trained_function.of_saved_model(path, wanted.output_tensor, wanted.categorical)
            return _from_function(path, label, wanted, trained, lambda: read_layers(trained.checkpoint, ""))
        case KerasModel(config, version):
            source.refuse_scope(label, wanted)
            loaded, note = keras_model.load_actor(path, wanted, config, version)
            if loaded is not None:
                return _from_function(path, label, wanted, loaded, lambda: source.layers(path, source.open(path), ""))
            if spec is None:
                raise InputError(f"{path}: {note}; pass --actor NAME to take only its weights, or --actor MODULE:FUNCTION")
    if is_built:
        assert spec is not None
        return _from_builder(path, wanted, source, spec)
    stored = source.actor(path, label, wanted)
    return RebuiltActor(stored.actor, None, stored.scope, note or stored.note, stored.action_kind)


def _from_meta_graph(path: Path, label: str, wanted: ActorRequest, checkpoint: Checkpoint) -> RebuiltActor:
    """The actor of a TF1 checkpoint with its `.meta` file. Raises InputError."""
    scope = scopes.choose_scope(path, list(checkpoint.stored), wanted.tl, wanted.scope, wanted.target_tls)
    try:
        readable = read_layers(checkpoint, scope)
        layers: Layers | None = readable
        parts: list[Dense | BatchNorm] = [*readable.dense, *readable.norms]
        kept = [stored for layer in parts for stored in layer.stored_as.values()]
    except InputError as error:
        # perhaps layers of an unknown kind: their graph can be exported without knowing them
        layers, unreadable = None, error
        prefix = f"{scope}/" if scope else ""
        inside = [name for name in checkpoint.stored if name.startswith(prefix)]
        kept = [name for name in inside if scopes.unread_reason(name, scope) == scopes.UNKNOWN_USE]
    try:
        trained = training_graph.read(path, checkpoint, scope, kept, wanted.output_tensor, wanted.categorical)
        reference = training_graph.reference_model(trained, wanted.categorical, wanted.output_tensor is not None)
    except InputError as error:
        is_named = wanted.hints.architecture is not None
        if wanted.output_tensor is not None or layers is None or not (is_named or isinstance(error, NotInGraph)):
            # what the graph may contain beyond the weights must not be dropped silently
            if layers is None and wanted.output_tensor is None:
                raise unreadable from None
            can_use_weights = layers is not None and wanted.output_tensor is None
            hint = f"{error}; or use only the weights with --actor NAME" if can_use_weights else str(error)
            raise InputError(hint) from None
        layers = read_layers(checkpoint, scope, whole=not is_named)
        actor = build(path, layers, wanted.hints, wanted.categorical)
        reason = str(error).removeprefix(f"{meta_graph_path(path)}: ")
        return RebuiltActor(actor, None, scope, f"weights read from the checkpoint; its training graph was not used: {reason}")
    if layers is not None:
        steps = find_equivalent_actor(path, layers, wanted.hints, reference.evaluate, reference.inputs, wanted.categorical)
        if steps is not None:
            return RebuiltActor(steps, reference, scope)
        _refuse_named_architecture(label, wanted, reference)
    graph_actor = extract_actor(trained, reference.inputs, reference.outputs, reference.output_kind)
    return RebuiltActor(_with_unread(graph_actor, checkpoint), reference, scope)


def _from_function(
    path: Path, label: str, wanted: ActorRequest, trained: TrainedActor, read: Callable[[], Layers]
) -> RebuiltActor:
    """The actor of a TensorFlow function; `read`: returns its layers. Raises InputError."""
    reference = trained.reference_model
    try:
        steps = find_equivalent_actor(path, read(), wanted.hints, reference.evaluate, reference.inputs, wanted.categorical)
    except InputError:
        steps = None  # layers of another kind: the graph itself is exported
    if steps is not None:
        return RebuiltActor(steps, reference, "")
    _refuse_named_architecture(label, wanted, reference)
    return RebuiltActor(extract_actor(trained.graph, reference.inputs, reference.outputs, reference.output_kind), reference, "")


def _from_builder(path: Path, wanted: ActorRequest, source: Source, spec: str) -> RebuiltActor:
    """The actor that a user's function builds from a checkpoint of any source. Raises InputError."""
    checkpoint = source.open(path)
    scope = ""
    if source.has_scopes:
        scope = scopes.choose_scope(path, list(checkpoint.stored), wanted.tl, wanted.scope, wanted.target_tls)
    sizes = Sizes(wanted.inputs, wanted.hints.hidden_sizes, wanted.outputs)
    if wanted.inputs is None or wanted.outputs is None:
        sizes = _complete_sizes(path, source, checkpoint, scope, sizes)
    trained = user_builder.build(spec, sizes, checkpoint, scope, wanted.categorical)
    reference = trained.reference_model
    actor = extract_actor(trained.graph, reference.inputs, reference.outputs, reference.output_kind)
    return RebuiltActor(_with_unread(actor, checkpoint), reference, scope)


def _complete_sizes(path: Path, source: Source, checkpoint: Checkpoint, scope: str, sizes: Sizes) -> Sizes:
    """Sizes without a street: those of the first and last dense layers, if they can be read."""
    try:
        layers = source.layers(path, checkpoint, scope)
    except InputError:
        return sizes  # layers of another kind: the builder must know its sizes
    if not layers.dense:
        return sizes
    first, last = layers.dense[0].kernel.shape[0], layers.dense[-1].kernel.shape[1]
    return Sizes(sizes.inputs or int(first), sizes.hidden, sizes.outputs or int(last))


def _refuse_named_architecture(label: str, wanted: ActorRequest, reference: ReferenceModel) -> None:
    if wanted.hints.architecture is not None:
        raise InputError(
            f"{wanted.tl}: {label} is not of architecture {wanted.hints.architecture}: its layers do not act like "
            f"{reference.description}; leave the architecture out to export that graph itself, or name another --output-tensor"
        )


def _with_unread(actor: GraphActor, checkpoint: Checkpoint) -> GraphActor:
    taken = {weight.stored_as for weight in actor.weights}
    return replace(actor, unread=unread_variables(checkpoint, taken)) if taken <= set(checkpoint.stored) else actor
