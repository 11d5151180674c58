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
    # a fleet stores the network with an axis before
    network = [
        weights[name] if weights[name].shape.rank == len(shape) else tf.reshape(weights[name], shape)
        for name, shape in SHAPES.items()
    ]
    rows = x if x.shape.rank == 2 else tf.reshape(x, [-1, x.shape[-1]])
    junction = _of_rows({name: weights[name] for name in JUNCTION_RANKS}, tf.shape(rows)[0])
    greens, lanes = _size(junction["protected"]), _size(junction["links"])
    current, _, green_s, since_s, features = tf.split(rows, [greens, 1, 1, greens, -1], 1)
    observed = Observed(current, tf.squeeze(green_s, 1), since_s, tf.reshape(features, [-1, lanes, len(FEATURES)]))
    service = service_of(junction, observed)
    lane_x, green_x = _inputs(junction, observed, service)
    y = scores(network, junction, service, lane_x, green_x)
    log_p = tf.nn.log_softmax(y)
    lowered = tf.reduce_min(log_p, 1, keepdims=True) - MASKED_BELOW
    masked = tf.where(greens_allowed(junction, observed, service), log_p, lowered)
    return masked if x.shape.rank == 2 else tf.reshape(masked, [x.shape[0], -1, greens])


def _of_rows(parts: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """The junctions' parts for every row: a single model has no first axis, a fleet stores an equal part once, and a
    request may have several rows of a junction."""
    stored = {
        name: tf.expand_dims(part, 0) if part.shape.rank == JUNCTION_RANKS[name] else part
        for name, part in parts.items()
    }
    counts = {part.shape[0] for part in stored.values()}
    junction_of_row = {count: tf.range(rows) // (rows // count) for count in counts}
    return {name: tf.gather(part, junction_of_row[part.shape[0]]) for name, part in stored.items()}


def service_of(junction: Junction, observed: Observed) -> Service:
    """As `phase_competition.service_of`."""
    first_s, since_s = observed.features[:, None, :, FIRST_WAIT], tf.expand_dims(observed.since_s, 2)
    is_current = observed.current > 0
    had_time = ~is_current | tf.expand_dims(observed.green_s >= STOOD_S, 1)
    stood = tf.expand_dims(had_time, 2) & (first_s >= since_s + STOOD_S)
    not_its = tf.linalg.matmul(tf.cast(stood, tf.float32), junction["protected"], transpose_a=True) > 0
    links = tf.where(not_its, 0.0, junction["links"])
    links = tf.where(tf.reduce_any(links > 0, 2, keepdims=True), links, junction["links"])
    count = tf.expand_dims(tf.maximum(tf.reduce_sum(links, 2), 1.0), 1)
    shares = [tf.linalg.matmul(junction[name], links, transpose_b=True) / count for name in ("protected", "permissive")]
    shown = junction["protected"] + junction["permissive"]
    red_s = tf.reduce_min(tf.where(shown > 0, since_s, LONGEST_RED_S), 1, keepdims=True)
    serves = tf.linalg.matmul(shown, junction["links"], transpose_b=True) > 0
    stands = tf.reduce_any(tf.expand_dims(is_current, 2) & serves & stood, 1)
    return Service(shares[0], shares[1], links * red_s, stands)


def _inputs(junction: Junction, observed: Observed, service: Service) -> tuple[Any, Any]:
    """As `phase_competition.inputs`."""
    current, features = observed.current, observed.features
    of_current = tf.expand_dims(current, 2)
    is_root = tf.constant(np.arange(len(FEATURES)) == TOTAL_WAIT)
    rooted = tf.where(is_root, tf.sqrt(tf.maximum(features, 0.0)), features)
    scaled = tf.minimum(rooted * tf.constant(1 / SCALES, tf.float32), tf.constant(CAPS, tf.float32))
    own = [
        tf.minimum(tf.reduce_max(service.red_s, 2) / RED_SCALE_S, RED_CAP),
        tf.cast(service.stands, tf.float32),
        *(tf.reduce_sum(of_current * shares, 1) for shares in (service.protected, service.permissive)),
    ]
    lane_x = tf.concat([scaled, tf.stack(own, -1), junction["lanes"]], -1)
    greens = tf.reduce_sum(junction["green_mask"], 1, keepdims=True) / GREENS_SCALE
    zeros = tf.zeros_like(current)
    columns = [
        current,
        current * tf.expand_dims(tf.minimum(observed.green_s / GREEN_TIME_SCALE_S, GREEN_TIME_CAP), 1),
        *(tf.reduce_sum(of_current * junction[name], 1) for name in ("change", "kept")),
        greens + zeros,
        junction["interval"] + zeros,
    ]
    return lane_x, tf.stack(columns, -1)


def encode(network: Sequence[Any], junction: Junction, service: Service, lane_x: Any, green_x: Any) -> tuple[Any, Any]:
    """As `phase_competition.encode`: (e [n, P, units], c [n, units])."""
    k1, b1, k2, b2, k3, b3 = network[:6]
    f = _like(lane_x, _relu(_relu(_flat(lane_x), k1, b1), k2, b2)) * tf.expand_dims(junction["lane_mask"], 2)
    served = service.protected + service.permissive
    partial = tf.cast((served > SHARE_TOLERANCE) & (served < 1 - SHARE_TOLERANCE), tf.float32)
    sums = tf.linalg.matmul(tf.concat([service.protected, service.permissive, partial], 1), f)
    of_greens = _flat(tf.concat([*tf.split(sums, 3, 1), green_x], -1))
    e = _like(green_x, _relu(of_greens, k3, b3)) * tf.expand_dims(junction["green_mask"], 2)
    current = tf.reduce_sum(green_x[..., :1] * e, 1)
    mean = tf.reduce_sum(e, 1) / tf.reduce_sum(junction["green_mask"], 1, keepdims=True)
    return e, tf.concat([current, mean, tf.reduce_max(e, 1), tf.reduce_sum(f, 1) / LANES_SCALE], -1)


def scores(network: Sequence[Any], junction: Junction, service: Service, lane_x: Any, green_x: Any) -> Any:
    """As `phase_competition.scores`: [n, P]."""
    e, c = encode(network, junction, service, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    of_green, of_junction = tf.split(k4, [GREEN_UNITS, k4.shape[0] - GREEN_UNITS])
    own = _like(green_x, _affine(_flat(e), of_green, b4))
    z = tf.nn.relu(own + tf.expand_dims(tf.linalg.matmul(c, of_junction), 1))
    y = _like(green_x, _affine(_flat(z), k5, b5))
    return tf.where(junction["green_mask"] > 0, tf.squeeze(y, 2), PADDING_SCORE)


def value(network: Sequence[Any], junction: Junction, service: Service, lane_x: Any, green_x: Any) -> Any:
    """A critic's value [n] of the junction."""
    _, c = encode(network, junction, service, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    return tf.squeeze(_affine(_relu(c, k4, b4), k5, b5), 1)


def _affine(x: Any, kernel: Any, bias: Any) -> Any:
    return tf.nn.bias_add(tf.linalg.matmul(x, kernel), bias)


def _relu(x: Any, kernel: Any, bias: Any) -> Any:
    return tf.nn.relu(_affine(x, kernel, bias))


def _flat(x: Any) -> Any:
    """[n * m, units] of an `x` [n, m, units]."""
    return tf.reshape(x, [-1, x.shape[-1]])


def _like(x: Any, flat: Any) -> Any:
    """[n * m, units] as [n, m, units] of an `x` [n, m, ...]."""
    return tf.reshape(flat, [-1, _size(x), flat.shape[-1]])


def _size(x: Any) -> Any:
    """m of an `x` [n, m, ...]: a number in a fleet's graph, a tensor in that of a TL or a training, for any m."""
    return x.shape[1] or tf.shape(x)[1]


def greens_allowed(junction: Junction, observed: Observed, service: Service) -> Any:
    """As `phase_competition.greens_allowed`: bool [n, P]."""
    features, is_current = tf.unstack(observed.features, axis=-1), tf.expand_dims(observed.current, 2) > 0
    shares = service.protected + service.permissive
    serves = shares > 0
    is_full = (features[EXIT_BLOCKED] > MIN_BLOCKED_SHARE) & (features[EXIT_OCCUPANCY] > FULL_OCCUPANCY)
    served_now = tf.reduce_any(is_current & serves, 1)
    waits = (features[HALTING] > 0) & tf.reduce_any(serves, 1) & (~served_now | service.stands) & ~is_full
    waiting_s = tf.reduce_max(service.red_s * tf.expand_dims(tf.cast(waits, tf.float32), 2), 1)
    shown = junction["protected"] + junction["permissive"]
    serves_longest = tf.gather(shown, tf.argmax(waiting_s, 1), axis=2, batch_dims=1) > 0
    is_late = tf.reduce_max(waiting_s, 1, keepdims=True) >= MAX_RED_S
    allowed = (serves_longest | ~is_late) & (junction["green_mask"] > 0)
    can_move = serves & ~tf.expand_dims(is_full, 1) & ~(is_current & tf.expand_dims(service.stands, 1))
    is_near, arrives = (tf.expand_dims(features[feature], 1) > 0 for feature in (NEAR, SOON))
    moves = tf.reduce_any(can_move & is_near, 2)
    has_demand = tf.reduce_any(can_move & (is_near | arrives), 2)
    return allowed & (has_demand | ~tf.reduce_any(allowed & moves, 1, keepdims=True))
