"""Settings of PPO that a user may give, in [training] of city.toml and as flags of greenserve train and rounds."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from city.errors import InputError

SCHEDULES = ("linear", "constant")
MAX_EPOCHS = 1000
MAX_MINIBATCH = 1_000_000
MAX_UNITS = 4096
MAX_SHARPNESS = 1000
MAX_TARGET_KL = 10


@dataclass(frozen=True)
class PpoSettings:
    """Settings that are given; None: the default of what is trained (training/ppo_config.py)."""

    learning_rate: float | None = None
    learning_rate_schedule: str | None = None
    gamma: float | None = None
    gae_lambda: float | None = None
    clip: float | None = None
    entropy: float | None = None
    epochs: int | None = None
    minibatch: int | None = None
    final_sharpness: float | None = None
    target_kl: float | None = None
    hidden_sizes: tuple[int, ...] | None = None


KEYS = tuple(field.name for field in fields(PpoSettings))
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "learning_rate": (lambda x: 0 < x < 1, "lie between 0 and 1"),
    "learning_rate_schedule": (lambda x: x in SCHEDULES, f"be one of {', '.join(SCHEDULES)}"),
    "gamma": (lambda x: 0 <= x < 1, "be at least 0 and less than 1"),
    "gae_lambda": (lambda x: 0 <= x <= 1, "be at least 0 and at most 1"),
    "clip": (lambda x: 0 < x < 1, "lie between 0 and 1"),
    "entropy": (lambda x: 0 <= x <= 1, "be at least 0 and at most 1"),
    "epochs": (lambda x: 1 <= x <= MAX_EPOCHS, f"lie between 1 and {MAX_EPOCHS}"),
    "minibatch": (lambda x: 1 <= x <= MAX_MINIBATCH, f"lie between 1 and {MAX_MINIBATCH}"),
    "final_sharpness": (lambda x: 1 <= x <= MAX_SHARPNESS, f"be at least 1 and at most {MAX_SHARPNESS}"),
    "target_kl": (lambda x: 0 < x <= MAX_TARGET_KL, f"be greater than 0 and at most {MAX_TARGET_KL}"),
    "hidden_sizes": (
        lambda sizes: len(sizes) > 0 and all(0 < size <= MAX_UNITS for size in sizes),
        f"be integers between 1 and {MAX_UNITS}",
    ),
}  # fmt: skip
"""By key: (test of a value's range, requirement in an error's text)."""


def check(settings: PpoSettings, shown: Callable[[str, Any], str]) -> None:
    """Raise InputError if a value is out of its range. `shown`: key and value as the user has written them."""
    for key, (is_valid, requirement) in _RANGES.items():
        value = getattr(settings, key)
        if value is not None and not is_valid(value):
            raise InputError(f"{shown(key, value)} must {requirement}")
