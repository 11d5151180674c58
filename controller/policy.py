"""Asking policies for actions, and judging what they answer."""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from controller.observation import Observation
from protos import policy_pb2 as pb

Action = NDArray[np.float64]

_OF_NUMPY = (np.ndarray, np.number)


class Policies(Protocol):
    """Where actions come from: a model server, or a policy in this process."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        """Actions by TL, all asked at once; an exception where there is none. Never raises.

        `observed_s`: when the street was as it was observed (time.monotonic), from
        which deadlines count; None: now.
        """


class BadAction(Exception):
    """An answer that is no action of the contract."""


class ActionSpace:
    """What a contract's actions are: an index, or numbers in [-1, 1]."""

    def __init__(self, policy: pb.Policy) -> None:
        self._categorical = policy.action.kind == "categorical"
        self._size = policy.action.size

    def checked(self, action: object) -> tuple[float, ...]:
        """The action's numbers: one, the index, where it is categorical.

        Raises BadAction where size, finiteness or range is wrong, TypeError or
        ValueError where they are no numbers. Continuous actions may pass [-1, 1]
        by rounding only.
        """
        if self._categorical and isinstance(action, _OF_NUMPY) and action.size == 1:
            index = action.item()  # what nearly every answer is; one that is no index goes on to be named below
            if 0 <= index < self._size and index == int(index):
                return (index,)
        values = np.asarray(action, np.float64).ravel().tolist()
        wanted = 1 if self._categorical else self._size
        if len(values) != wanted:
            raise BadAction(f"answer has {len(values)} values, the contract has {wanted}")
        for value in values:
            if not math.isfinite(value):
                raise BadAction("answer is not finite")
            if self._categorical and (value % 1.0 or not 0 <= value < self._size):
                raise BadAction(f"answer {value:g} is no index below {self._size}")
            if not self._categorical and abs(value) > 1.0 + 1e-5:
                raise BadAction(f"answer {value:g} is outside [-1, 1]")
        return tuple(values)
