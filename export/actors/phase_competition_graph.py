"""The TensorFlow operations of `phase_competition`, for exported models and for the training.

Every tensor has an axis of rows first: a decision at a junction. So each matrix product has two or three axes and none
that is broadcast: TensorFlow 2.20 crashed with others on a CPU (oneDNN).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.actors.phase_competition import (
    CAPS,
    EXIT_BLOCKED,
    EXIT_OCCUPANCY,
    FIRST_WAIT,
    FULL_OCCUPANCY,
    GREEN_TIME_CAP,
    GREEN_TIME_SCALE_S,
    GREEN_UNITS,
    GREENS_SCALE,
    HALTING,
    JUNCTION_RANKS,
    LANES_SCALE,
    MASKED_BELOW,
    MAX_RED_S,
    MIN_BLOCKED_SHARE,
    NEAR,
    PADDING_SCORE,
    RED_CAP,
    RED_SCALE_S,
    SCALES,
    SHAPES,
    SHARE_TOLERANCE,
    SOON,
    STOOD_S,
    TOTAL_WAIT,
    Observed,
    Service,
)
from signals.approach_features import FEATURES, LONGEST_RED_S

Junction = Mapping[str, Any]
"""By part of `JUNCTION_RANKS`, a tensor of n junctions: [n, P, K] and so on."""


def logits(x: Any, weights: Mapping[str, Any]) -> Any:
    """Logits [B, P] of observations [B, O] of a junction, or [n, B, P] of n junctions' [n, B, O]."""
    network = [tf.reshape(weights[name], shape) for name, shape in SHAPES.items()]
    rows = tf.reshape(x, [-1, x.shape[-1]])
    junction = {name: _of_rows(weights[name], rank, tf.shape(rows)[0]) for name, rank in JUNCTION_RANKS.items()}
    greens, lanes = junction["protected"].shape[1], junction["links"].shape[1]
    begin = 2 * greens + 2
    observed = Observed(
        rows[:, :greens],
        rows[:, greens + 1],
        rows[:, greens + 2 : begin],
        tf.reshape(rows[:, begin:], [-1, lanes, len(FEATURES)]),
    )
    service = service_of(junction, observed)
    lane_x, green_x = _inputs(junction, observed, service)
    y = scores(network, junction, service, lane_x, green_x)
    log_p = tf.nn.log_softmax(y)
    lowered = tf.reduce_min(log_p, 1, keepdims=True) - MASKED_BELOW
    masked = tf.where(greens_allowed(junction, observed, service), log_p, lowered)
    return tf.reshape(masked, tf.concat([tf.shape(x)[:-1], [greens]], 0))


def _of_rows(part: Any, rank: int, rows: Any) -> Any:
    """A junction's part for every row: a single model has no first axis, a fleet stores an equal part once, and a
    request may have several rows of a junction."""
    part = part[None] if part.shape.rank == rank else part
    return tf.repeat(part, rows // part.shape[0], 0)


def service_of(junction: Junction, observed: Observed) -> Service:
    """As `phase_competition.service_of`."""
    first_s = observed.features[..., FIRST_WAIT][:, None]
    is_current = observed.current > 0
    had_time = ~is_current | (observed.green_s >= STOOD_S)[:, None]
    stood = had_time[..., None] & (first_s >= observed.since_s[..., None] + STOOD_S)
    not_its = tf.linalg.matmul(tf.cast(stood, tf.float32), junction["protected"], transpose_a=True) > 0
    links = tf.where(not_its, 0.0, junction["links"])
    links = tf.where(tf.reduce_any(links > 0, 2, keepdims=True), links, junction["links"])
    count = tf.maximum(tf.reduce_sum(links, 2), 1.0)[:, None]
    shares = [tf.linalg.matmul(junction[name], links, transpose_b=True) / count for name in ("protected", "permissive")]
    shown = junction["protected"] + junction["permissive"]
    red_s = tf.reduce_min(tf.where(shown > 0, observed.since_s[..., None], LONGEST_RED_S), 1)
    serves = tf.linalg.matmul(shown, junction["links"], transpose_b=True) > 0
    stands = tf.reduce_any(is_current[..., None] & serves & stood, 1)
    return Service(shares[0], shares[1], links * red_s[:, None], stands)


def _inputs(junction: Junction, observed: Observed, service: Service) -> tuple[Any, Any]:
    """As `phase_competition.inputs`."""
    current, features = observed.current, observed.features
    is_root = tf.constant(np.arange(len(FEATURES)) == TOTAL_WAIT)
    rooted = tf.where(is_root, tf.sqrt(tf.maximum(features, 0.0)), features)
    scaled = tf.minimum(rooted * tf.constant(1 / SCALES, tf.float32), tf.constant(CAPS, tf.float32))
    own = [
        tf.minimum(tf.reduce_max(service.red_s, 2) / RED_SCALE_S, RED_CAP),
        tf.cast(service.stands, tf.float32),
        *(tf.reduce_sum(current[..., None] * shares, 1) for shares in (service.protected, service.permissive)),
    ]
    lane_x = tf.concat([scaled, tf.stack(own, -1), junction["lanes"]], -1)
    greens = tf.reduce_sum(junction["green_mask"], 1, keepdims=True) / GREENS_SCALE
    columns = [
        current,
        current * tf.minimum(observed.green_s / GREEN_TIME_SCALE_S, GREEN_TIME_CAP)[:, None],
        *(tf.reduce_sum(current[..., None] * junction[name], 1) for name in ("change", "kept")),
        greens + tf.zeros_like(current),
        junction["interval"] + tf.zeros_like(current),
    ]
    return lane_x, tf.stack(columns, -1)


def encode(network: Sequence[Any], junction: Junction, service: Service, lane_x: Any, green_x: Any) -> tuple[Any, Any]:
    """As `phase_competition.encode`: (e [n, P, units], c [n, units])."""
    k1, b1, k2, b2, k3, b3 = network[:6]
    f = _dense(_dense(lane_x, k1, b1), k2, b2) * junction["lane_mask"][..., None]
    served = service.protected + service.permissive
    partial = tf.cast((served > SHARE_TOLERANCE) & (served < 1 - SHARE_TOLERANCE), tf.float32)
    sums = tf.linalg.matmul(tf.concat([service.protected, service.permissive, partial], 1), f)
    e = _dense(tf.concat([*tf.split(sums, 3, 1), green_x], -1), k3, b3) * junction["green_mask"][..., None]
    current = tf.reduce_sum(green_x[..., :1] * e, 1)
    mean = tf.reduce_sum(e, 1) / tf.reduce_sum(junction["green_mask"], 1, keepdims=True)
    return e, tf.concat([current, mean, tf.reduce_max(e, 1), tf.reduce_sum(f, 1) / LANES_SCALE], -1)


def scores(network: Sequence[Any], junction: Junction, service: Service, lane_x: Any, green_x: Any) -> Any:
    """As `phase_competition.scores`: [n, P]."""
    e, c = encode(network, junction, service, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    own = _dense(e, k4[:GREEN_UNITS], b4, is_last=True)
    whole = _dense(c, k4[GREEN_UNITS:], tf.zeros_like(b4), is_last=True)
    y = _dense(tf.nn.relu(own + whole[:, None]), k5, b5, is_last=True)[..., 0]
    return tf.where(junction["green_mask"] > 0, y, PADDING_SCORE)


def value(network: Sequence[Any], junction: Junction, service: Service, lane_x: Any, green_x: Any) -> Any:
    """A critic's value [n] of the junction."""
    _, c = encode(network, junction, service, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    return _dense(_dense(c, k4, b4), k5, b5, is_last=True)[..., 0]


def _dense(x: Any, kernel: Any, bias: Any, is_last: bool = False) -> Any:
    """A layer over the last axis, with ReLU unless it is the last one."""
    y = tf.nn.bias_add(tf.linalg.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel), bias)
    return tf.reshape(y if is_last else tf.nn.relu(y), tf.concat([tf.shape(x)[:-1], [kernel.shape[1]]], 0))


def greens_allowed(junction: Junction, observed: Observed, service: Service) -> Any:
    """As `phase_competition.greens_allowed`: bool [n, P]."""
    features, is_current = observed.features, observed.current[..., None] > 0
    shares = service.protected + service.permissive
    serves = shares > 0
    is_full = (features[..., EXIT_BLOCKED] > MIN_BLOCKED_SHARE) & (features[..., EXIT_OCCUPANCY] > FULL_OCCUPANCY)
    served_now = tf.reduce_any(is_current & serves, 1)
    waits = (features[..., HALTING] > 0) & tf.reduce_any(serves, 1) & (~served_now | service.stands) & ~is_full
    waiting_s = tf.reduce_max(service.red_s * tf.cast(waits, tf.float32)[..., None], 1)
    longest = tf.one_hot(tf.argmax(waiting_s, 1), waiting_s.shape[1])
    shown = junction["protected"] + junction["permissive"]
    serves_longest = tf.reduce_sum(shown * longest[:, None], 2) > 0
    is_late = tf.reduce_max(waiting_s, 1, keepdims=True) >= MAX_RED_S
    allowed = (serves_longest | ~is_late) & (junction["green_mask"] > 0)
    can_move = serves & ~is_full[:, None] & ~(is_current & service.stands[:, None])
    is_near, arrives = features[..., NEAR][:, None] > 0, features[..., SOON][:, None] > 0
    moves = tf.reduce_any(can_move & is_near, 2)
    has_demand = tf.reduce_any(can_move & (is_near | arrives), 2)
    return allowed & (has_demand | ~tf.reduce_any(allowed & moves, 1, keepdims=True))
