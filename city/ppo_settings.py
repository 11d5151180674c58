"""Settings of PPO that a user may give: keys of [training] in city.toml, flags of greenserve train, rounds, pretrain.

A field's metadata is all that is known of a setting: its help text, its range, its choices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from city.errors import InputError

SCHEDULES = ("linear", "constant")
MAX_EPOCHS = 1000
MAX_VF_COEF = 100
MAX_GRADIENT_NORM = 1000
MAX_MINIBATCH = 1_000_000
MAX_UNITS = 4096
MAX_SHARPNESS = 1000
MAX_TARGET_KL = 10


def _setting(about: str, requirement: str, is_valid: Callable[[Any], bool], choices: tuple[str, ...] = ()) -> Any:
    """A field that is None by default. `about`: the flag's help. `requirement`: completes "VALUE must ..."."""
    metadata = {"about": about, "requirement": requirement, "is_valid": is_valid, "choices": choices}
    return field(default=None, metadata=metadata)


@dataclass(frozen=True)
class PpoSettings:
    """Settings that are given; None: the default of what is trained (training/settings.py)."""

    learning_rate: float | None = _setting("learning rate at the start", "lie between 0 and 1", lambda x: 0 < x < 1)
    learning_rate_schedule: str | None = _setting(
        "linear: the learning rate falls to 5 %% at the end; constant",
        f"be one of {', '.join(SCHEDULES)}", lambda x: x in SCHEDULES, SCHEDULES,
    )  # fmt: skip
    gamma: float | None = _setting(
        "discount factor, by decision; dialect street: by 5 s", "be at least 0 and less than 1", lambda x: 0 <= x < 1
    )
    gae_lambda: float | None = _setting(
        "lambda of the generalised advantage estimates", "be at least 0 and at most 1", lambda x: 0 <= x <= 1
    )
    clip_range: float | None = _setting(
        "bound of the ratio of new and old probabilities, 1 +- X", "lie between 0 and 1", lambda x: 0 < x < 1
    )
    ent_coef: float | None = _setting(
        "weight of the entropy bonus at the start; falls linearly to 5 %%",
        "be at least 0 and at most 1", lambda x: 0 <= x <= 1,
    )  # fmt: skip
    vf_coef: float | None = _setting(
        "weight of the value loss", f"be at least 0 and at most {MAX_VF_COEF}", lambda x: 0 <= x <= MAX_VF_COEF
    )
    max_grad_norm: float | None = _setting(
        "bound of a gradient's norm, the actor's and the critic's each",
        f"be greater than 0 and at most {MAX_GRADIENT_NORM}", lambda x: 0 < x <= MAX_GRADIENT_NORM,
    )  # fmt: skip
    normalize_advantage: bool | None = _setting(
        "scale the advantages of an update to mean 0 and deviation 1", "be true or false", lambda x: True
    )
    n_epochs: int | None = _setting(
        "passes over an update's decisions", f"lie between 1 and {MAX_EPOCHS}", lambda x: 1 <= x <= MAX_EPOCHS
    )
    minibatch: int | None = _setting(
        "most decisions of a TL in a step of the optimiser; dialect street: of all TLs",
        f"lie between 1 and {MAX_MINIBATCH}", lambda x: 1 <= x <= MAX_MINIBATCH,
    )  # fmt: skip
    final_sharpness: float | None = _setting(
        "factor of categorical actors' logits at the end, from 1 at the start",
        f"be at least 1 and at most {MAX_SHARPNESS}", lambda x: 1 <= x <= MAX_SHARPNESS,
    )  # fmt: skip
    target_kl: float | None = _setting(
        "end an update's epochs once approx_kl exceeds 1.5 X",
        f"be greater than 0 and at most {MAX_TARGET_KL}", lambda x: 0 < x <= MAX_TARGET_KL,
    )  # fmt: skip
    hidden_sizes: tuple[int, ...] | None = _setting(
        "units of the hidden layers, not of dialect street",
        f"be integers between 1 and {MAX_UNITS}",
        lambda sizes: len(sizes) > 0 and all(0 < size <= MAX_UNITS for size in sizes),
    )


METADATA: Mapping[str, Mapping[str, Any]] = {field.name: field.metadata for field in fields(PpoSettings)}
"""By setting: about, requirement, is_valid and choices."""


def check(settings: PpoSettings, shown: Callable[[str, Any], str]) -> None:
    """Raise InputError if a value is out of its range. `shown`: key and value as the user has written them."""
    for key, metadata in METADATA.items():
        value = getattr(settings, key)
        if value is not None and not metadata["is_valid"](value):
            raise InputError(f"{shown(key, value)} must {metadata['requirement']}")
