"""Activations of actors, each in NumPy (for the parity check) and in TensorFlow."""

import argparse
from collections.abc import Callable, Sequence
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
LEAKY_RELU = "leaky_relu"
SLOPES = {0.2: "a function of TensorFlow or Keras", 0.3: "a Keras layer", 0.01: "PyTorch's"}
"""Libraries' defaults for leaky_relu; its name here has the slope, such as leaky_relu:0.01."""
MODELS_SLOPE = 0.2
"""Slope in exported models whose steps name leaky_relu alone."""

_erf = np.vectorize(erf, otypes=[np.float64])


def _sigmoid(x: Floats) -> Floats:
    # with tanh, because exp overflows far below 0
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def softmax(x: Floats) -> Floats:
    """Probabilities of logits, both [n, choices]."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


NUMPY: dict[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "tanh": np.tanh,
    "gelu": lambda x: np.asarray(0.5 * x * (1.0 + _erf(x / np.sqrt(2.0)))),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0.0))),
    "linear": lambda x: x,
}
"""As TensorFlow and Keras define them (exact gelu)."""
ACTIVATIONS = (*NUMPY, *(f"{LEAKY_RELU}:{slope:g}" for slope in SLOPES))
"""Those that are tried on a trainer's graph; leaky_relu may have any other slope, too."""
NAMES = f"{', '.join(NUMPY)}, {LEAKY_RELU}:SLOPE (PyTorch's is 0.01)"


def refusal(kind: str, others: Sequence[str] = ()) -> str:
    """Why a name is not one of an activation; "" if it is. `others`: further names that are permitted."""
    if kind == LEAKY_RELU:
        defaults = ", ".join(f"{slope:g} as {source}" for slope, source in SLOPES.items())
        return f"{kind} has no slope ({defaults}); write that of training, such as {kind}:0.2"
    is_known = kind in NUMPY or kind in others or slope_of(kind) is not None
    return "" if is_known else f"{kind!r} is not one of {', '.join([NAMES, *others])}"


def argument(text: str) -> str:
    """The activation of a flag; leaky_relu alone is one, because a checkpoint's source may define the slope."""
    if text != LEAKY_RELU and (reason := refusal(text)):
        raise argparse.ArgumentTypeError(reason)
    return text


def slope_of(kind: str) -> float | None:
    """The slope of a leaky_relu. `None` for other activations."""
    name, _, text = kind.partition(":")
    if name != LEAKY_RELU:
        return None
    try:
        slope = float(text) if text else MODELS_SLOPE
    except ValueError:
        return None
    return slope if 0 <= slope <= 1 else None


def numpy(kind: str) -> Callable[[Floats], Floats]:
    """The NumPy function of an activation."""
    slope = slope_of(kind)
    return NUMPY[kind] if slope is None else lambda x: np.where(x > 0, x, slope * x)


def tensorflow(kind: str) -> Callable[[Any], Any]:
    """The TensorFlow operation of an activation."""
    import tensorflow as tf

    slope = slope_of(kind)
    if slope is not None:
        return lambda x: tf.nn.leaky_relu(x, slope)
    operation: Callable[[Any], Any] = tf.identity if kind == "linear" else getattr(tf.nn, kind)
    return operation
