"""The layout of a fleet: the observations of many TLs in one row, their actions in one response."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2
from serving.client import messages
from serving.contract import ContractError, check_fleet
from serving.errors import InvalidResponse


class ScoredAction(NamedTuple):
    """A TL's part of a fleet's response."""

    action: NDArray[Any]
    """float32 [A], or the index of a categorical policy, [1]."""
    scores: NDArray[np.float32] | None
    """[n] probabilities or q-values of the choices; None if the policy is continuous or the fleet has no scores."""


class Fleet:
    """The columns of each TL in a fleet's observation, action and scores."""

    def __init__(self, model: str, contract: policy_pb2.PolicyContract) -> None:
        """`contract`: the fleet's contract. Raises ContractError if it is invalid, or not a fleet's."""
        check_fleet(contract)
        self.model, self.contract = model, contract
        self.observations = {
            member.tl: slice(member.observation_begin, member.observation_begin + member.observation_size)
            for member in contract.members
        }
        """TL -> its columns of the observation."""
        self.actions = {
            member.tl: slice(member.action_begin, member.action_begin + member.action_size)
            for member in contract.members
        }
        """TL -> its columns of the action."""
        self.scores = {
            member.tl: slice(member.score_begin, member.score_begin + member.score_size)
            for member in contract.members
            if member.score_size
        }
        """Categorical TL -> its columns of the scores; empty for a fleet without scores."""
        self.versions = {member.tl: member.version for member in contract.members}
        """TL -> version of its own model in the fleet."""

    def stack(self, observations: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """The fleet's observation, float32 [sum of O]; zeros for TLs without an observation. Raises ContractError."""
        row = np.zeros(self.contract.observation.size, np.float32)
        for tl, observation in observations.items():
            columns = self.observations.get(tl)
            if columns is None:
                raise ContractError(f"{tl} is not one of the {len(self.observations)} TLs of fleet {self.model}")
            size = columns.stop - columns.start
            if np.shape(observation) != (size,):
                raise ContractError(
                    f"the observation of {tl} has shape {np.shape(observation)}; fleet {self.model} takes ({size},)"
                )
            row[columns] = observation
        return row

    def split(self, action: NDArray[Any] | None, tls: Iterable[str]) -> dict[str, NDArray[Any] | InvalidResponse]:
        """Split the fleet's action into those of these TLs, [A] each; InvalidResponse for a TL with a value that is not
        finite.

        Raises InvalidResponse if the fleet's action has another size or is not numeric.
        """
        if action is None or action.size != self.contract.action.size:
            returned = "no action" if action is None else f"an action of size {action.size}"
            raise InvalidResponse(
                f"fleet {self.model} returned {returned}, not one of size {self.contract.action.size}"
            )
        if action.dtype.kind not in "fiu":
            raise InvalidResponse(f"fleet {self.model} returned an action of dtype {action.dtype}, not numeric values")
        row = action.reshape(-1)
        if np.isfinite(row).all():
            return {tl: row[self.actions[tl]] for tl in tls}
        return {
            tl: row[columns]
            if np.isfinite(row[columns := self.actions[tl]]).all()
            else InvalidResponse("the action is not finite")
            for tl in tls
        }

    def split_scores(self, scores: NDArray[Any] | None, tls: Iterable[str]) -> dict[str, NDArray[np.float32] | None]:
        """Split the fleet's scores into those of these TLs, [n] each; None for a TL without scores.

        All are None if the response has no scores of the fleet's size: an action does not depend on them.
        """
        row = messages.scores_of(scores, sum(columns.stop - columns.start for columns in self.scores.values()))
        return {tl: row[self.scores[tl]] if row is not None and tl in self.scores else None for tl in tls}
