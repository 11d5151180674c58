"""An actor's steps in NumPy, float64: the reference of an exported model's parity check."""

from math import erf

import numpy as np
from numpy.typing import NDArray

from export.actors import Q_VALUES, Activation, Actor, BatchNorm, Branch, Clip, Dense, FirstChoice, Pad

Floats = NDArray[np.float64]

_erf = np.vectorize(erf, otypes=[np.float64])


def _sigmoid(x: Floats) -> Floats:
    # by tanh: exp would overflow far below 0
    sigmoid: Floats = 0.5 * (1.0 + np.tanh(0.5 * x))
    return sigmoid


def activate(kind: str, x: Floats) -> Floats:
    """An activation, as TensorFlow and Keras define it (leaky_relu with slope 0.2, exact gelu)."""
    match kind:
        case "relu":
            return np.maximum(x, 0.0)
        case "elu":
            return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))
        case "selu":
            return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0)))
        case "tanh":
            return np.tanh(x)
        case "leaky_relu":
            return np.where(x > 0, x, 0.2 * x)
        case "gelu":
            gelu: Floats = 0.5 * x * (1.0 + _erf(x / np.sqrt(2.0)))
            return gelu
        case "silu":
            return x * _sigmoid(x)
        case "sigmoid":
            return _sigmoid(x)
        case "softplus":
            return np.logaddexp(0.0, x)
        case "linear":
            return x
    raise ValueError(f"unknown activation {kind!r}")


def evaluate(actor: Actor, observations: NDArray[np.float32], categorical: bool) -> Floats:
    """[n, A] means, or [n, choices] probabilities or Q-values (`Actor.scores`) if the actor is categorical."""
    x: Floats = observations.astype(np.float64)
    open_branches: list[Floats] = []
    for step in actor.steps:
        if isinstance(step, Dense):
            x = x @ step.kernel.astype(np.float64)
            if step.bias is not None:
                x = x + step.bias
        elif isinstance(step, BatchNorm):
            x = (x - step.mean) / np.sqrt(step.variance.astype(np.float64) + step.epsilon)
            x = x if step.gamma is None else x * step.gamma
            x = x if step.beta is None else x + step.beta
        elif isinstance(step, Activation):
            x = activate(step.kind, x)
        elif isinstance(step, Branch):
            open_branches.append(x)
        elif isinstance(step, Clip):
            x = np.clip(x, step.low, step.high)
        elif isinstance(step, Pad):
            x = np.pad(x, ((0, 0), (0, step.size - step.own)))
        elif isinstance(step, FirstChoice):
            beyond = x[:, step.own :].max(axis=1, initial=-np.inf)
            x = np.column_stack([np.maximum(x[:, 0], beyond), x[:, 1 : step.own]])
        else:
            x = x + open_branches.pop()
    if not categorical or actor.scores == Q_VALUES:
        return x
    e = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities: Floats = e / e.sum(axis=1, keepdims=True)
    return probabilities
