"""The TensorFlow operations of `phase_competition`, for exported models and for the training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.actors.phase_competition import (
    CAPS,
    EXIT_BLOCKED,
    EXIT_OCCUPANCY,
    FULL_OCCUPANCY,
    GREEN_TIME_CAP,
    GREEN_TIME_SCALE_S,
    GREEN_UNITS,
    GREENS_SCALE,
    HALTING,
    JUNCTION_RANKS,
    LANE_UNITS,
    LANES_SCALE,
    MASKED_BELOW,
    MAX_RED_S,
    MIN_BLOCKED_SHARE,
    MIN_LOG_PROBABILITY,
    MIN_RELATIVE_SPEED,
    NEAR,
    RED,
    SCALES,
    SHAPES,
    SHARE_TOLERANCE,
    SOON,
    SPEED,
    STUCK_S,
    TOTAL_WAIT,
)
from signals.approach_features import FEATURES

PADDING_SCORE = -1e9
"""Score of a green that is padding."""
Junction = Mapping[str, Any]
"""By part of `JUNCTION_RANKS`, a tensor of n junctions: [n, P, L] and so on."""


def logits(x: Any, weights: Mapping[str, Any], networks: int) -> Any:
    """Logits [B, P] of observations [B, O] of a junction, or [n, B, P] of n junctions' [n, B, O].

    Inside, a tensor of lanes is [n, L, B, ...] and one of greens is [n, P, B, ...]. So each matrix product has two or
    three
    axes and none that is broadcast: TensorFlow 2.20 crashed with others on a CPU (oneDNN).
    """
    shared = {name: tf.unstack(tf.reshape(weights[name], (networks, *shape))) for name, shape in SHAPES.items()}
    is_single = len(x.shape) == 2
    x = x[None] if is_single else x
    junction = {name: _of_each(weights[name], rank, x.shape[0]) for name, rank in JUNCTION_RANKS.items()}
    greens, lanes = junction["protected"].shape[1:]
    n, batch = x.shape[0], tf.shape(x)[1]
    current = tf.transpose(x[..., :greens], [0, 2, 1])
    features = tf.reshape(x[..., greens + 2 :], [n, batch, lanes, len(FEATURES)])
    features = tf.transpose(features, [0, 2, 1, 3])
    green_s = x[..., greens + 1]
    lane_x, green_x = _inputs(junction, current, green_s, features)
    log_p = 0.0
    for k in range(networks):
        y = scores([shared[name][k] for name in SHAPES], junction, lane_x, green_x)
        log_p += tf.maximum(tf.nn.log_softmax(y, 1), MIN_LOG_PROBABILITY)
    result = tf.transpose(_masked(log_p, junction, current, green_s, features), [0, 2, 1])
    return result[0] if is_single else result


def _of_each(part: Any, rank: int, n: int) -> Any:
    """A junction's part as [n, ...]: a single model has no first axis, and a fleet stores a part that is equal for all
    once."""
    part = part[None] if part.shape.rank == rank else part
    return part if part.shape[0] == n else tf.repeat(part, n, 0)


def _inputs(junction: Junction, current: Any, green_s: Any, features: Any) -> tuple[Any, Any]:
    """As `phase_competition.inputs`. `current`: [n, P, B], `green_s`: [n, B], `features`: [n, L, B, features]."""
    is_root = tf.constant(np.arange(len(FEATURES)) == TOTAL_WAIT)
    rooted = tf.where(is_root, tf.sqrt(tf.maximum(features, 0.0)), features)
    scaled = tf.minimum(rooted * tf.constant(1 / SCALES, tf.float32), tf.constant(CAPS, tf.float32))
    now = [tf.linalg.matmul(junction[name], current, transpose_a=True) for name in ("protected", "permissive")]
    constants = [_repeated(junction["lanes"][..., k][..., None], now[0]) for k in range(junction["lanes"].shape[-1])]
    lane_x = tf.concat([scaled, *(values[..., None] for values in (*now, *constants))], -1)
    columns = [
        current,
        current * tf.minimum(green_s / GREEN_TIME_SCALE_S, GREEN_TIME_CAP)[:, None],
        tf.linalg.matmul(junction["change"], current, transpose_a=True),
        tf.linalg.matmul(junction["kept"], current, transpose_a=True),
        _repeated((tf.reduce_sum(junction["green_mask"], 1, keepdims=True) / GREENS_SCALE)[..., None], current),
        _repeated(junction["interval"][..., None], current),
    ]
    return lane_x, tf.stack(columns, -1)


def encode(network: Sequence[Any], junction: Junction, lane_x: Any, green_x: Any) -> tuple[Any, Any]:
    """As `phase_competition.encode`: (e [n, P, B, units], c [n, B, units]).

    `lane_x`: [n, L, B, inputs], `green_x`: [n, P, B, inputs].
    """
    k1, b1, k2, b2, k3, b3 = network[:6]
    f = _dense(_dense(lane_x, k1, b1), k2, b2) * junction["lane_mask"][..., None, None]
    served = junction["protected"] + junction["permissive"]
    partial = tf.cast((served > 0.01) & (served < 0.99), tf.float32)
    shares = tf.concat([junction["protected"], junction["permissive"], partial], 1)
    shape = tf.shape(f)
    sums = tf.linalg.matmul(shares, tf.reshape(f, [shape[0], shape[1], shape[2] * LANE_UNITS]))
    sums = tf.split(tf.reshape(sums, [shape[0], tf.shape(shares)[1], shape[2], LANE_UNITS]), 3, 1)
    e = _dense(tf.concat([*sums, green_x], -1), k3, b3) * junction["green_mask"][..., None, None]
    current = tf.reduce_sum(green_x[..., :1] * e, 1)
    mean = tf.reduce_sum(e, 1) / tf.reduce_sum(junction["green_mask"], 1)[:, None, None]
    return e, tf.concat([current, mean, tf.reduce_max(e, 1), tf.reduce_sum(f, 1) / LANES_SCALE], -1)


def scores(network: Sequence[Any], junction: Junction, lane_x: Any, green_x: Any) -> Any:
    """As `phase_competition.scores`: [n, P, B]."""
    e, c = encode(network, junction, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    own = _dense(e, k4[:GREEN_UNITS], b4, is_last=True)
    whole = _dense(c, k4[GREEN_UNITS:], tf.zeros_like(b4), is_last=True)
    y = _dense(tf.nn.relu(own + whole[:, None]), k5, b5, is_last=True)[..., 0]
    return tf.where(_repeated(junction["green_mask"][..., None], y) > 0, y, PADDING_SCORE)


def value(network: Sequence[Any], junction: Junction, lane_x: Any, green_x: Any) -> Any:
    """A critic's value [n, B] of the junction."""
    _, c = encode(network, junction, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    return _dense(_dense(c, k4, b4), k5, b5, is_last=True)[..., 0]


def _dense(x: Any, kernel: Any, bias: Any, is_last: bool = False) -> Any:
    """A layer over the last axis, with ReLU unless it is the last one."""
    y = tf.nn.bias_add(tf.linalg.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel), bias)
    return tf.reshape(y if is_last else tf.nn.relu(y), tf.concat([tf.shape(x)[:-1], [kernel.shape[1]]], 0))


def _masked(log_p: Any, junction: Junction, current: Any, green_s: Any, features: Any) -> Any:
    """Lower the logits of the greens that `phase_competition.greens_allowed` forbids. Arguments: as for `_inputs`."""
    is_current = tf.cast(current > 0, tf.float32)
    shares = junction["protected"] + junction["permissive"]
    serves = tf.cast(shares > 0, tf.float32)
    is_full = (features[..., EXIT_BLOCKED] > MIN_BLOCKED_SHARE) & (features[..., EXIT_OCCUPANCY] > FULL_OCCUPANCY)
    served_now = tf.linalg.matmul(serves, is_current, transpose_a=True) > 0
    moves_now = served_now & (features[..., SPEED] >= MIN_RELATIVE_SPEED)
    waits = tf.cast((features[..., HALTING] > 0) & ~is_full & ~moves_now, tf.float32)
    waiting_s = features[..., RED] * waits * tf.reduce_max(serves, 1)[..., None]
    longest = tf.one_hot(tf.argmax(waiting_s, 1), waiting_s.shape[1], axis=1)
    is_late = tf.reduce_max(waiting_s, 1, keepdims=True) >= MAX_RED_S
    served = tf.linalg.matmul(shares, longest)
    serves_most = (served > 0) & (served >= tf.reduce_max(served, 1, keepdims=True) - SHARE_TOLERANCE)
    following = tf.reduce_sum(is_current * tf.linalg.matmul(junction["following"], longest), 1, keepdims=True)
    # tf.equal: in a plain graph, == on tensors compares the objects, and is False
    follows = tf.equal(tf.range(shares.shape[1], dtype=tf.float32)[None, :, None], following)
    follows &= junction["green_mask"][..., None] > 0
    is_served_now = tf.reduce_any(served_now & (longest > 0), 1, keepdims=True)
    serves_longest = (is_served_now & follows) | (~is_served_now & serves_most)
    is_near = features[..., NEAR] > 0
    arrives = features[..., SOON] > 0
    moves, fills, moves_others, serves_any = (
        tf.linalg.matmul(serves, tf.cast(lanes, tf.float32)) > 0
        for lanes in (is_near & ~is_full, is_near & is_full, is_near & ~is_full & ~served_now, is_near | arrives)
    )
    only_fills = fills & ~moves & tf.reduce_any(moves, 1, keepdims=True)
    allowed = (is_late & serves_longest) | (~is_late & ~only_fills)
    moves_others &= allowed
    is_stuck = tf.reduce_any(served_now & is_near, 1, keepdims=True) & ~tf.reduce_any(moves_now, 1, keepdims=True)
    is_stuck &= (green_s[:, None] >= STUCK_S) & tf.reduce_any(moves_others, 1, keepdims=True)
    allowed = (is_stuck & moves_others) | (~is_stuck & allowed)
    allowed &= serves_any | ~tf.reduce_any(allowed & moves, 1, keepdims=True)
    lowered = tf.reduce_min(log_p, 1, keepdims=True) - MASKED_BELOW
    return tf.where(allowed, log_p, _repeated(lowered, log_p))


def _repeated(values: Any, like: Any) -> Any:
    """Repeat what a junction has for every row of the batch."""
    return values + tf.zeros_like(like)
