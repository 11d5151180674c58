"""How much the actions of equal actors may differ: float32 rounds in proportion to the scale of what is computed."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.actors import Actor
from export.actors.steps import Dense
from serving.contract import PROBABILITIES, Q_VALUES


def permitted_difference(tolerance: float, expected: NDArray[Any]) -> float:
    """A tolerance times the outputs' scale (at least 1), because float32's rounding error is relative."""
    return tolerance * max(1.0, float(np.abs(expected).max(initial=0.0)))


def logits(x: NDArray[np.float32], actor: Actor) -> NDArray[Any]:
    """[n, choices] logits of a categorical actor."""
    return replace(actor, scores=Q_VALUES).evaluate(x, categorical=True)


def rounding_of_actions(tolerance: float, x: NDArray[np.float32], actor: Actor) -> NDArray[Any]:
    """[n, A] changes of continuous actions if their logits, before a tanh, change by a tolerance times the logits'
    scale."""
    last = max((k for k, step in enumerate(actor.steps) if isinstance(step, Dense)), default=-1) + 1
    before: NDArray[Any] = x.astype(np.float64)
    branches: list[NDArray[Any]] = []
    for step in actor.steps[:last]:
        before = step.evaluate(before, branches)

    def actions(shift: float) -> NDArray[Any]:
        values, remaining = before + shift, list(branches)
        for step in actor.steps[last:]:
            values = step.evaluate(values, remaining)
        return values

    shift, middle = permitted_difference(tolerance, before), actions(0.0)
    return np.asarray(np.maximum(np.abs(actions(shift) - middle), np.abs(actions(-shift) - middle)))


def rounding(tolerance: float, x: NDArray[np.float32], actor: Actor, categorical: bool) -> NDArray[Any] | float:
    """The change of an actor's actions or probabilities if its logits change by a tolerance times their scale.

    Args:
        tolerance: relative change.
        x: [n, O] observations.
        actor: the actor.
        categorical: whether the actor is categorical.
    """
    if not categorical:
        return rounding_of_actions(tolerance, x, actor)
    return permitted_difference(tolerance, logits(x, actor)) if actor.scores == PROBABILITIES else 0.0
