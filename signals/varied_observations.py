"""Varied observations of a TL, and actions that do not vary with them: a policy that never changes its green."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals.movement_names import MovementNames
from signals.policy_signals import greens_of

COUNT = 1000
SAME = 1e-6
"""Largest difference of continuous actions that are one."""


def varied(contract: pb.PolicyContract) -> NDArray[np.float32]:
    """Observations [COUNT, O] from empty to full lanes: values in [0, 1], and one current green for each signal."""
    rng, size = np.random.default_rng(3), contract.observation.size
    filled = rng.random((COUNT, size)) < rng.random((COUNT, 1))
    x = (rng.random((COUNT, size)) * filled).astype(np.float32)
    kinds = [feature.kind for feature in contract.observation.features]
    if greens := kinds.count("phase") if contract.action.kind == CATEGORICAL else 0:
        x[:, [k for k, kind in enumerate(kinds) if kind == "phase"]] = np.eye(greens)[rng.integers(greens, size=COUNT)]
    x[:, [k for k, kind in enumerate(kinds) if kind == "min_green"]] = 1  # it may change
    return x


def only_action(contract: pb.PolicyContract, actions: NDArray[Any], names: Mapping[str, MovementNames] = {}) -> str:
    """The action if all of a single model's are the same, for the user; "" if they differ, or there is no other.

    `actions`: [n] indices, or [n, A] values. `names`: by signal, the names of its movements.
    """
    actions = actions.reshape(len(actions), -1)
    if contract.action.kind == CATEGORICAL:
        index = int(actions[0, 0])
        if contract.action.size < 2 or (actions != index).any():
            return ""
        greens = [greens_of(signal) for signal in contract.signals]
        if list(map(len, greens)) != [contract.action.size]:
            return f"green {index}"
        return names.get(contract.signals[0].id, MovementNames()).of_green(greens[0], index)
    if np.ptp(actions, 0).max() > SAME:
        return ""
    return ", ".join(f"{value:.3g}" for value in actions[0])


def warning(action: str) -> str:
    """The warning about a policy's only action."""
    return (
        f"warning: gives one action, {action}, for all of {COUNT} or more varied observations, so it would not react "
        "to traffic; compare it with greenserve evaluate, or train it again"
    )
