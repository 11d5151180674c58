"""Actors and critics of the target TLs: one array per layer for all of them, so that one matrix product computes every
TL.

NumPy only: a simulation process needs no TensorFlow. Hidden layers have
ReLU, or tanh in a policy of another library that is continued. A
categorical actor outputs logits; a continuous one outputs the mean of a Gaussian through
tanh, and has a standard deviation that does not depend on the observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from training.transitions import Float32s

FIRST_LOG_STD = -0.7
"""Initial log standard deviation of continuous actions: a standard deviation of 0.5."""
ACTIVATIONS = ("relu", "tanh")
"""Activations of hidden layers that a training computes: relu in new actors, tanh in those of many libraries."""
MASKED_LOGIT = -1e9
"""Logit of a padded action, so that it is never chosen."""


@dataclass(frozen=True)
class ParameterLayout:
    """The row of each TL in the arrays, and the sizes without padding."""

    tls: tuple[str, ...]
    rows: tuple[int, ...]
    """By TL, in the order of `tls`; TLs that share an actor have the same row."""
    observation_sizes: tuple[int, ...]
    """By TL."""
    action_sizes: tuple[int, ...]
    """By TL."""
    is_categorical: bool
    hidden: tuple[int, ...]
    activation: str = "relu"
    """Activation of the hidden layers."""

    @property
    def row_count(self) -> int:
        return max(self.rows) + 1

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """bool [rows, A]: whether an output belongs to the row's actor, and is not padding."""
        mask = np.zeros((self.row_count, max(self.action_sizes)), bool)
        for row, size in zip(self.rows, self.action_sizes, strict=True):
            mask[row, :size] = True
        return mask

    def networks(self, arrays: Sequence[Float32s], sharpness: float) -> "ActorCritics":
        return ActorCritics(self, arrays, sharpness)


def layouts(
    contracts: Sequence[pb.PolicyContract], shared: bool, hidden: tuple[int, ...], activation: str = "relu"
) -> list[ParameterLayout]:
    """One layout for the categorical TLs and one for the continuous ones, in the contracts' order.

    Args:
        contracts: of the TLs.
        shared: TLs of the same observation and action size share one actor and critic.
        hidden: units of the hidden layers.
        activation: of the hidden layers.
    """
    result = []
    for is_categorical in (True, False):
        group = [contract for contract in contracts if (contract.action.kind == CATEGORICAL) is is_categorical]
        if not group:
            continue
        shapes = [(contract.observation.size, contract.action.size, contract.observation.dialect) for contract in group]
        distinct = list(dict.fromkeys(shapes))
        rows = tuple(map(distinct.index, shapes)) if shared else tuple(range(len(group)))
        tls = tuple(contract.tl for contract in group)
        observation_sizes, action_sizes, _ = zip(*shapes, strict=True)
        result.append(ParameterLayout(tls, rows, observation_sizes, action_sizes, is_categorical, hidden, activation))
    return result


class ActorCritics:
    """The networks of one layout."""

    def __init__(self, layout: ParameterLayout, arrays: Sequence[Float32s], sharpness: float = 1.0) -> None:
        """`arrays`: as `initial_arrays` returns them, trained or not.

        `sharpness`: factor of a categorical actor's logits (the inverse of the temperature); the larger it is, the more
        often the actor takes its best action.
        """
        self.layout, self.sharpness = layout, sharpness
        self.arrays = [np.asarray(array, np.float32) for array in arrays]
        self._mask = layout.action_mask
        self._row = dict(zip(layout.tls, layout.rows, strict=True))
        self._inputs = max(layout.observation_sizes)

    @staticmethod
    def initial_arrays(layout: ParameterLayout, rng: np.random.Generator) -> list[Float32s]:
        """Kernel [rows, in, out] and bias [rows, out] of the actor's layers, then of the critic's, then log_std [rows,
        A].

        Orthogonal kernels (Saxe et al. 2014), scaled by sqrt(2), the actor's last by 0.01 and the critic's last by 1.
        """
        arrays = []
        for is_actor in (True, False):
            outputs = max(layout.action_sizes) if is_actor else 1
            sizes = [max(layout.observation_sizes), *layout.hidden, outputs]
            for k, (n, m) in enumerate(pairwise(sizes)):
                gain = np.sqrt(2.0) if k < len(layout.hidden) else 0.01 if is_actor else 1.0
                kernels = np.zeros((layout.row_count, n, m), np.float32)
                for row in range(layout.row_count):
                    # without padding, which would take a share of the norm
                    inputs = layout.observation_sizes[layout.rows.index(row)] if k == 0 else n
                    kernels[row, :inputs] = gain * orthogonal(inputs, m, rng)
                arrays += [kernels, np.zeros((layout.row_count, m), np.float32)]
        arrays.append(np.full((layout.row_count, max(layout.action_sizes)), FIRST_LOG_STD, np.float32))
        return arrays

    def rows_of(self, tls: Sequence[str]) -> NDArray[np.intp]:
        """Rows [n] of TLs."""
        return np.array([self._row[tl] for tl in tls], np.intp)

    def inputs_of(self, observations: Sequence[Float32s], rows: NDArray[np.intp]) -> Float32s:
        """Stack observations as one array [n, O], padded with zeros."""
        x = np.zeros((len(observations), self._inputs), np.float32)
        for k, observation in enumerate(observations):
            x[k, : len(observation)] = observation
        return x

    def actor(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """Logits or tanh means [n, A] of observations [n, O]."""
        y = self._forward(0, rows, x)
        if not self.layout.is_categorical:
            return np.tanh(y)
        return np.where(self._mask[rows], self.sharpness * y, MASKED_LOGIT).astype(np.float32)

    def critic(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """Values [n] of observations [n, O]."""
        return self._forward(2 * (len(self.layout.hidden) + 1), rows, x)[:, 0]

    def sample(self, rows: NDArray[np.intp], x: Float32s, rng: np.random.Generator) -> tuple[Float32s, Float32s]:
        """Sample (actions, log probabilities [n]) for observations [n, O].

        Actions are indices [n, 1], or values [n, A] that are not clipped to [-1, 1].
        """
        y = self.actor(rows, x)
        if self.layout.is_categorical:
            log_p = y - np.log(np.exp(y - y.max(1, keepdims=True)).sum(1, keepdims=True)) - y.max(1, keepdims=True)
            action = (log_p + rng.gumbel(size=y.shape)).argmax(1)
            return action[:, None].astype(np.float32), log_p[np.arange(len(action)), action].astype(np.float32)
        log_std, mask = self.arrays[-1][rows], self._mask[rows]
        noise = rng.standard_normal(y.shape).astype(np.float32)
        log_p = ((-0.5 * noise**2 - log_std) * mask).sum(1)
        return (y + np.exp(log_std) * noise).astype(np.float32), log_p.astype(np.float32)

    def greedy_actions(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """The actions without exploration: the index of the largest logit [n, 1], or the means [n, A]."""
        y = self.actor(rows, x)
        return y.argmax(1)[:, None].astype(np.float32) if self.layout.is_categorical else y

    def layers_of(self, tl: str) -> list[tuple[Float32s, Float32s]]:
        """(kernel, bias) of each layer of a TL's actor, without padding and with the sharpness in the last layer."""
        k, row = self.layout.tls.index(tl), self._row[tl]
        count = len(self.layout.hidden) + 1
        layers = [(self.arrays[2 * i][row], self.arrays[2 * i + 1][row]) for i in range(count)]
        layers[0] = (layers[0][0][: self.layout.observation_sizes[k]], layers[0][1])
        size = self.layout.action_sizes[k]
        factor = np.float32(self.sharpness if self.layout.is_categorical else 1.0)
        layers[-1] = (factor * layers[-1][0][:, :size], factor * layers[-1][1][:size])
        return layers

    def _forward(self, first: int, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        is_all = len(rows) == self.layout.row_count and bool((rows == np.arange(len(rows))).all())
        count = len(self.layout.hidden) + 1
        activate = np.tanh if self.layout.activation == "tanh" else _relu
        if len(rows) > 1 and bool((rows == rows[0]).all()):
            # observations of one TL: one matrix product, without a copy of its kernel for each
            for k in range(count):
                x = x @ self.arrays[first + 2 * k][rows[0]] + self.arrays[first + 2 * k + 1][rows[0]]
                x = activate(x) if k + 1 < count else x
            return x
        y = x[:, None, :]
        for k in range(count):
            kernel, bias = self.arrays[first + 2 * k], self.arrays[first + 2 * k + 1]
            y = np.matmul(y, kernel if is_all else kernel[rows]) + (bias if is_all else bias[rows])[:, None]
            if k + 1 < count:
                y = activate(y)
        return y[:, 0]


def _relu(x: Float32s) -> Float32s:
    return np.maximum(x, 0)


def orthogonal(n: int, m: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A random kernel [n, m] with orthogonal rows or columns (Saxe et al. 2014)."""
    q, r = np.linalg.qr(rng.standard_normal((max(n, m), min(n, m))))
    q = q * np.sign(np.diag(r))
    return q if n >= m else q.T
