"""Adam (Kingma and Ba 2015) with clipped gradients, of networks that learn together and of rows that learn apart."""

from collections.abc import Sequence

import tensorflow as tf

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-7
"""Keras' defaults."""


class Adam(tf.keras.optimizers.Adam):  # type: ignore[misc]
    """Keras' Adam of variables that learn together: one row."""

    rows = 1

    def __init__(self, trained: list[tf.Variable], max_norm: float) -> None:
        super().__init__(beta_1=BETA1, beta_2=BETA2, epsilon=EPSILON, global_clipnorm=max_norm)
        self.build(trained)
        self.trained = trained

    def step(self, gradients: Sequence[tf.Tensor], is_active: tf.Tensor) -> tf.Tensor:
        """Update if is_active [1] > 0; return the gradients' norm [1] before they are clipped."""
        if is_active[0] > 0:
            self.apply(gradients)
        return tf.linalg.global_norm(gradients)[None]


class RowAdam:
    """Adam of stacked arrays [rows, ...]: gradient norm, moments and step count are each row's own.

    A variable's `constraint` is applied after each step, as by Keras' optimisers.
    """

    def __init__(self, trained: list[tf.Variable], max_norm: float) -> None:
        self.trained, self.rows, self._max_norm = trained, trained[0].shape[0], max_norm
        self.learning_rate = tf.Variable(0.0, trainable=False)
        self._steps = tf.Variable(tf.zeros(self.rows), trainable=False)
        self._means, self._squares = ([tf.Variable(0 * v, trainable=False) for v in trained] for _ in range(2))
        self.variables = [*self._means, *self._squares, self._steps]

    def step(self, gradients: Sequence[tf.Tensor], is_active: tf.Tensor) -> tf.Tensor:
        """Update the rows with is_active [rows] > 0; return the gradients' norms [rows] before they are clipped."""
        norms = row_norms(gradients)
        factor = self._max_norm / tf.maximum(norms, self._max_norm)
        self._steps.assign_add(is_active)
        count = tf.maximum(self._steps, 1.0)
        rate = self.learning_rate * tf.sqrt(1 - BETA2**count) / (1 - BETA1**count) * is_active
        for variable, gradient, m, v in zip(self.trained, gradients, self._means, self._squares, strict=True):
            clipped, active = gradient * _by_row(factor, gradient), _by_row(is_active, gradient)
            m.assign_add(active * (1 - BETA1) * (clipped - m))
            v.assign_add(active * (1 - BETA2) * (clipped**2 - v))
            variable.assign_sub(_by_row(rate, gradient) * m / (tf.sqrt(v) + EPSILON))
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        return norms


def row_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The norm [rows] of each row of gradients [rows, ...] together."""
    squares = [tf.reduce_sum(tf.reshape(gradient, (tf.shape(gradient)[0], -1)) ** 2, 1) for gradient in gradients]
    return tf.sqrt(tf.add_n(squares))


def _by_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Reshape one value per row [rows] so that it broadcasts over an array [rows, ...]."""
    return tf.reshape(values, (-1, *([1] * (len(like.shape) - 1))))
