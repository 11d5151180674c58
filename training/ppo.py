"""Proximal policy optimisation (Schulman et al. 2017, clipped), in TensorFlow; in reading order:

    gae            advantages of decisions that last unequally long
    minibatches    the decisions of an epoch in even parts
    clipped_loss   policy loss, value loss, entropy and diagnostics of a minibatch
    Adam, RowAdam  optimisers with clipped gradients, of networks that learn together and of rows that learn apart
    Learner        the update: epochs of minibatches, each one step of the actors' and of the critics' optimiser

Networks have one or more rows, which learn beside each other and independently.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from training.settings import PpoConfig
from training.statistics import STEP, NotFinite, UpdateStatistics, explained_variance
from training.transitions import Float32s

Batch = Mapping[str, NDArray[Any]]
"""A row's decisions, by name [N, ...]: the networks' inputs; action; log_p of it, by the policy that chose it;
advantage; target of the critic; and value, the critic's estimate then."""
Tensors = dict[str, tf.Tensor]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-7
"""Keras' defaults of Adam (Kingma and Ba 2015)."""


def gae(
    reward: NDArray[Any], value: NDArray[Any], ticks: NDArray[Any], gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Generalised advantage estimates [T] (Schulman et al. 2016).

    A decision of n ticks discounts what follows it by gamma^n (a semi-Markov decision process: Sutton, Precup and
    Singh 1999).

    Args:
        reward: [T], of each decision.
        value: [T + 1], before each decision and after the last one.
        ticks: [T], duration of each decision, in the unit for which gamma and gae_lambda apply once.
        gamma: discount factor.
        gae_lambda: weight of the estimates that look further.
    """
    discount = gamma**ticks
    delta = reward + discount * value[1:] - value[:-1]
    decay = (discount * gae_lambda**ticks).tolist()
    advantages = delta.tolist()
    for k in reversed(range(len(advantages) - 1)):
        advantages[k] += decay[k] * advantages[k + 1]
    return np.array(advantages)


def minibatches(sizes: Sequence[int], max_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], Float32s]:
    """An epoch's (indices of decisions, weights: 1, or 0 for padding), both [steps, rows, B].

    Each row's decisions are shuffled, and split into as few parts of at most `max_size` as possible, whose sizes differ
    by at most one: a step with one decision would count as much as a full one.

    Args:
        sizes: by row, its number of decisions.
        max_size: the most decisions of a row in a minibatch.
        rng: draws the order.
    """
    parts = [np.array_split(rng.permutation(size), max(1, -(-size // max_size))) for size in sizes]
    shape = max(map(len, parts)), len(sizes), max(len(own[0]) for own in parts)
    indices, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row, own in enumerate(parts):
        for step, part in enumerate(own):
            indices[step, row, : len(part)] = part
            weights[step, row, : len(part)] = 1
    return indices, weights


def clipped_loss(
    log_p: tf.Tensor, entropy: tf.Tensor, value: tf.Tensor, decisions: Tensors, weight: tf.Tensor, clip: float
) -> list[tf.Tensor]:
    """Means over a minibatch, by row [rows]: policy loss, value loss, -entropy, approximate KL divergence
    (http://joschu.net/blog/kl-approx.html) and clip fraction.

    Args:
        log_p: [rows, B], of the actions, by the policy that learns.
        entropy: [rows, B], of this policy.
        value: [rows, B], by the critic that learns.
        decisions: log_p, advantage and target of the batch, [rows, B].
        weight: [rows, B], 0 for padding.
        clip: bound of the ratio of new and old probabilities, 1 +- clip.
    """
    share = weight / tf.maximum(tf.reduce_sum(weight, 1, keepdims=True), 1.0)
    log_ratio = log_p - decisions["log_p"]
    ratio = tf.exp(log_ratio)
    clipped = tf.clip_by_value(ratio, 1 - clip, 1 + clip)
    gain = tf.minimum(ratio * decisions["advantage"], clipped * decisions["advantage"])
    error = (value - decisions["target"]) ** 2
    is_clipped = tf.cast(tf.abs(ratio - 1) > clip, tf.float32)
    return [tf.reduce_sum(share * term, 1) for term in (-gain, error, -entropy, ratio - 1 - log_ratio, is_clipped)]


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
        squares = [tf.reduce_sum(tf.reshape(gradient, (tf.shape(gradient)[0], -1)) ** 2, 1) for gradient in gradients]
        norms = tf.sqrt(tf.add_n(squares))
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


def _by_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Reshape one value per row [rows] so that it broadcasts over an array [rows, ...]."""
    return tf.reshape(values, (-1, *([1] * (len(like.shape) - 1))))


class Learner(ABC):
    """Updates actors and critics, which are TensorFlow variables."""

    specs: Mapping[str, tf.TensorSpec]
    """By name, the networks' inputs and the actions: [rows, N, ...]."""
    shared_specs: Mapping[str, tf.TensorSpec] = {}
    """By name, arrays that all decisions share."""

    def __init__(self, ppo: PpoConfig, variables: list[tf.Variable], optimisers: Sequence[Adam | RowAdam]) -> None:
        """Prepare the update.

        Args:
            ppo: hyperparameters.
            variables: in the order of `arrays`.
            optimisers: of the actors' variables, and of the critics'. Each clips gradients and counts steps: the
                critic's large early errors must not shrink the actor's steps, and cloning updates the actor alone.
        """
        self.ppo, self.variables, self.optimisers = ppo, variables, optimisers
        self.rows = optimisers[0].rows
        self.sharpness, self._entropy_weight = (tf.Variable(x, trainable=False) for x in (1.0, 0.0))
        by_row = tf.TensorSpec([self.rows, None], tf.float32)
        columns = dict.fromkeys(("log_p", "advantage", "target", "value"), by_row)
        self.data_specs = [{**self.specs, **columns}, dict(self.shared_specs)]
        indices, weights = (tf.TensorSpec([None, self.rows, None], kind) for kind in (tf.int32, tf.float32))
        self._run = tf.function(self._steps, input_signature=[*self.data_specs, indices, weights])

    @abstractmethod
    def outputs(self, decisions: Tensors, shared: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(log-probabilities of the actions, entropies of the policy, values), each [rows, B], of a minibatch."""

    def trace(self) -> None:
        """Trace the graph of an update, which takes seconds; otherwise the first update does."""
        self._run.get_concrete_function()

    @property
    def arrays(self) -> list[Float32s]:
        """The networks' weights."""
        return [variable.numpy() for variable in self.variables]

    def learn(
        self, batches: Sequence[Batch | None], rng: np.random.Generator, progress: float, shared: Batch | None = None
    ) -> UpdateStatistics:
        """Update every row that has a batch, at least one. Raises NotFinite.

        Args:
            batches: by row.
            rng: draws the order of the decisions.
            progress: share of the training in [0, 1], for the schedules of learning rate, entropy bonus and sharpness.
            shared: arrays that all decisions share.
        """
        self.set_schedules(self.ppo.learning_rate_at(progress), self.ppo.sharpness(progress))
        self._entropy_weight.assign(self.ppo.entropy_at(progress))
        sizes = [0 if batch is None else len(batch["target"]) for batch in batches]
        epochs = [minibatches(sizes, self.ppo.minibatch, rng) for _ in range(self.ppo.n_epochs)]
        indices, weights = (np.concatenate(arrays) for arrays in zip(*epochs, strict=True))
        values = self._run(*self.tensors(batches, shared), indices, weights).numpy()
        steps = dict(zip(STEP, np.moveaxis(values, -1, 0), strict=True))
        losses = [steps[name] for name in steps if name.endswith("_loss")]
        if not all(np.isfinite(array).all() for array in (*losses, *self.arrays)):
            raise NotFinite("a loss or a weight is not finite; train with a lower --learning-rate")
        explained = explained_variance([(batch["value"], batch["target"]) for batch in batches if batch is not None])
        return {"decisions": sum(sizes), "explained_variance": explained, **_means(steps, self.ppo.n_epochs)}

    def set_schedules(self, learning_rate: float, sharpness: float) -> None:
        """Set what changes in a training, apart from the entropy bonus."""
        for optimiser in self.optimisers:
            optimiser.learning_rate.assign(learning_rate)
        self.sharpness.assign(sharpness)

    def tensors(self, batches: Sequence[Batch | None], shared: Batch | None) -> tuple[Tensors, Tensors]:
        """(the columns of all rows' decisions, padded to the most decisions [rows, N, ...]; the shared arrays)."""
        by_row = {row: batch for row, batch in enumerate(batches) if batch is not None}
        size = max(len(batch["target"]) for batch in by_row.values())
        columns = {}
        for name, sample in next(iter(by_row.values())).items():
            padded = np.zeros((len(batches), size, *sample.shape[1:]), sample.dtype)
            for row, batch in by_row.items():
                padded[row, : len(batch[name])] = batch[name]
            columns[name] = tf.constant(padded)
        return columns, {name: tf.constant(array) for name, array in (shared or {}).items()}

    def _steps(self, columns: Tensors, shared: Tensors, indices: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Run all steps, until no row is active; return STEP of each, [steps, rows, 8].

        In the graph: a call for each step would take twice the time.
        """
        step, steps, is_active = tf.constant(0), tf.shape(indices)[0], tf.ones(self.rows)
        statistics = tf.TensorArray(tf.float32, steps, element_shape=(self.rows, len(STEP)))
        while step < steps and tf.reduce_any(is_active > 0):
            values, is_active = self._step(taken(columns, indices[step]), shared, weights[step], is_active)
            statistics = statistics.write(step, values)
            step += 1
        return statistics.stack()

    def _step(
        self, decisions: Tensors, shared: Tensors, weight: tf.Tensor, is_active: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Learn from a minibatch; return (STEP [rows, 8], 1 for rows that are still active [rows])."""
        with tf.GradientTape() as tape:
            terms = clipped_loss(*self.outputs(decisions, shared), decisions, weight, self.ppo.clip_range)
            policy_loss, value_loss, entropy_loss, approx_kl, _ = terms
            loss = tf.reduce_sum(policy_loss + self.ppo.vf_coef * value_loss + self._entropy_weight * entropy_loss)
        parts = [optimiser.trained for optimiser in self.optimisers]
        gradients = tape.gradient(loss, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        count = tf.reduce_sum(weight, 1)
        # a row whose KL divergence is too large does not make this step, and no further one
        still_active = is_active * tf.cast(approx_kl <= self.ppo.max_kl, tf.float32)
        learns = still_active * tf.cast(count > 0, tf.float32)
        norms = [optimiser.step(own, learns) for optimiser, own in zip(self.optimisers, gradients, strict=True)]
        return tf.stack([count * is_active, *terms, *norms], 1), still_active

    def state(self) -> list[NDArray[Any]]:
        """The state to resume from: weights, then the optimisers' moments and step counts."""
        return [variable.numpy() for variable in self._state_variables()]

    def restore(self, state: Sequence[NDArray[Any]]) -> None:
        """Set the state that `state` returned. Raises ValueError for another one."""
        for variable, array in zip(self._state_variables(), state, strict=True):
            variable.assign(array)

    def _state_variables(self) -> list[Any]:
        return [*self.variables, *(variable for optimiser in self.optimisers for variable in optimiser.variables)]


def taken(columns: Tensors, indices: tf.Tensor) -> Tensors:
    """Columns [rows, B, ...] of the decisions with these indices [rows, B]."""
    return {name: tf.gather(column, indices, axis=1, batch_dims=1) for name, column in columns.items()}


def _means(steps: Mapping[str, Float32s], epochs: int) -> dict[str, float]:
    """Means over the decisions; the KL divergence is the mean over each row's last epoch.

    Args:
        steps: by name of STEP, its value in each step and row [steps, rows].
        epochs: number of epochs.
    """
    count = steps["decisions"]
    epoch = np.repeat(np.arange(1, epochs + 1), len(count) // epochs)[:, None] * (count > 0)
    weights = {"approx_kl": count * (epoch == epoch.max(0))}
    names = [name for name in steps if name != "decisions"]
    return {name: float(np.average(steps[name], weights=weights.get(name, count))) for name in names}
