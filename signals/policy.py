"""The source of actions, and the check that an answer is a valid action."""

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals.observation import Observation

Action = NDArray[np.float64]

ROUNDING = 1e-5
"""How far a continuous action may leave [-1, 1] by rounding."""


class Answer(NamedTuple):
    """A policy's answer for one TL, and where it comes from."""

    action: Action
    """As the contract describes it, not validated yet."""
    version: int = 0
    """Model number, of the TL's own model also in a fleet; 0: no model server."""
    model: str = ""
    """Name of the model that answered: the TL's own, or the fleet's."""
    scores: NDArray[np.float32] | None = None
    """[n] probabilities or q-values of the choices; None: not requested, or the model has none."""


class Policies(Protocol):
    """A model server, or a policy in this process."""

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """Request the actions of all TLs at once: by TL an answer, or an exception if there is none. Never raises.

        `observed_s`: when the readings arrived (time.monotonic). Deadlines count from it; without it, from now.
        """


class InvalidAction(Exception):
    """An answer that is not a valid action of the contract."""


class ActionSpace:
    """The valid actions of a contract: an index, or values in [-1, 1]."""

    def __init__(self, contract: pb.PolicyContract) -> None:
        self._is_categorical = contract.action.kind == CATEGORICAL
        self._size = contract.action.size

    def validated(self, action: object) -> tuple[float, ...]:
        """Check an action and return its values; a categorical action has one, its index.

        Raises InvalidAction for a wrong size or range or a value that is not finite,
        TypeError or ValueError if the answer is not numeric. Continuous actions may
        leave [-1, 1] by rounding only.
        """
        if self._is_categorical and isinstance(action, (np.ndarray, np.number)) and action.size == 1:
            index = action.item()  # the usual case, without another array; an invalid index is reported below
            if 0 <= index < self._size and index == int(index):
                return (index,)
        values = np.asarray(action, np.float64).ravel().tolist()
        expected = 1 if self._is_categorical else self._size
        if len(values) != expected:
            raise InvalidAction(f"the answer has {len(values)} values, the contract has {expected}")
        for value in values:
            if not math.isfinite(value):
                raise InvalidAction("the answer is not finite")
            if self._is_categorical and (value % 1.0 or not 0 <= value < self._size):
                raise InvalidAction(f"the answer {value:g} is not an index below {self._size}")
            if not self._is_categorical and abs(value) > 1.0 + ROUNDING:
                raise InvalidAction(f"the answer {value:g} is outside [-1, 1]")
        return tuple(values)
