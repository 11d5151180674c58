"""Activations of actors, each in NumPy (for the parity check) and in TensorFlow."""

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
LEAKY_RELU_SLOPE = 0.2
"""The default of TensorFlow and Keras."""

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
    "leaky_relu": lambda x: np.where(x > 0, x, LEAKY_RELU_SLOPE * x),
    "gelu": lambda x: np.asarray(0.5 * x * (1.0 + _erf(x / np.sqrt(2.0)))),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0.0))),
    "linear": lambda x: x,
}
"""As TensorFlow and Keras define them (exact gelu)."""
ACTIVATIONS = tuple(NUMPY)


def tensorflow(kind: str) -> Callable[[Any], Any]:
    """The TensorFlow operation of an activation."""
    import tensorflow as tf

    # explicit slope: TensorFlow's default may change
    special = {"leaky_relu": lambda x: tf.nn.leaky_relu(x, LEAKY_RELU_SLOPE), "linear": tf.identity}
    operation: Callable[[Any], Any] = special.get(kind) or getattr(tf.nn, kind)
    return operation
