"""From a checkpoint's files to an inference-only actor, and the reference model that it is compared with.

A graph takes precedence over weights alone: it has activations and wiring, and the
trainer's own actions can be compared. If an architecture gives the same actions as
the graph, its steps are exported (a fleet stacks them); else the graph's own
operations are. A graph of a file or of a user's function is run in a helper process (`run_in_helper`).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from city.errors import InputError, errors_about
from export.actors.architectures import Layers, build, find_equivalent_actor
from export.checkpoints import scopes, source_of, tensorflow_files
from export.checkpoints.helper_process import run_in_helper
from export.checkpoints.layers import read_layers
from export.checkpoints.source import ActorRequest, KerasModel, RebuiltActor, Source
from export.checkpoints.tensorflow_files import meta_graph_path
from export.graphs import trained_function, training_graph, user_builder
from export.graphs.graph_actor import TrainedActor, extract_actor
from export.graphs.output_tensor import NotInGraph
from export.graphs.user_builder import Sizes
from export.locate import Candidate


def rebuild(candidate: Candidate, request: ActorRequest) -> RebuiltActor:
    """Rebuild the actor of a checkpoint. Raises InputError if it holds none, or several without a clear choice."""
    with errors_about(candidate.path):
        return _rebuild(source_of(candidate.format), candidate.path, request)


def _rebuild(source: Source, path: Path, request: ActorRequest) -> RebuiltActor:
    spec = request.hints.architecture
    has_builder = spec is not None and ":" in spec
    graph = source.graph(path, request) if not has_builder or source.format == "saved-model" else None
    note = ""
    match graph:
        case "meta graph":
            return run_in_helper(_from_meta_graph, path, request)
        case "saved function" if has_builder:
            raise InputError(f"contains its graph; leave --actor {spec} out")
        case "saved function":
            return run_in_helper(_from_saved_model, path, request)
        case KerasModel():
            source.refuse_scope(request)
            layers = _layers_or_none(lambda: source.layers(path, source.open(path), ""))
            rebuilt, note = run_in_helper(_from_keras_model, path, request, graph, layers)
            if rebuilt is not None:
                return rebuilt
            if spec is None:
                raise InputError(f"{note}; pass --actor NAME to take only its weights, or --actor MODULE:FUNCTION")
    if has_builder:
        return run_in_helper(_from_builder, path, request, source, tuple(sys.path))
    source.refuse_scope(request)
    if request.output_tensor is not None and not source.has_tensors:
        raise InputError("holds only weights, and --output-tensor needs a graph; leave it out")
    rebuilt = source.actor(path, request)
    return replace(rebuilt, note=note) if note else rebuilt


def _from_meta_graph(path: Path, request: ActorRequest) -> RebuiltActor:
    """Rebuild the actor of a TF1 checkpoint with a `.meta` file; called in the helper process. Raises InputError."""
    checkpoint = tensorflow_files.open_checkpoint(path)
    scope = request.scope_in(checkpoint)
    is_named = request.hints.architecture is not None
    layers, unreadable = None, None
    try:
        layers = read_layers(checkpoint, scope)
        actor_variables = layers.variables
    except InputError as error:
        # layers of an unknown kind: their graph may be exported without knowing them
        unreadable = error
        actor_variables = scopes.unknown_variables(checkpoint.stored, scope)
    can_use_weights = layers is not None and request.output_tensor is None
    try:
        with errors_about(meta_graph_path(path)):
            trained = training_graph.read(path, checkpoint, scope, actor_variables, request)
    except InputError as error:
        if unreadable is not None and request.output_tensor is None:
            raise unreadable from None
        if not can_use_weights or not (is_named or isinstance(error, NotInGraph)):
            # without the graph, an operation beyond the layers would be dropped silently
            if can_use_weights:
                error.args = (f"{error}; or use only the weights with --actor NAME",)
            raise
        layers = read_layers(checkpoint, scope, strict=not is_named)
        actor = request.scored(build(layers, request.hints, request.categorical))
        reason = str(error).removeprefix(f"{error.subject}: ")
        note = f"weights read from the checkpoint; its training graph was not used: {reason}"
        return RebuiltActor(actor, scope, note)
    return _from_graph(trained, layers, request, scope)


def _from_saved_model(path: Path, request: ActorRequest) -> RebuiltActor:
    """Rebuild the actor of a SavedModel of training; called in the helper process. Raises InputError."""
    trained = trained_function.from_saved_model(path, request)
    return _from_graph(trained, _layers_or_none(lambda: read_layers(trained.checkpoint, "")), request)


def _from_keras_model(
    path: Path, request: ActorRequest, graph: KerasModel, layers: Layers | None
) -> tuple[RebuiltActor | None, str]:
    """Rebuild the actor of a whole Keras model; called in the helper process.

    Returns (the actor, ""), or (None, the reason) if Keras cannot load it. Raises InputError if it is not an actor.
    """
    trained, reason = trained_function.from_keras_file(path, request, graph)
    return (None, reason) if trained is None else (_from_graph(trained, layers, request), "")


def _layers_or_none(read: Callable[[], Layers]) -> Layers | None:
    """The layers, or `None` if they are of an unknown kind; then the graph itself is exported."""
    try:
        return read()
    except InputError:
        return None


def _from_graph(trained: TrainedActor, layers: Layers | None, request: ActorRequest, scope: str = "") -> RebuiltActor:
    """The steps that act like a trainer's graph, else the graph itself.

    `layers`: the checkpoint's layers, if they are of a known kind. Raises InputError.
    """
    reference = trained.reference_model
    recorded = reference.recorded(request.observations)
    if layers is not None:
        hints = replace(request.hints, scores=reference.scores)
        steps = find_equivalent_actor(layers, hints, reference.evaluate, reference.inputs, request.categorical)
        if steps is not None:
            return RebuiltActor(steps, scope, reference_model=recorded)
    if request.hints.architecture is not None:
        raise InputError(
            f"is not of architecture {request.hints.architecture}: its layers give other actions than "
            f"{reference.description}; leave the architecture out to export that graph itself, or name another "
            "--output-tensor"
        )
    return RebuiltActor(extract_actor(trained), scope, reference_model=recorded, runs_in_helper=True)


def _from_builder(path: Path, request: ActorRequest, source: Source, search_path: Sequence[str]) -> RebuiltActor:
    """Build the actor with a user's function (`--actor MODULE:FUNCTION`); called in the helper process.

    `search_path`: of the exporter's modules, in which the user's is too. Raises InputError.
    """
    sys.path.extend(folder for folder in search_path if folder not in sys.path)
    checkpoint = source.open(path)
    scope = request.scope_in(checkpoint) if source.has_scopes else ""
    sizes = Sizes(request.inputs, request.hints.hidden_sizes, request.outputs)
    if request.inputs is None or request.outputs is None:
        layers = _layers_or_none(lambda: source.layers(path, checkpoint, scope))
        if layers is not None and layers.dense:  # otherwise the builder must know its sizes
            first, last = layers.dense[0].kernel.shape[0], layers.dense[-1].kernel.shape[1]
            sizes = Sizes(sizes.inputs or int(first), sizes.hidden, sizes.outputs or int(last))
    with errors_about(f"--actor {request.hints.architecture}"):
        trained = user_builder.UserActor(path, checkpoint, scope, sizes, request).build()
    recorded = trained.reference_model.recorded(request.observations)
    return RebuiltActor(extract_actor(trained), scope, reference_model=recorded, runs_in_helper=True)
