"""Observation and action spaces of a TL, by its policy contract."""

import math
from collections import Counter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction

from city.errors import first_line
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals import dialects
from signals.approach_features import LONGEST_RED_S, MAX_EXIT_OCCUPANCY, MAX_OCCUPANCY, REACH_M
from signals.policy import Action

NORMALISED = "block-maximum"
"""The contract's normalisation of values that are divided by the largest of their block."""
HIGHEST = {
    "phase": 1.0, "min_green": 1.0, "density": 1.0, "queue": 1.0, "occupancy": MAX_OCCUPANCY, "nearest": REACH_M,
    "since_green": LONGEST_RED_S, "exit_occupancy": MAX_EXIT_OCCUPANCY, "exit_queue": MAX_EXIT_OCCUPANCY,
    "exit_blocked": 1.0,
}  # fmt: skip
"""The highest value of a feature, by its kind; counts of vehicles, their times and their speeds have no bound."""
ROUNDING = 1e-5
"""How far a float32 value may exceed its bound because bounds of lanes are weighted by their shares."""


def observation_space(contract: pb.PolicyContract) -> spaces.Box:
    """float32 [O], from 0 on; with the bounds of each feature that has them.

    Values of the user's own dialects may be of any size.
    """
    features = contract.observation.features
    if contract.observation.dialect not in dialects.included_names():
        return spaces.Box(-np.inf, np.inf, (len(features),), np.float32)
    is_normalised = contract.observation.normalisation == NORMALISED
    highest = [1.0 if is_normalised else HIGHEST.get(feature.kind, math.inf) for feature in features]
    high = np.array(highest, np.float32)
    return spaces.Box(
        np.zeros(len(high), np.float32), np.where(high == 1, high, high * (1 + ROUNDING)).astype(np.float32)
    )


def action_space(contract: pb.PolicyContract) -> spaces.Discrete[Any] | spaces.Box:
    """An index of a choice, or values in [-1, 1]."""
    size = contract.action.size
    return spaces.Discrete(size) if contract.action.kind == CATEGORICAL else spaces.Box(-1.0, 1.0, (size,), np.float32)


def feature_names(contract: pb.PolicyContract) -> list[str]:
    """A name for each value of the observation, such as `phase[A0:1]`, `min_green[A0]` or `density[B0A0_1]`."""
    features = contract.observation.features
    counts = Counter((feature.kind, feature.signal_id, feature.lane_id) for feature in features)
    seen: Counter[tuple[str, str, str]] = Counter()
    result = []
    for feature in features:
        key = (feature.kind, feature.signal_id, feature.lane_id)
        place = feature.lane_id or feature.signal_id
        result.append(f"{feature.kind}[{place}:{seen[key]}]" if counts[key] > 1 else f"{feature.kind}[{place}]")
        seen[key] += 1
    return result


def checked_action(tl: str, space: "spaces.Discrete[Any] | spaces.Box", action: Any) -> Action:
    """An action as policies answer it. Raises InvalidAction."""
    given = action
    if isinstance(space, spaces.Discrete) and type(action) is int and 0 <= action < space.n:
        return np.array([float(action)])  # the usual case
    try:
        if isinstance(space, spaces.Box):
            action = np.asarray(action, space.dtype)
        is_valid = space.contains(action)
    except (TypeError, ValueError) as error:
        raise InvalidAction(f"action {given!r} of {tl} is not in its space {space}: {first_line(error)}") from None
    if not is_valid:
        raise InvalidAction(f"action {given!r} of {tl} is not in its space {space}; choose one of it")
    return np.atleast_1d(np.asarray(action, np.float64))
