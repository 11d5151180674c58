"""From a checkpoint's files to an inference-only actor, and the reference model that it is compared with.

A graph takes precedence over weights alone: it has activations and wiring, and the
trainer's own actions can be compared. If an architecture gives the same actions as
the graph, its steps are exported (a fleet stacks them); else the graph's own
operations are. A graph of a file is run in a helper process (`graph_process`).
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from city.errors import InputError
from export.actors import Actor
from export.actors.architectures import Layers, build, find_equivalent_actor
from export.actors.steps import BatchNorm, Dense
from export.checkpoints import scopes, source_of, tensorflow_files
from export.checkpoints.checkpoint import Checkpoint, unread_variables
from export.checkpoints.layers import read_layers
from export.checkpoints.source import ActorRequest, KerasModel, MetaGraph, SavedFunction, Source
from export.checkpoints.tensorflow_files import meta_graph_path
from export.graphs import graph_process, keras_model, trained_function, training_graph, user_builder
from export.graphs.graph_actor import GraphActor, ReferenceModel, extract_actor
from export.graphs.output_tensor import NotInGraph
from export.graphs.trained_function import TrainedActor
from export.graphs.user_builder import Sizes
from export.locate import Candidate


@dataclass(frozen=True)
class RebuiltActor:
    """An actor, and the trainer's own model if the checkpoint contains it."""

    actor: Actor | GraphActor
    reference_model: ReferenceModel | None
    scope: str
    note: str = ""
    """How it was rebuilt, for the user."""
    action_kind: str | None = None
    """`categorical` or `continuous`, if the checkpoint defines it."""
    runs_in_helper: bool = False
    """Whether the actor is the checkpoint's own graph, which only the helper process may run."""


def rebuild(candidate: Candidate, request: ActorRequest) -> RebuiltActor:
    """Rebuild the actor of a checkpoint. Raises InputError if it holds none, or several without a clear choice."""
    source, path, label, spec = source_of(candidate.format), candidate.path, candidate.label, request.hints.architecture
    has_builder = spec is not None and ":" in spec
    graph = source.graph(path, request) if not has_builder or candidate.format == "saved-model" else None
    note = ""
    match graph:
        case MetaGraph():
            return graph_process.run(path, _from_meta_graph, path, label, request)
        case SavedFunction() if has_builder:
            raise InputError(f"{request.tl}: {label} contains its graph; leave --actor {spec} out")
        case SavedFunction():
            return graph_process.run(path, _from_saved_model, path, label, request)
        case KerasModel():
            source.refuse_scope(label, request)
            layers = _layers_or_none(lambda: source.layers(path, source.open(path), ""))
            rebuilt, note = graph_process.run(path, _from_keras_model, path, label, request, graph, layers)
            if rebuilt is not None:
                return rebuilt
            if spec is None:
                raise InputError(
                    f"{path}: {note}; pass --actor NAME to take only its weights, or --actor MODULE:FUNCTION"
                )
    if has_builder:
        assert spec is not None
        return _from_builder(path, request, source, spec)
    stored = source.actor(path, label, request)
    return RebuiltActor(stored.actor, None, stored.scope, note or stored.note, stored.action_kind)


def _from_meta_graph(path: Path, label: str, request: ActorRequest) -> RebuiltActor:
    """Rebuild the actor of a TF1 checkpoint with a `.meta` file; called in the helper process. Raises InputError."""
    checkpoint = tensorflow_files.open_checkpoint(path)
    scope = scopes.choose_scope(path, list(checkpoint.stored), request.tl, request.scope, request.target_tls)
    try:
        stored_layers = read_layers(checkpoint, scope)
        layers: Layers | None = stored_layers
        parts: list[Dense | BatchNorm] = [*stored_layers.dense, *stored_layers.norms]
        actor_variables = [name for part in parts for name in part.stored_as.values()]
    except InputError as error:
        # layers of an unknown kind: their graph may be exported without knowing them
        layers, unreadable = None, error
        prefix = f"{scope}/" if scope else ""
        actor_variables = [
            name
            for name in checkpoint.stored
            if name.startswith(prefix) and scopes.unread_reason(name, scope) == scopes.UNKNOWN_USE
        ]
    try:
        trained = training_graph.read(
            path, checkpoint, scope, actor_variables, request.output_tensor, request.categorical
        )
        reference = training_graph.reference_model(trained, request.categorical, request.output_tensor is not None)
    except InputError as error:
        is_named = request.hints.architecture is not None
        if request.output_tensor is not None or layers is None or not (is_named or isinstance(error, NotInGraph)):
            # without the graph, an operation beyond the layers would be dropped silently
            if layers is None and request.output_tensor is None:
                raise unreadable from None
            can_use_weights = layers is not None and request.output_tensor is None
            hint = f"{error}; or use only the weights with --actor NAME" if can_use_weights else str(error)
            raise InputError(hint) from None
        layers = read_layers(checkpoint, scope, strict=not is_named)
        actor = build(path, layers, request.hints, request.categorical)
        reason = str(error).removeprefix(f"{meta_graph_path(path)}: ")
        return RebuiltActor(
            actor, None, scope, f"weights read from the checkpoint; its training graph was not used: {reason}"
        )
    if layers is not None:
        steps = find_equivalent_actor(
            path, layers, request.hints, reference.evaluate, reference.inputs, request.categorical
        )
        if steps is not None:
            return RebuiltActor(steps, reference.recorded(request.observations), scope)
        _refuse_named_architecture(label, request, reference)
    graph_actor = extract_actor(trained, reference.inputs, reference.outputs, reference.output_kind)
    return RebuiltActor(
        _with_unread(graph_actor, checkpoint), reference.recorded(request.observations), scope, runs_in_helper=True
    )


def _from_saved_model(path: Path, label: str, request: ActorRequest) -> RebuiltActor:
    """Rebuild the actor of a SavedModel of training; called in the helper process. Raises InputError."""
    trained = trained_function.from_saved_model(path, request.output_tensor, request.categorical)
    return _from_function(path, label, request, trained, _layers_or_none(lambda: read_layers(trained.checkpoint, "")))


def _from_keras_model(
    path: Path, label: str, request: ActorRequest, graph: KerasModel, layers: Layers | None
) -> tuple[RebuiltActor | None, str]:
    """Rebuild the actor of a whole Keras model; called in the helper process.

    Returns (the actor, ""), or (None, the reason) if Keras cannot load it. Raises InputError if it is not an actor.
    """
    trained, reason = keras_model.load_actor(path, request, graph.config, graph.version)
    return (None, reason) if trained is None else (_from_function(path, label, request, trained, layers), "")


def _layers_or_none(read: Callable[[], Layers]) -> Layers | None:
    """The layers, or `None` if they are of an unknown kind; then the graph itself is exported."""
    try:
        return read()
    except InputError:
        return None


def _from_function(
    path: Path, label: str, request: ActorRequest, trained: TrainedActor, layers: Layers | None
) -> RebuiltActor:
    """Rebuild the actor of a TensorFlow function. `layers`: its layers, if they are of a known kind. Raises
    InputError."""
    reference, steps = trained.reference_model, None
    if layers is not None:
        # if no architecture fits the layers, the graph itself is exported
        with contextlib.suppress(InputError):
            steps = find_equivalent_actor(
                path, layers, request.hints, reference.evaluate, reference.inputs, request.categorical
            )
    if steps is not None:
        return RebuiltActor(steps, reference.recorded(request.observations), "")
    _refuse_named_architecture(label, request, reference)
    actor = extract_actor(trained.graph, reference.inputs, reference.outputs, reference.output_kind)
    return RebuiltActor(actor, reference.recorded(request.observations), "", runs_in_helper=True)


def _from_builder(path: Path, request: ActorRequest, source: Source, spec: str) -> RebuiltActor:
    """Build the actor with a user's function (`--actor MODULE:FUNCTION`). Raises InputError."""
    checkpoint = source.open(path)
    scope = ""
    if source.has_scopes:
        scope = scopes.choose_scope(path, list(checkpoint.stored), request.tl, request.scope, request.target_tls)
    sizes = Sizes(request.inputs, request.hints.hidden_sizes, request.outputs)
    if request.inputs is None or request.outputs is None:
        sizes = _complete_sizes(path, source, checkpoint, scope, sizes)
    trained = user_builder.build(spec, sizes, checkpoint, scope, request.categorical)
    reference = trained.reference_model
    actor = extract_actor(trained.graph, reference.inputs, reference.outputs, reference.output_kind)
    return RebuiltActor(_with_unread(actor, checkpoint), reference.recorded(request.observations), scope)


def _complete_sizes(path: Path, source: Source, checkpoint: Checkpoint, scope: str, sizes: Sizes) -> Sizes:
    """Fill in unknown sizes from the first and last dense layers, if these can be read."""
    try:
        layers = source.layers(path, checkpoint, scope)
    except InputError:
        return sizes  # layers of an unknown kind: the builder must know its sizes
    if not layers.dense:
        return sizes
    first, last = layers.dense[0].kernel.shape[0], layers.dense[-1].kernel.shape[1]
    return Sizes(sizes.inputs or int(first), sizes.hidden, sizes.outputs or int(last))


def _refuse_named_architecture(label: str, request: ActorRequest, reference: ReferenceModel) -> None:
    if request.hints.architecture is not None:
        raise InputError(
            f"{request.tl}: {label} is not of architecture {request.hints.architecture}: its layers give other actions "
            f"than {reference.description}; leave the architecture out to export that graph itself, or name another "
            "--output-tensor"
        )


def _with_unread(actor: GraphActor, checkpoint: Checkpoint) -> GraphActor:
    """The actor with the names of the variables that it does not use, if its weights have the checkpoint's names."""
    used = {weight.stored_as for weight in actor.weights}
    return replace(actor, unread=unread_variables(checkpoint, used)) if used <= set(checkpoint.stored) else actor
