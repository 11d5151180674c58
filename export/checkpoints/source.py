"""The interface of a checkpoint source, with defaults for files that hold only weights."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from city.errors import InputError
from export.actors import Actor
from export.actors.architectures import ArchitectureHints, Layers, build
from export.checkpoints import scopes
from export.checkpoints.checkpoint import Checkpoint
from export.checkpoints.layers import read_layers

if TYPE_CHECKING:  # TensorFlow takes seconds to import, and locating checkpoints needs none of it
    from export.graphs.graph_actor import GraphActor, ReferenceModel


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
class RebuiltActor:
    """An actor, and the trainer's own model if there is one."""

    actor: "Actor | GraphActor"
    reference_model: "ReferenceModel | None"
    scope: str
    note: str = ""
    """A note for the user about how it was rebuilt."""
    action_kind: str | None = None
    """`categorical` or `continuous`, if the checkpoint tells; None: it is as requested."""


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

    def rebuild(self, path: Path, label: str, wanted: ActorRequest) -> RebuiltActor:
        """The actor of a checkpoint; by default of a file that holds only weights. Raises InputError.

        `label`: the checkpoint's name in messages.
        """
        if wanted.output_tensor is not None:
            raise InputError(f"{wanted.tl}: --output-tensor needs a graph, and {label} holds only weights")
        checkpoint = self.open(path)
        scope = scopes.choose_scope(path, list(checkpoint.stored), wanted.tl, wanted.scope, wanted.target_tls)
        layers = self.layers(path, checkpoint, scope, whole=wanted.hints.architecture is None)
        actor = build(path, layers, wanted.hints, wanted.categorical)
        bare = [layer for layer in actor.dense[:-1] if layer.bias is None]
        note = "its hidden layers have no bias" if bare and len(bare) == len(actor.dense) - 1 else ""
        return RebuiltActor(actor, None, scope, note)
