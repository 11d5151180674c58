"""Settings of a training in a city."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.ppo_config import PpoConfig, StreetPpo
from training.transitions import Float32s

Layers = Sequence[tuple[Float32s, Float32s]]
"""(kernel, bias) of each layer."""


@dataclass(frozen=True)
class TrainingStart:
    """The actors that a training starts from, and the critic of those of dialect street if it is known."""

    layers: Mapping[str, Layers] = field(default_factory=dict)
    """By TL that has networks of its own, its actor."""
    activation: str = "relu"
    """Activation of the hidden layers of these actors."""
    street: Sequence[Float32s] = ()
    """The arrays of the actor of dialect street, then of its critic if it is known."""

    @property
    def hidden(self) -> tuple[int, ...] | None:
        """Units of the hidden layers; None without TLs that have networks of their own."""
        return next((sizes_of(layers) for layers in self.layers.values()), None)

    def digest(self) -> str:
        """Differs between starts that differ."""
        own = [array for tl in sorted(self.layers) for layer in self.layers[tl] for array in layer]
        content = b"".join(array.tobytes() for array in [*own, *self.street])
        return hashlib.sha256(self.activation.encode() + content).hexdigest()


@dataclass(frozen=True)
class Settings:
    """Settings of a training."""

    out: Path
    number: int = 1
    """Model number of the checkpoints."""
    episodes: int = 300
    episodes_per_update: int = 4
    seed: int = 1
    workers: int = 1
    ppo: PpoConfig = field(default_factory=PpoConfig)
    street_ppo: StreetPpo = field(default_factory=StreetPpo)
    """Hyperparameters of TLs of the street dialect; the final sharpness is that of `ppo` for all TLs."""
    varies: bool = True
    """Demand varies between episodes."""
    evaluate_every: int = 10
    """Updates between two evaluations on validation demand."""
    held_out: int = 2
    """Simulations of an evaluation (--held-out)."""
    patience: int = 0
    """Evaluations without an improvement after which the training ends; 0 for no early end."""
    formats: dict[str, str] = field(default_factory=dict)
    """Checkpoint format by TL (default: `tf2`)."""
    start: TrainingStart | None = None
    """The policies to start from."""
    resume: bool = False
    writes_newest: bool = False
    """The newest state is written, after each update, instead of the best one after an evaluation that finds
    it."""

    @property
    def activation(self) -> str:
        """Activation of the hidden layers of TLs that have networks of their own."""
        return "relu" if self.start is None else self.start.activation


def sizes_of(layers: Layers) -> tuple[int, ...]:
    """Units of the hidden layers."""
    return tuple(int(kernel.shape[1]) for kernel, _ in layers[:-1])
