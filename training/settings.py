"""Settings of a training in a city."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.ppo_config import PpoConfig, StreetPpo
from training.transitions import Float32s


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
    start: Sequence[Float32s] | None = None
    """Arrays of a policy of the street dialect to start from (`policy_file.load`)."""
    resume: bool = False
    writes_newest: bool = False
    """The newest state is written, after each update, instead of the best one after an evaluation that finds
    it."""
