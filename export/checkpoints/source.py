"""The interface of a checkpoint source, with defaults for files that hold only weights."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from city.errors import InputError
from export.actors import Actor
from export.actors.architectures import ArchitectureHints, Layers, build
from export.checkpoints import scopes
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.layers import read_layers


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
    """Size of the observation, if a street determines it."""
    outputs: int | None


@dataclass(frozen=True)
class StoredActor:
    """The actor that a checkpoint's weights form."""

    actor: Actor
    scope: str
    note: str = ""
    """For the user: how it was read."""
    action_kind: str | None = None
    """`categorical` or `continuous`, if the checkpoint says so; None: it is as requested."""


@dataclass(frozen=True)
class MetaGraph:
    """The graph of a TF1 trainer, in the `.meta` file beside the checkpoint."""


@dataclass(frozen=True)
class SavedFunction:
    """A SavedModel's function."""


@dataclass(frozen=True)
class KerasModel:
    """A whole Keras model, which Keras can load if its classes are Keras's own."""

    config: str
    """The model's architecture as JSON."""
    version: str
    """Of the Keras that wrote it."""


Graph = MetaGraph | SavedFunction | KerasModel
"""What a checkpoint may hold beside weights. `export.rebuild` decides what becomes of it."""


class Source(ABC):
    """One kind of checkpoint. `path` stands for a checkpoint: a file, a prefix or a folder."""

    format: str
    """Its name in manifests."""
    suffixes: tuple[str, ...] = ()
    """Endings of files that are one checkpoint each."""
    has_scopes = True
    """Whether one checkpoint may hold several agents, in scopes."""

    def checkpoint_of(self, file: Path) -> Path | None:
        """The checkpoint that a file stands for; None: it is not this source's."""
        return file if file.suffix in self.suffixes else None

    def model_number(self, path: Path) -> int | None:
        """The model number of a checkpoint whose own name does not hold it."""
        return None

    def files(self, path: Path) -> list[Path]:
        """Every file that an export reads."""
        return [path]

    @abstractmethod
    def open(self, path: Path) -> Checkpoint:
        """The variables of a checkpoint. Raises InputError."""

    def layers(self, path: Path, checkpoint: Checkpoint, scope: str, whole: bool = False) -> Layers:
        """The layers of the actor in a scope. Raises InputError.

        `whole`: whether every variable in the scope must belong to a layer or to training.
        """
        return read_layers(checkpoint, scope, whole)

    def graph(self, path: Path, wanted: ActorRequest) -> Graph | None:
        """What the checkpoint holds beside weights; None: nothing that the request needs. Raises InputError."""
        return None

    def actor(self, path: Path, label: str, wanted: ActorRequest) -> StoredActor:
        """The actor of the weights alone. Raises InputError. `label`: the checkpoint's name in messages."""
        self.refuse_tensor(label, wanted)
        checkpoint, scope = self.open(path), ""
        if self.has_scopes:
            scope = scopes.choose_scope(path, list(checkpoint.stored), wanted.tl, wanted.scope, wanted.target_tls)
        else:
            self.refuse_scope(label, wanted)
        layers = self.layers(path, checkpoint, scope, whole=wanted.hints.architecture is None)
        actor = build(path, layers, wanted.hints, wanted.categorical)
        bare = [layer for layer in actor.dense[:-1] if layer.bias is None]
        note = "its hidden layers have no bias" if bare and len(bare) == len(actor.dense) - 1 else ""
        return StoredActor(actor, scope, note)

    def refuse_scope(self, label: str, wanted: ActorRequest) -> None:
        """Raise InputError if a scope of a checkpoint is requested that holds one actor."""
        if wanted.scope is not None:
            raise InputError(f"{wanted.tl}: scope {wanted.scope} is for checkpoints of several agents; {label} holds one actor")

    def refuse_tensor(self, label: str, wanted: ActorRequest) -> None:
        """Raise InputError if a tensor of a checkpoint is requested that has no graph."""
        if wanted.output_tensor is not None:
            raise InputError(f"{wanted.tl}: --output-tensor needs a graph, and {label} holds only weights")
