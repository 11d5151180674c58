"""Arms of an evaluation: served policies, policies for any junction, and the baselines that need none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from city import model_folders
from city.errors import InputError
from export import pretrained

FIXED, ACTUATED, MAX_PRESSURE, GREEDY, SERVED = "fixed", "actuated", "max-pressure", "greedy", "served"
PRETRAINED, POLICY = "pretrained", "policy"
"""The policy for any junction that greenserve ships, and that of a file."""
BASELINES = (FIXED, ACTUATED, MAX_PRESSURE, GREEDY)
WITH_FAULTS = "+faults"
"""Suffix of the names of arms with faulty detectors."""


@dataclass(frozen=True)
class Arm:
    """One way to control the evaluated TLs; all other signals run their own programs in every arm."""

    name: str
    kind: str
    model_number: int | None = None
    """Model number of served policies; `None` means the newest."""
    policy: Path | None = None
    """File of a policy for any junction."""
    has_faults: bool = False

    @property
    def has_models(self) -> bool:
        """True if models control the TLs."""
        return self.kind in (SERVED, POLICY)


def parse(text: str, candidate: str | None = None) -> list[Arm]:
    """Parse arms separated by commas, `fixed,served,served:3`; the first of the list returned is the candidate. Raises
    InputError.

    `candidate`: its name (default: the first arm that is not `fixed`).
    """
    arms: list[Arm] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, number = name.partition(":")
        if kind == SERVED and (not colon or model_folders.is_version(number)):
            arms.append(Arm(name, SERVED, int(number) if colon else None))
        elif name in BASELINES:
            arms.append(Arm(name, name))
        elif name == PRETRAINED:
            arms.append(Arm(name, POLICY, policy=pretrained.policy()))
        elif kind == POLICY and number:
            arms.append(Arm(name, POLICY, policy=Path(number)))
        else:
            raise InputError(
                f"--arms: {name!r} is not one of served, served:NUMBER, {PRETRAINED}, {POLICY}:FILE, "
                f"{', '.join(BASELINES)}; separate them by commas"
            )
    names = [arm.name for arm in arms]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--arms: {repeated[0]} is listed twice; remove one")
    if not arms:
        raise InputError("--arms names no arm; pass some, such as served,fixed")
    if candidate is None:
        candidate = next((name for name in names if name != FIXED), names[0])
    if candidate not in names:
        raise InputError(f"--candidate {candidate!r} must be one of --arms: {', '.join(names)}")
    return sorted(arms, key=lambda arm: arm.name != candidate)


def reference_of(names: Sequence[str]) -> str | None:
    """The arm that the candidate, the first one, is compared with: `fixed`, else the second arm; None without one."""
    return FIXED if FIXED in names[1:] else next(iter(names[1:]), None)


def with_faults(arms: list[Arm]) -> list[Arm]:
    """The arms, followed by copies with faulty detectors of those that the controller runs; SUMO itself controls the
    others."""
    return arms + [
        replace(arm, name=arm.name + WITH_FAULTS, has_faults=True)
        for arm in arms
        if arm.has_models or arm.kind in (MAX_PRESSURE, GREEDY)
    ]
