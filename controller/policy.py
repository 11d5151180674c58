"""Asking policies for actions, and judging what they answer."""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from controller.observation import Observation
from protos import policy_pb2 as pb

Action = NDArray[np.float64]


class Policies(Protocol):
    """Where actions come from: a model server, or a policy in this process."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        """Actions by TL, all asked at once; an exception where there is none. Never raises.

        `observed_s`: when the street was as it was observed (time.monotonic), from
        which deadlines count; None: now.
        """


class BadAction(Exception):
    """An answer that is no action of the contract."""


def checked(policy: pb.Policy, action: object) -> Action:
    """The action as float64 [A] ([1], the index, where it is categorical).

    Raises BadAction where size, finiteness or range is wrong. Continuous
    actions may pass [-1, 1] by rounding only.
    """
    values = np.asarray(action, np.float64).reshape(-1)
    wanted = policy.action
    categorical = wanted.kind == "categorical"
    size = 1 if categorical else wanted.size
    if values.size != size:
        raise BadAction(f"answer has {values.size} values, the contract has {size}")
    if categorical:
        index = values.item()
        if not math.isfinite(index):
            raise BadAction("answer is not finite")
        if index != int(index) or not 0 <= index < wanted.size:
            raise BadAction(f"answer {index:g} is no index below {wanted.size}")
        return values
    if not np.isfinite(values).all():
        raise BadAction("answer is not finite")
    if np.abs(values).max() > 1.0 + 1e-5:
        raise BadAction(f"answer {values[np.abs(values).argmax()]:g} is outside [-1, 1]")
    return values
