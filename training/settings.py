"""Settings of a training in a city, and the hyperparameters of PPO: the settings of `city.ppo_settings`, each with a
value."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from city.ppo_settings import PpoSettings
from training.transitions import Float32s

Layers = Sequence[tuple[Float32s, Float32s]]
"""(kernel, bias) of each layer."""
FINE_TUNING: Mapping[str, Any] = {"learning_rate": 3e-4, "target_kl": 0.01, "final_sharpness": 1.0}
"""Defaults of a training that starts from a policy: small steps, because an update that is too large loses what it has
learned (measured on synthetic streets: docs/tuning.md), and no sharpness, because it is sharp already."""
SHARP_FROM = 0.8
"""Share of the training after which the sharpness is constant."""


@dataclass(frozen=True)
class PpoConfig(PpoSettings):
    """Hyperparameters of the TLs' own networks."""

    learning_rate: float = 1e-3
    learning_rate_schedule: str = "linear"
    gamma: float = 0.97
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    n_epochs: int = 8
    minibatch: int = 128
    final_sharpness: float = 10.0
    """On the street a policy takes its best action and never samples: one that always explored may wait forever for a
    change of its observation. As the factor rises from 1, such waits occur in training, and the policy learns to avoid
    them."""
    target_kl: float | None = None
    """A row's update ends before the first minibatch whose approximate KL divergence from the policy that chose the
    actions exceeds 1.5 times this, as stable-baselines3's does; None for no early end."""
    hidden_sizes: tuple[int, ...] = (64, 64)

    @classmethod
    def of(cls, given: Mapping[str, Any], is_started: bool = False) -> Self:
        """The values that are given, and the defaults of the others: FINE_TUNING's for a training that is started from
        a policy."""
        return cls(**{**(FINE_TUNING if is_started else {}), **given})

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate at a progress in [0, 1]."""
        return self.learning_rate * (_linear_decay(progress) if self.learning_rate_schedule == "linear" else 1.0)

    def entropy_at(self, progress: float) -> float:
        """The weight of the entropy bonus at a progress in [0, 1]."""
        return self.ent_coef * _linear_decay(progress)

    def sharpness(self, progress: float) -> float:
        """The factor of the logits at a progress in [0, 1]: geometric up to SHARP_FROM, then constant."""
        return float(self.final_sharpness ** min(1.0, progress / SHARP_FROM))

    @property
    def max_kl(self) -> float:
        """The approximate KL divergence above which an update ends."""
        return float("inf") if self.target_kl is None else 1.5 * self.target_kl

    def by_flag(self) -> dict[str, Any]:
        """The values by the flag that changes them, without the layers' sizes."""
        return {f"--{name.replace('_', '-')}": value for name, value in asdict(self).items() if name != "hidden_sizes"}


@dataclass(frozen=True)
class StreetPpo(PpoConfig):
    """Hyperparameters of the street dialect's networks, whose sizes are fixed; `gamma` and `gae_lambda` apply once in
    5 s."""

    gae_lambda: float = 0.92
    ent_coef: float = 0.015
    minibatch: int = 512
    final_sharpness: float = 6.0


def _linear_decay(progress: float) -> float:
    """A factor that falls from 1 to 5 % at a progress of 1."""
    return 1.0 - 0.95 * progress


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
