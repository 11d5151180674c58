"""Residual actors with batch norms as Keras models, and the HDF5 layout of Keras 2."""

import h5py
import tensorflow as tf
from keras.src.legacy.saving import legacy_h5_format


def block(x, units, activation, bias):
    x = tf.keras.layers.BatchNormalization(epsilon=1e-5)(x)
    x = tf.keras.layers.Activation(activation)(x)
    return tf.keras.layers.Dense(units, use_bias=bias)(x)


def bn_elu_res(inputs, sizes, outputs):
    x = observation = tf.keras.Input((inputs,))
    x = tf.keras.layers.Dense(sizes[0])(x)
    x = block(x, sizes[1], "elu", True)
    for n in sizes[1:]:
        y = x
        for _ in range(3):
            y = block(y, n, "elu", True)
        x = x + y
    return tf.keras.Model(observation, tf.keras.layers.Activation("tanh")(block(x, outputs, "elu", True)))


def bn_tanh_bottleneck(inputs, sizes, outputs):
    x = observation = tf.keras.Input((inputs,))
    x = tf.keras.layers.Dense(sizes[0], "tanh")(x)
    x = block(x, sizes[1], "tanh", False)
    for n in sizes[1:]:
        y = x
        for units in (n // 4, n // 4, n):
            y = block(y, units, "tanh", False)
        x = x + y
    return tf.keras.Model(observation, tf.keras.layers.Activation("tanh")(block(x, outputs, "tanh", True)))


class Block(tf.keras.layers.Layer):
    """A block as a layer of its own, as subclassed models have it."""

    def __init__(self, units, activation, bias=True):
        super().__init__()
        self.norm = tf.keras.layers.BatchNormalization(epsilon=1e-5)
        self.activation = tf.keras.layers.Activation(activation)
        self.dense = tf.keras.layers.Dense(units, use_bias=bias)

    def call(self, x):
        return self.dense(self.activation(self.norm(x)))


class Subclassed(tf.keras.Model):
    """bn-elu-res without defined inputs; its attributes are not in alphabetical order."""

    def __init__(self, sizes, outputs):
        super().__init__()
        self.start = tf.keras.layers.Dense(sizes[0])
        self.first = Block(sizes[1], "elu")
        self.body = 3 * (len(sizes) - 1)
        for k in range(self.body):
            setattr(self, f"body_{k}", Block(sizes[1], "elu"))
        self.end = Block(outputs, "elu")

    def call(self, x):
        x = self.first(self.start(x))
        for k in range(0, self.body, 3):
            y = x
            for j in range(k, k + 3):
                y = getattr(self, f"body_{j}")(y)
            x = x + y
        return tf.tanh(self.end(x))


def legacy_h5(path, model):
    """Keras 2's layout, through the code of Keras that still writes it."""
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, model)
