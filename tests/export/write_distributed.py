"""Trains under MirroredStrategy on two logical devices and writes what it trained in every format; a process of its
own.

Devices are set before TensorFlow starts, so no test can do this in the suite's own process.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras2

folder = Path(sys.argv[1])
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
X = np.random.default_rng(0).random((64, 9)).astype(np.float32)
expected = {}
(folder / "weights_h5").mkdir()
(folder / "whole").mkdir()


def build(keras):
    sizes = [(8, "relu"), (7, "relu"), (2, "tanh")]
    return keras.Sequential([keras.Input((9,)), *(keras.layers.Dense(n, a) for n, a in sizes)])


for name, keras in (("SA101", keras2), ("SA102", tf.keras)):
    keras.utils.set_random_seed(7)  # without it one run in a hundred trains an actor that gives the same for everything
    with strategy.scope():
        model = build(keras)
        model.compile(keras.optimizers.Adam(0.05), "mse")
        model.fit(X, np.ones((64, 2), np.float32), epochs=3, batch_size=32, verbose=0)
    checkpoint = tf.train.Checkpoint(actor=model, optimizer=model.optimizer, step=tf.Variable(3))
    tf.train.CheckpointManager(checkpoint, str(folder / "checkpoint"), max_to_keep=3, checkpoint_name=name).save(3)
    if keras is keras2:
        model.save_weights(str(folder / "weights_tf" / f"{name}_trial_3"))
        model.save_weights(str(folder / "weights_h5" / f"{name}_trial_3.h5"))
        model.save(str(folder / "saved_model" / f"{name}_trial_3"))
    else:
        model.save_weights(str(folder / "weights_h5" / f"{name}_trial_3.weights.h5"))
        model.export(str(folder / "saved_model" / f"{name}_trial_3"), verbose=False)
        model.save(str(folder / "whole" / f"{name}_trial_3.keras"))
    expected[name] = model.predict(X, verbose=0)

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    with strategy.scope():
        kernel = tf.compat.v1.get_variable("actor/dense/kernel", [9, 2])
        bias = tf.compat.v1.get_variable("actor/dense/bias", [2])

    def replica():
        return tf.tanh(tf.constant(X) @ kernel.read_value() + bias.read_value())

    outputs = strategy.experimental_local_results(strategy.run(replica))
    session.run(tf.compat.v1.global_variables_initializer())
    (folder / "tf1").mkdir()
    tf.compat.v1.train.Saver().save(session, str(folder / "tf1" / "SA103_trial_3"), write_state=False)
    expected["SA103"] = session.run(outputs[0])

np.savez(folder / "expected", **expected)
