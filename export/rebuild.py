"""From a checkpoint's files to an inference-only actor, and the original that it is proved against.

What comes with its graph is believed before what only has weights: the graph
tells activations and wiring, and the trainer's own answers can be compared.
Where an architecture gives the same answers as that graph, its steps are
exported (a fleet stacks them); else the graph's own operations are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from city.errors import InputError
from export.actors import Actor
from export.actors.architectures import Layers, Shape, build, matching
from export.actors.graph_actor import GraphActor, Original, cut
from export.checkpoints import (
    Checkpoint,
    keras_h5,
    keras_model,
    left,
    numpy_archive,
    scopes,
    tensorflow_files,
    trained_function,
    training_graph,
    user_builder,
)  # fmt: skip
from export.checkpoints import read as read_layers
from export.checkpoints.output_tensor import NotInGraph
from export.checkpoints.trained_function import Trained
from export.checkpoints.user_builder import Sizes
from export.locate import KERAS, NPZ, SAVED_MODEL, Candidate


@dataclass(frozen=True)
class Wanted:
    """What is asked of a checkpoint."""

    tl: str
    scope: str | None
    target_tls: Sequence[str]
    """TLs in the order in which training had them."""
    output_tensor: str | None
    shape: Shape
    categorical: bool
    inputs: int | None
    """Size of the observation, where a street tells it."""
    outputs: int | None


@dataclass(frozen=True)
class Rebuilt:
    """An actor, and where there is one, its trainer's own."""

    actor: Actor | GraphActor
    original: Original | None
    scope: str
    note: str = ""
    """What a user should know of how it was rebuilt."""


def open_checkpoint(candidate: Candidate) -> Checkpoint:
    """The variables of a checkpoint that is not a SavedModel. Raises InputError."""
    reader = {KERAS: keras_h5, NPZ: numpy_archive}.get(candidate.format, tensorflow_files)
    checkpoint: Checkpoint = reader.open_checkpoint(candidate.path)  # type: ignore[attr-defined]
    return checkpoint


def files(candidate: Candidate) -> list[Path]:
    """Every file that an export of a checkpoint reads."""
    if candidate.format == SAVED_MODEL:
        return sorted(path for path in candidate.path.rglob("*") if path.is_file())
    if candidate.format in (KERAS, NPZ):
        return [candidate.path]
    meta = training_graph.path(candidate.path)
    return [*tensorflow_files.files(candidate.path), *([meta] if meta.is_file() else [])]


def rebuild(candidate: Candidate, wanted: Wanted) -> Rebuilt:
    """The actor of a checkpoint. Raises InputError where it holds none, or does not tell which."""
    named = wanted.shape.architecture
    if candidate.format == SAVED_MODEL:
        return _of_saved_model(candidate, wanted)
    if candidate.format == KERAS and wanted.scope is not None:
        raise InputError(
            f"{wanted.tl}: scope {wanted.scope} is for checkpoints of several agents; {candidate.label} holds one actor"
        )
    if named is not None and ":" in named:
        return _of_builder(candidate, wanted, named)
    if candidate.format == KERAS:
        return _of_keras(candidate, wanted)
    checkpoint = open_checkpoint(candidate)
    scope = scopes.choose(candidate.path, list(checkpoint.stored), wanted.tl, wanted.scope, wanted.target_tls)
    if candidate.format != NPZ and (wanted.output_tensor is not None or training_graph.path(candidate.path).is_file()):
        return _of_meta_graph(candidate, wanted, checkpoint, scope)
    if wanted.output_tensor is not None:
        raise InputError(f"{wanted.tl}: --output-tensor needs a graph, and {candidate.label} holds weights alone")
    layers = read_layers(checkpoint, scope, whole=named is None)
    return Rebuilt(build(candidate.path, layers, wanted.shape, wanted.categorical), None, scope)


def _of_meta_graph(candidate: Candidate, wanted: Wanted, checkpoint: Checkpoint, scope: str) -> Rebuilt:
    try:
        layers: Layers | None = read_layers(checkpoint, scope)
        kept = [stored for layer in (*layers.dense, *layers.norms) for stored in layer.stored_as.values()]
    except InputError as error:
        # layers of a kind that is not known, perhaps: their graph needs no knowledge of them
        layers, unread = None, error
        prefix = f"{scope}/" if scope else ""
        inside = [name for name in checkpoint.stored if name.startswith(prefix)]
        kept = [name for name in inside if scopes.why_unread(name, scope) == scopes.NO_REASON]
    try:
        trained = training_graph.read(candidate.path, checkpoint, scope, kept, wanted.output_tensor, wanted.categorical)
        original = training_graph.original(trained, wanted.categorical, wanted.output_tensor is not None)
    except InputError as error:
        said = wanted.shape.architecture is not None
        if wanted.output_tensor is not None or layers is None or not (said or isinstance(error, NotInGraph)):
            # what the graph may tell, and weights do not, must not be passed over in silence
            if layers is None and wanted.output_tensor is None:
                raise unread from None
            trust = layers is not None and wanted.output_tensor is None
            raise InputError(f"{error}; or trust the weights alone with --actor NAME" if trust else str(error)) from None
        layers = read_layers(checkpoint, scope, whole=not said)
        actor = build(candidate.path, layers, wanted.shape, wanted.categorical)
        why = str(error).removeprefix(f"{training_graph.path(candidate.path)}: ")
        return Rebuilt(actor, None, scope, f"the trainer's graph was not used: {why}")
    if layers is not None:
        steps = matching(candidate.path, layers, wanted.shape, original.evaluate, original.inputs, wanted.categorical)
        if steps is not None:
            return Rebuilt(steps, original, scope)
        _refuse_what_was_said(candidate, wanted, original)
    actor = cut(trained, original.inputs, original.outputs, original.gives)
    return Rebuilt(_with_unread(actor, checkpoint), original, scope)


def _of_saved_model(candidate: Candidate, wanted: Wanted) -> Rebuilt:
    if wanted.shape.architecture is not None and ":" in wanted.shape.architecture:
        raise InputError(f"{wanted.tl}: {candidate.label} comes with its graph; leave --actor {wanted.shape.architecture} out")
    trained = trained_function.of_saved_model(candidate.path, wanted.output_tensor, wanted.categorical)
    return _of_function(candidate, wanted, trained)


def _of_keras(candidate: Candidate, wanted: Wanted) -> Rebuilt:
    note = ""
    if keras_h5.is_whole_model(candidate.path):
        model, note = keras_model.load(candidate.path)
        if model is not None:
            names = keras_model.names(model)
            trained = trained_function.of_keras(
                candidate.path, model, wanted.inputs, names, wanted.output_tensor, wanted.categorical
            )
            return _of_function(candidate, wanted, trained, in_hdf5=True)
        if wanted.shape.architecture is None:
            raise InputError(f"{candidate.path}: {note}; say --actor NAME to take its weights alone, or --actor MODULE:FUNCTION")
    if wanted.output_tensor is not None:
        raise InputError(f"{wanted.tl}: --output-tensor needs a graph, and {candidate.label} holds weights alone")
    layers = keras_h5.read(candidate.path, everything=wanted.shape.architecture is None)
    return Rebuilt(build(candidate.path, layers, wanted.shape, wanted.categorical), None, "", note)


def _of_builder(candidate: Candidate, wanted: Wanted, spec: str) -> Rebuilt:
    checkpoint = open_checkpoint(candidate)
    scope = ""
    if candidate.format != KERAS:
        scope = scopes.choose(candidate.path, list(checkpoint.stored), wanted.tl, wanted.scope, wanted.target_tls)
    sizes = Sizes(wanted.inputs, wanted.shape.sizes, wanted.outputs)
    if wanted.inputs is None or wanted.outputs is None:
        sizes = _sizes_of(candidate, checkpoint, scope, sizes)
    trained = user_builder.build(spec, sizes, checkpoint, scope, wanted.categorical)
    actor = cut(trained.graph, trained.original.inputs, trained.original.outputs, trained.original.gives)
    return Rebuilt(_with_unread(actor, checkpoint), trained.original, scope)


def _sizes_of(candidate: Candidate, checkpoint: Checkpoint, scope: str, sizes: Sizes) -> Sizes:
    """Sizes without a street: those of the first and last dense layers, where they can be told."""
    try:
        layers = keras_h5.read(candidate.path) if candidate.format == KERAS else read_layers(checkpoint, scope)
    except InputError:
        return sizes  # layers of another kind: the builder must know its sizes
    if not layers.dense:
        return sizes
    first, last = layers.dense[0].kernel.shape[0], layers.dense[-1].kernel.shape[1]
    return Sizes(sizes.inputs or int(first), sizes.hidden, sizes.outputs or int(last))


def _of_function(candidate: Candidate, wanted: Wanted, trained: Trained, in_hdf5: bool = False) -> Rebuilt:
    original: Original = trained.original
    try:
        layers = keras_h5.read(candidate.path) if in_hdf5 else read_layers(trained.checkpoint, "")
        steps = matching(candidate.path, layers, wanted.shape, original.evaluate, original.inputs, wanted.categorical)
    except InputError:
        steps = None  # layers of another kind: the graph itself is exported
    if steps is not None:
        return Rebuilt(steps, original, "")
    _refuse_what_was_said(candidate, wanted, original)
    return Rebuilt(cut(trained.graph, original.inputs, original.outputs, original.gives), original, "")


def _refuse_what_was_said(candidate: Candidate, wanted: Wanted, original: Original) -> None:
    if wanted.shape.architecture is not None:
        raise InputError(
            f"{wanted.tl}: {candidate.label} is no {wanted.shape.architecture}: its layers do not answer like "
            f"{original.told}; leave the architecture out to export that graph itself, or name another --output-tensor"
        )


def _with_unread(actor: GraphActor, checkpoint: Checkpoint) -> GraphActor:
    taken = {weight.stored_as for weight in actor.weights}
    return replace(actor, unread=left(checkpoint, taken)) if taken <= set(checkpoint.stored) else actor
