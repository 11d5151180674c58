"""Training output of many ages, each written by its real writer: TF1 sessions and Savers, Keras 2 and 3,
tf.train.Checkpoint.

Every writer takes a folder to write into and returns the actor's own actions for X.
"""

import contextlib
import itertools
import re

import numpy as np
import tensorflow as tf
import tf_keras as keras2

v1 = tf.compat.v1
X = np.random.default_rng(0).random((64, 9)).astype(np.float32)


def randomise(model, seed=1):
    """Float32Array and statistics as after a training: nothing at its initial value."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        name = variable.path if hasattr(variable, "path") else variable.name
        values = rng.standard_normal(variable.shape) * 0.3
        variable.assign(np.abs(values) + 0.5 if "variance" in name else values)
    return model


def actions(model):
    return np.asarray(model(X, training=False))


def sequential(keras, hidden="relu", head="tanh", sizes=(8, 7), outputs=2):
    layers = [keras.layers.Dense(n, hidden) for n in sizes]
    return randomise(keras.Sequential([keras.Input((9,)), *layers, keras.layers.Dense(outputs, head)]))


def functional(keras):
    """A residual wiring that is not a known architecture, with a norm whose epsilon is Keras's own."""
    x = observation = keras.Input((9,))
    x = y = keras.layers.Dense(8, "elu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.5)(x)
    x = keras.layers.Dense(8, "relu")(x)
    x = keras.layers.Add()([x, y])
    return randomise(keras.Model(observation, keras.layers.Dense(2, "tanh")(x)))


def subclassed(keras):
    class Actor(keras.Model):
        """No defined inputs; attributes in the order in which they are called, which is not that of their names."""

        def __init__(self):
            super().__init__()
            self.zeta = keras.layers.Dense(8, "relu")
            self.middle = keras.layers.Dense(7, "relu")
            self.alpha = keras.layers.Dense(2, "tanh")

        def call(self, x, training=False):
            return self.alpha(self.middle(self.zeta(x)))

    model = Actor()
    model(X)
    return randomise(model)


def tf1_agents(folder, name, scopes, *, hidden=tf.nn.relu, sharded=False, before_mean=lambda x: x):
    """PPO agents of one TF1 session: actor, critic, sampling, loss, slots, summaries and all. Returns actions by
    scope."""
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        v1.set_random_seed(1)
        losses, means = [], {}
        for k, scope in enumerate(scopes):
            observation = v1.placeholder(tf.float32, [None, 9], f"observation_{k}")
            action = v1.placeholder(tf.float32, [None, 2], f"action_{k}")
            advantage = v1.placeholder(tf.float32, [None], f"advantage_{k}")
            with tf.device(f"/cpu:{k % 2}" if sharded else None), v1.variable_scope(scope):
                x = before_mean(dense(observation, 16, "dense", hidden))
                x = dense(x, 8, "dense_1", hidden)
                mean = dense(x, 2, "dense_2", tf.tanh)
                log_std = v1.get_variable("log_std", [2], initializer=v1.zeros_initializer())
                sampled = mean + tf.exp(log_std) * tf.random.normal(tf.shape(mean))
                sampled = tf.clip_by_value(sampled, -1.0, 1.0, name="sampled")
                log_prob = -tf.reduce_sum(((action - mean) / tf.exp(log_std)) ** 2 + 2 * log_std, axis=1)
            with v1.variable_scope(re.sub("^", "Critic_", scope.replace("Actor", "").replace("actor", ""))):
                value = dense(dense(observation, 16, "dense", tf.nn.relu), 1, "dense_1", None)
            losses.append(-tf.reduce_mean(log_prob * advantage) + tf.reduce_mean(value**2))
            v1.summary.scalar(f"loss_{k}", losses[-1])
            means[scope] = (observation, mean)
        v1.train.AdamOptimizer().minimize(tf.add_n(losses), global_step=v1.train.get_or_create_global_step())
        session.run(v1.global_variables_initializer())
        v1.train.Saver(sharded=sharded).save(session, str(folder / name), write_state=False)
        held = {}
        for scope, (observation, mean) in means.items():
            feed = {observation: X}
            for node in session.graph.get_operations():
                if node.type == "Placeholder" and node.name.rsplit("/", 1)[-1].split("_")[0] in ("keep", "training"):
                    feed[node.outputs[0]] = 1.0 if "keep" in node.name else False
            held[scope] = session.run(mean, feed)
        return held


@contextlib.contextmanager
def session():
    """A TF1 session in a graph of its own, with an observation."""
    with tf.Graph().as_default(), v1.Session():
        yield v1.placeholder(tf.float32, [None, 9], "observation")


def dense(x, units, name, activation):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[1], units])
        bias = v1.get_variable("bias", [units], initializer=v1.random_normal_initializer(stddev=0.1))
        x = tf.nn.bias_add(tf.matmul(x, kernel), bias)
    return activation(x) if activation else x


def saved(folder, tensor, feed, name="SA101_trial_1", **options):
    """Initialise the variables of the default session, save them, and return a tensor's value. `options`: of save."""
    session = v1.get_default_session()
    session.run(v1.global_variables_initializer())
    v1.train.Saver().save(session, str(folder / name), write_state=False, **options)
    return session.run(tensor, feed)


def estimator(folder):
    """What an Estimator's saver writes: model.ckpt-N in shards beside a state file; the input is not a placeholder."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(X).repeat()).get_next()
        with v1.variable_scope("actor"):
            mean = dense(dense(x, 16, "dense", tf.nn.relu), 2, "dense_1", tf.tanh)
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(mean**2), global_step=step)
        scaffold = v1.train.Scaffold().finalize()
        session.run(scaffold.init_op)
        for _ in range(2):
            session.run(train)
            scaffold.saver.save(session, str(folder / "model.ckpt"), global_step=step)
        return session.run(mean)


class Agent(tf.Module):
    """Actor, critic and step side by side, actor's layers of plain variables."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(3)
        sizes = [9, 8, 2]
        self.w = [
            tf.Variable(rng.standard_normal(s).astype(np.float32), name="kernel") for s in itertools.pairwise(sizes)
        ]
        self.b = [tf.Variable(rng.standard_normal(n).astype(np.float32), name="bias") for n in sizes[1:]]

    @tf.function(input_signature=[tf.TensorSpec([None, 9], tf.float32)])
    def __call__(self, observation):
        return tf.tanh(tf.nn.relu(observation @ self.w[0] + self.b[0]) @ self.w[1] + self.b[1])


class Tampered(tf.Module):
    """An actor whose function does something else, too. `extra`: gives the output; its argument computes the action."""

    def __init__(self, extra):
        super().__init__()
        self.kernel = tf.Variable(tf.random.stateless_normal([9, 2], [1, 2]), name="kernel")
        self.extra = extra

    @tf.function(input_signature=[tf.TensorSpec([None, 9], tf.float32, "observation")], autograph=False)
    def act(self, observation):
        return self.extra(lambda: tf.tanh(tf.matmul(observation, self.kernel)))

    def save(self, checkpoints):
        tf.saved_model.save(self, str(checkpoints / "SA101_trial_1"), signatures={"serving_default": self.act})
        return checkpoints / "SA101_trial_1"


keras3 = tf.keras

# How a whole model is saved: the Keras that makes it, and what writes it into a folder.
WHOLE = {
    "keras 2 SavedModel": (keras2, lambda model, at: model.save(str(at / "SA101_trial_3"))),
    "keras 2 .keras": (keras2, lambda model, at: model.save(str(at / "SA101_trial_3.keras"))),
    "keras 2 .h5": (keras2, lambda model, at: model.save(str(at / "SA101_trial_3.h5"))),
    "keras 3 export": (keras3, lambda model, at: model.export(str(at / "SA101" / "3"), verbose=False)),
    "keras 3 tf.saved_model.save": (keras3, lambda model, at: tf.saved_model.save(model, str(at / "SA101" / "3"))),
    "keras 3 .keras": (keras3, lambda model, at: model.save(at / "SA101_trial_3.keras")),
    "keras 3 .h5": (keras3, lambda model, at: model.save(at / "SA101_trial_3.h5")),
}
