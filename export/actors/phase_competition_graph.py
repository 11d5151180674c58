"""The TensorFlow operations of `phase_competition`, for exported models and for the training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.actors.phase_competition import (
    CAPS,
    GREEN_TIME_CAP,
    GREEN_TIME_SCALE_S,
    GREEN_UNITS,
    GREENS_SCALE,
    HALTING,
    LANES_SCALE,
    MASKED_BELOW,
    MAX_RED_S,
    MIN_LOG_PROBABILITY,
    RED,
    SCALES,
    SHAPES,
    TOTAL_WAIT,
)
from signals.approach_features import FEATURES

PADDING_SCORE = -1e9
"""Score of a green that is padding."""
Junction = Mapping[str, Any]
"""By part of `JUNCTION_PARTS`, a tensor [..., P, L] and so on."""


def logits(x: Any, weights: Mapping[str, Any], networks: int) -> Any:
    """The logits [..., B, P] of observations [..., B, O]: one junction, or n junctions with n as the first axis."""
    shared = {name: tf.unstack(tf.reshape(weights[name], (networks, *shape))) for name, shape in SHAPES.items()}
    # the axis before the last ones is the batch's
    matrices = ("protected", "permissive", "change", "kept", "lanes")
    junction = {name: tf.expand_dims(weights[name], -3) for name in matrices}
    junction |= {name: tf.expand_dims(weights[name], -2) for name in ("green_mask", "lane_mask", "interval")}
    greens, lanes = junction["protected"].shape[-2], junction["protected"].shape[-1]
    rest = x[..., greens + 2 :]
    features = tf.reshape(rest, tf.concat([tf.shape(rest)[:-1], [lanes, len(FEATURES)]], 0))
    lane_x, green_x = _inputs(junction, x[..., :greens], x[..., greens + 1], features)
    log_p = 0.0
    for k in range(networks):
        y = scores([shared[name][k] for name in SHAPES], junction, lane_x, green_x)
        log_p += tf.maximum(tf.nn.log_softmax(y), MIN_LOG_PROBABILITY)
    return _served_first(log_p, junction, features)


def _inputs(junction: Junction, current: Any, green_s: Any, features: Any) -> tuple[Any, Any]:
    """As `phase_competition.inputs`."""
    is_root = tf.constant(np.arange(len(FEATURES)) == TOTAL_WAIT)
    rooted = tf.where(is_root, tf.sqrt(tf.maximum(features, 0.0)), features)
    scaled = tf.minimum(rooted * tf.constant(1 / SCALES, tf.float32), tf.constant(CAPS, tf.float32))
    one = current[..., None, :]
    now = [tf.linalg.matrix_transpose(tf.linalg.matmul(one, junction[name])) for name in ("protected", "permissive")]
    lane_x = tf.concat([scaled, *now, _repeated(junction["lanes"], now[0])], -1)
    columns = [
        current,
        current * tf.minimum(green_s / GREEN_TIME_SCALE_S, GREEN_TIME_CAP)[..., None],
        tf.linalg.matmul(one, junction["change"])[..., 0, :],
        tf.linalg.matmul(one, junction["kept"])[..., 0, :],
        _repeated(tf.reduce_sum(junction["green_mask"], -1, keepdims=True) / GREENS_SCALE, current),
        _repeated(junction["interval"], current),
    ]
    return lane_x, tf.stack(columns, -1)


def encode(network: Sequence[Any], junction: Junction, lane_x: Any, green_x: Any) -> tuple[Any, Any]:
    """As `phase_competition.encode`."""
    k1, b1, k2, b2, k3, b3 = network[:6]
    f = tf.nn.relu(tf.linalg.matmul(lane_x, k1) + b1)
    f = tf.nn.relu(tf.linalg.matmul(f, k2) + b2) * junction["lane_mask"][..., None]
    served = junction["protected"] + junction["permissive"]
    partial = tf.cast((served > 0.01) & (served < 0.99), tf.float32)
    sums = [tf.linalg.matmul(shares, f) for shares in (junction["protected"], junction["permissive"], partial)]
    e = tf.nn.relu(tf.linalg.matmul(tf.concat([*sums, green_x], -1), k3) + b3) * junction["green_mask"][..., None]
    current = tf.reduce_sum(green_x[..., :1] * e, -2)
    mean = tf.reduce_sum(e, -2) / tf.reduce_sum(junction["green_mask"], -1, keepdims=True)
    return e, tf.concat([current, mean, tf.reduce_max(e, -2), tf.reduce_sum(f, -2) / LANES_SCALE], -1)


def scores(network: Sequence[Any], junction: Junction, lane_x: Any, green_x: Any) -> Any:
    """As `phase_competition.scores`."""
    e, c = encode(network, junction, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    z = tf.linalg.matmul(e, k4[:GREEN_UNITS]) + tf.linalg.matmul(c[..., None, :], k4[GREEN_UNITS:]) + b4
    y = tf.linalg.matmul(tf.nn.relu(z), k5)[..., 0] + b5
    return tf.where(_repeated(junction["green_mask"], y) > 0, y, PADDING_SCORE)


def value(network: Sequence[Any], junction: Junction, lane_x: Any, green_x: Any) -> Any:
    """A critic's value [...] of the junction."""
    _, c = encode(network, junction, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    return (tf.linalg.matmul(tf.nn.relu(tf.linalg.matmul(c, k4) + b4), k5) + b5)[..., 0]


def _served_first(log_p: Any, junction: Junction, features: Any) -> Any:
    """As `phase_competition.served_first`."""
    serves = tf.cast(junction["protected"] + junction["permissive"] > 0, tf.float32)
    is_halting = tf.cast(features[..., HALTING] > 0, tf.float32)
    waiting_s = features[..., RED] * is_halting * tf.reduce_max(serves, -2)
    longest = tf.one_hot(tf.argmax(waiting_s, -1), waiting_s.shape[-1])
    is_late = tf.reduce_max(waiting_s, -1, keepdims=True) >= MAX_RED_S
    serves_longest = tf.linalg.matmul(serves, longest[..., None])[..., 0] > 0
    masked = tf.reduce_min(log_p, -1, keepdims=True) - MASKED_BELOW
    return tf.where(is_late & ~serves_longest, _repeated(masked, log_p), log_p)


def _repeated(values: Any, like: Any) -> Any:
    """Repeat what a junction has for every row of the batch."""
    return values + tf.zeros_like(like)
