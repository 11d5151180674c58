"""A fleet as its client sees it: many TLs' observations in one row, many actions in one answer."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2
from serving.contract import ContractError, check_fleet
from serving.errors import BadAnswer


class Fleet:
    """Whose numbers stand where in a fleet's observation and action."""

    def __init__(self, model: str, policy: policy_pb2.Policy) -> None:
        """`policy`: the fleet's contract. Raises ContractError where it is none of a fleet."""
        check_fleet(policy)
        self.model, self.policy = model, policy
        self.columns = {
            member.tl: slice(member.observation_begin, member.observation_begin + member.observation_size)
            for member in policy.members
        }
        """TL -> its part of the observation."""
        self.actions = {
            member.tl: slice(member.action_begin, member.action_begin + member.action_size) for member in policy.members
        }
        """TL -> its part of the action."""
        self.versions = {member.tl: member.version for member in policy.members}
        """TL -> the version of its own model that went into the fleet."""

    def stacked(self, observations: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """float32 [sum of O]; TLs that are left out are zeros. Raises ContractError."""
        row = np.zeros(self.policy.observation.size, np.float32)
        for tl, observation in observations.items():
            columns = self.columns.get(tl)
            if columns is None:
                raise ContractError(f"{tl} is none of the {len(self.columns)} TLs of fleet {self.model}")
            if np.shape(observation) != (columns.stop - columns.start,):
                raise ContractError(
                    f"{tl} in fleet {self.model} takes {columns.stop - columns.start} numbers, not {np.shape(observation)}"
                )
            row[columns] = observation
        return row

    def split(self, action: NDArray[Any] | None, tls: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Actions by TL out of an answer. Raises BadAnswer where it is of another size, or holds what are no finite numbers."""
        if action is None or action.size != self.policy.action.size:
            told = "no action" if action is None else f"{action.size} numbers"
            raise BadAnswer(f"fleet {self.model} answered {told}, not {self.policy.action.size} numbers")
        if action.dtype.kind not in "fiu" or not np.isfinite(action).all():
            raise BadAnswer(f"fleet {self.model} answered what are no finite numbers")
        row = action.reshape(-1)
        return {tl: row[self.actions[tl]] for tl in tls}
