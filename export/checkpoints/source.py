"""The interface of a checkpoint source, with defaults for files that hold only weights."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors import Actor, GraphActor, ReferenceModel
from export.actors.activations import LEAKY_RELU
from export.actors.architectures import ArchitectureHints, Layers, build
from export.checkpoints import scopes
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.layers import read_layers
from protos import policy_pb2 as pb
from serving.contract import PROBABILITIES, Q_VALUES


@dataclass(frozen=True)
class ActorRequest:
    """The actor that an export needs from a checkpoint."""

    tl: str
    scope: str | None
    target_tls: Sequence[str]
    """TLs in training's order."""
    output_tensor: str | None
    hints: ArchitectureHints
    categorical: bool
    inputs: int | None
    """Size of the observation, if the street network determines it."""
    outputs: int | None
    """Size of the action or number of choices, if the street network determines it."""
    contract: pb.PolicyContract | None = None
    """The TL's contract, if the street network determines it."""
    observations: NDArray[np.float32] | None = None
    """[n, O] of recorded traffic, for the parity check."""
    file_name: str = ""
    """The checkpoint's file name, which may show what its outputs mean."""

    def scope_in(self, checkpoint: Checkpoint) -> str:
        """The actor's scope in a checkpoint of several agents. Raises InputError if it is not clear."""
        return scopes.choose_scope(list(checkpoint.stored), self.tl, self.scope, self.target_tls)

    def scores(self, names: Iterable[str]) -> str:
        """The meaning of a categorical actor's outputs, `probabilities` or `q_values`: the requested one, else the one
        that names show, else `q_values`: the outputs as they are, because a softmax may be of no policy's logits.

        Args:
            names: those of the actor's modules and of its output; they take precedence over the file's name.

        Raises:
            InputError: the requested one is neither.
        """
        requested = self.hints.scores
        if requested not in (None, PROBABILITIES, Q_VALUES):
            raise InputError(
                f"scores {requested!r} is neither {PROBABILITIES} (their logits) nor {Q_VALUES}; pass one of them with "
                f"--scores, or set scores in [tl.{self.tl or 'NAME'}] of city.toml"
            )
        return requested or scopes.scores_shown(names) or scopes.scores_shown([self.file_name]) or Q_VALUES

    def scored(self, actor: Actor) -> Actor:
        """An actor of layers with the meaning of its outputs. Raises InputError for an unknown one."""
        if not self.categorical:
            return actor
        names = [name for layer in actor.dense for name in (layer.name, *layer.stored_as.values())]
        return replace(actor, scores=self.scores(names))


@dataclass(frozen=True)
class RebuiltActor:
    """An actor of a checkpoint, and the trainer's own model if the checkpoint contains it."""

    actor: Actor | GraphActor
    scope: str = ""
    note: str = ""
    """How it was read, for the user."""
    action_kind: str | None = None
    """`categorical` or `continuous`, if the checkpoint defines it."""
    reference_model: ReferenceModel | None = None
    runs_in_helper: bool = False
    """True if the actor is a graph of the checkpoint or of a user's function, which only the helper process may run."""


@dataclass(frozen=True)
class KerasModel:
    """A Keras model with its architecture, which Keras can load if its classes are Keras's own."""

    config: str
    """The model's architecture as JSON, or ""."""
    version: str
    """Version of the Keras that wrote it, such as 2.15.0, or ""."""


Graph = Literal["meta graph", "saved function"] | KerasModel
"""A graph that a checkpoint may hold beside its weights: a TF1 trainer's in a `.meta` file, a SavedModel's function, a
Keras model. `export.rebuild` decides how it is used."""


class Source(ABC):
    """One kind of checkpoint. `path` is that of a checkpoint: a file, a prefix or a folder."""

    format: str
    """The name of this kind in export manifests."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of files that are one checkpoint each."""
    has_scopes = True
    """True if one checkpoint may hold several agents, in scopes."""
    has_tensors = False
    """True if the weights alone define the tensors that a request may name."""
    leaky_relu: str | None = None
    """The leaky_relu of the trainers' library, with its slope. `None` if there are several."""
    serves_any_tl = False
    """True if the actor of one checkpoint is for any TL."""

    def checkpoint_of(self, file: Path) -> Path | None:
        """The checkpoint that a file belongs to, or `None` if this source cannot read it."""
        return file if file.suffix in self.suffixes else None

    def model_number(self, path: Path) -> int | None:
        """The model number, for checkpoints that do not have it in their own name."""
        return None

    def files(self, path: Path) -> list[Path]:
        """The files that an export reads."""
        return [path]

    @abstractmethod
    def open(self, path: Path) -> Checkpoint:
        """Open a checkpoint. Raises InputError if it cannot be read."""

    def layers(self, path: Path, checkpoint: Checkpoint, scope: str, strict: bool = False) -> Layers:
        """Read the layers of the actor in a scope.

        Args:
            path: the checkpoint.
            checkpoint: its variables.
            scope: the actor's scope.
            strict: refuse a variable in the scope that belongs neither to a layer nor to training.

        Raises:
            InputError: a layer is missing or damaged.
        """
        return read_layers(checkpoint, scope, strict)

    def graph(self, path: Path, request: ActorRequest) -> Graph | None:
        """The graph beside the weights, if there is one that the request needs. Raises InputError."""
        return None

    def actor(self, path: Path, request: ActorRequest) -> RebuiltActor:
        """Build the actor from the weights alone. Raises InputError."""
        checkpoint = self.open(path)
        scope = request.scope_in(checkpoint) if self.has_scopes else ""
        layers = self.layers(path, checkpoint, scope, strict=request.hints.architecture is None)
        hints = request.hints
        if hints.hidden_activation == LEAKY_RELU:
            hints = replace(hints, hidden_activation=self.leaky_relu or LEAKY_RELU)
        actor = request.scored(build(layers, hints, request.categorical))
        hidden = actor.dense[:-1]
        note = "its hidden layers have no bias" if hidden and all(layer.bias is None for layer in hidden) else ""
        return RebuiltActor(actor, scope, note)

    def uses_for_any_tl(self, path: Path) -> tuple[dict[str, str], list[str]] | None:
        """(use of each variable, lines of a summary) of a checkpoint for any TL; None if its actor can be rebuilt
        alone.

        Raises InputError.
        """
        return None

    def refuse_scope(self, request: ActorRequest) -> None:
        """Raise InputError if the request names a scope, for checkpoints of one actor."""
        if request.scope is not None and not self.has_scopes:
            raise InputError(
                f"holds one actor, and scope {request.scope} is for checkpoints of several agents; leave the scope out"
            )
