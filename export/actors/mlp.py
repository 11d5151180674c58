"""`mlp`: dense layers with relu, then tanh (continuous) or softmax (categorical)."""

import numpy as np
from numpy.typing import NDArray

from export.checkpoints import Actor

Floats = NDArray[np.float64]


def evaluate(actor: Actor, observations: NDArray[np.float32], categorical: bool) -> Floats:
    """The actor in NumPy: [n, A] means in [-1, 1], or [n, choices] probabilities.

    The reference that an exported model is measured against: float64, and
    written apart from the code that writes the model.
    """
    x: Floats = observations.astype(np.float64)
    for k, layer in enumerate(actor.layers):
        x = x @ layer.kernel.astype(np.float64)
        if layer.bias is not None:
            x = x + layer.bias
        if k < len(actor.layers) - 1:
            x = np.maximum(x, 0.0)
    if not categorical:
        return np.tanh(x)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities: Floats = e / e.sum(axis=1, keepdims=True)
    return probabilities
