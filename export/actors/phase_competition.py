"""A network that scores every green of a junction from what is on its lanes: one set of weights for any junction.

With x_i the features of incoming lane i, G_pi and g_pi the shares of its links that green p shows G and g, and s_p the
features of green p:

    f_i     = ReLU(W2 ReLU(W1 x_i + b1) + b2)                               every lane
    e_p     = ReLU(W3 [sum_i G_pi f_i | sum_i g_pi f_i | sum_i d_pi f_i | s_p] + b3)    every green; d_pi: 1 if green p
    serves
                                                                            some links of lane i and not others, else 0
    c       = [e of the current green | mean_p e_p | max_p e_p | sum_i f_i / 4]         the junction
    score_p = W5 ReLU(W4 [e_p | c] + b4) + b5

The logits are the sum of the networks' log-probabilities, if there are several. Four rules come after the networks:

- Exits of a lane are full if all of them are blocked and have little room. A green whose vehicles near the stop line
  would all enter full exits is not chosen while another green has vehicles near with room ahead: it would fill the
  junction, or a roundabout, and move nothing.
- A lane with halting vehicles and exits that are not full, of which a link has had no green for MAX_RED_S, is served
  next; of several, the one with the longest time. If the current green does not serve the lane, only the greens that
  serve most of its links are left. If it does, and the lane does not move, only the next green in the order of the
  program is left that serves a link which the current one does not: repeated, this reaches the link that waits. If the
  lane moves, the rule does not apply. This rule has priority over the first one.
- A green that has been shown for at least STUCK_S, with vehicles near its stop lines, is left if none of its lanes
  moves now and a green that the other rules allow serves other lanes with vehicles near and room ahead; only such
  greens remain. Otherwise two junctions would wait for each other for ever: the first vehicle of a lane may be headed
  for a full exit while others are free.
- A green without demand, which serves no lane with vehicles near or arriving soon, is not chosen while a green that the
  other rules allow serves a lane with vehicles near and room ahead: with light traffic, a network may rest in such a
  green.

A lane moves if its mean speed within 150 m is at least MIN_RELATIVE_SPEED of the limit.

Lanes and greens are of any number: a fleet pads both.

Phase competition: Zheng et al., Learning Phase Competition for Traffic Signal Control (CIKM 2019).
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from export.actors.activations import Floats
from export.actors.steps import SizeMismatch, Step, Weights
from protos import policy_pb2 as pb
from signals.approach_features import FEATURES, REACH_M
from signals.policy_signals import greens_of
from signals.safety.conflicts import GREEN

Float32s = NDArray[np.float32]
Array = NDArray[Any]
"""Arrays of float32 in training, of float64 in a parity check."""

MAX_RED_S = 120.0
"""Time without green of a link after which its lane, with halting vehicles, is served next."""
MIN_BLOCKED_SHARE, FULL_OCCUPANCY = (float(np.float32(bound)) for bound in (0.99, 0.8))
"""Exits are full if more than this share of them is blocked, and their occupancy is higher than this.

Rounded to float32, so that an evaluation in float64 decides the same at a bound: 8 vehicles on an exit of 75 m have
0.8.
"""
SHARE_TOLERANCE = 1e-3
"""Difference of two shares of a lane's links that are equal but for rounding."""
STUCK_S, MIN_RELATIVE_SPEED = 20.0, float(np.float32(0.05))
"""A green is left after this time, if the mean speed within 150 m on each of its lanes is less than this share of the
limit."""
MIN_LOG_PROBABILITY = -30.0
"""Bound of a network's log-probabilities, so that no network of several forbids a green."""
MASKED_BELOW = 30.0
"""How far the logit of a green that must not be chosen is below the least of all others."""

# (scale, cap of the scaled value) of the features of a lane; a total wait counts by its square root
_SCALES: dict[str, tuple[float, float]] = {
    "halting": (5, 12), "vehicles_near": (5, 12), "vehicles_middle": (5, 12), "vehicles_far": (5, 12),
    "arriving_soon": (3, 12), "arriving_later": (3, 12), "lost_time": (5, 12), "relative_speed": (1, 2),
    "longest_wait": (60, 3), "total_wait": (20, 3), "occupancy": (1, 1.5), "nearest": (REACH_M, 1),
    "longest_red": (60, 4),
    "exit_occupancy": (1, 1.2), "exit_queue": (1, 1.2), "exit_blocked": (1, 1),
}  # fmt: skip
SCALES = np.array([_SCALES[name][0] for name in FEATURES])
CAPS = np.array([_SCALES[name][1] for name in FEATURES])
HALTING, NEAR, RED, TOTAL_WAIT = (
    FEATURES.index(name) for name in ("halting", "vehicles_near", "longest_red", "total_wait")
)
EXIT_BLOCKED, EXIT_OCCUPANCY, SPEED = (
    FEATURES.index(name) for name in ("exit_blocked", "exit_occupancy", "relative_speed")
)
SOON = FEATURES.index("arriving_soon")
GREEN_TIME_SCALE_S, GREEN_TIME_CAP, CHANGE_SCALE_S, GREENS_SCALE, INTERVAL_SCALE_S = 60.0, 3.0, 5.0, 4.0, 5.0
LIMIT_SCALE_MPS, LANES_SCALE = 15.0, 4.0

LANE_INPUTS = len(FEATURES) + 4
"""The lane's features, its shares of G and g now, speed limit and reach."""
GREEN_INPUTS = 6
"""Inputs of a green: whether it is the current one, its time, the time of the change to it, the share of the current
green's lanes that it serves too, the number of greens, the decision interval."""
LANE_UNITS, GREEN_UNITS, SCORE_UNITS = 32, 32, 64
SHAPES: dict[str, tuple[int, ...]] = {
    "lane_kernel_1": (LANE_INPUTS, LANE_UNITS),
    "lane_bias_1": (LANE_UNITS,),
    "lane_kernel_2": (LANE_UNITS, LANE_UNITS),
    "lane_bias_2": (LANE_UNITS,),
    "green_kernel": (3 * LANE_UNITS + GREEN_INPUTS, GREEN_UNITS),
    "green_bias": (GREEN_UNITS,),
    "score_kernel_1": (4 * GREEN_UNITS + LANE_UNITS, SCORE_UNITS),
    "score_bias_1": (SCORE_UNITS,),
    "score_kernel_2": (SCORE_UNITS, 1),
    "score_bias_2": (1,),
}
"""Weights of one network, in order."""


@dataclass(frozen=True)
class Junction:
    """Constants of a junction with P greens and L incoming lanes; float32."""

    protected: Float32s
    """[P, L], the share of the lane's links that the green shows G."""
    permissive: Float32s
    """[P, L], the share that it shows g."""
    change: Float32s
    """[P, P], time of the change from the row's green to the column's, scaled."""
    kept: Float32s
    """[P, P], the share of the row's lanes that the column's green serves too."""
    following: Float32s
    """[P, L], index of the next green in turn that serves a link of the lane that the row's green does not; else its
    own."""
    lanes: Float32s
    """[L, 2], speed limit and reach, scaled."""
    interval: Float32s
    """[1], decision interval, scaled."""

    @classmethod
    def of_contract(cls, contract: pb.PolicyContract) -> "Junction":
        """The junction of a contract of the street dialect."""
        signal = contract.signals[0]
        greens, approaches = greens_of(signal), signal.approaches
        shares = [
            np.array(
                [[sum(g[k] == c for k in a.links) / max(len(a.links), 1) for a in approaches] for g in greens],
                np.float32,
            )
            for c in "Gg"
        ]
        serves = (shares[0] + shares[1] > 0).astype(np.float64)
        reach_m = [
            sum(min(lane.length_m, REACH_M - lane.distance_m) * lane.share for lane in a.upstream) for a in approaches
        ]
        limit_mps = [next(lane.limit_mps for lane in a.upstream if lane.lane_id == a.lane_id) for a in approaches]
        lanes = np.array([limit_mps, reach_m]).T / (LIMIT_SCALE_MPS, REACH_M)
        return cls(
            shares[0],
            shares[1],
            (np.array(signal.change_s).reshape(len(greens), len(greens)) / CHANGE_SCALE_S).astype(np.float32),
            (serves @ serves.T / np.maximum(serves.sum(1, keepdims=True), 1)).astype(np.float32),
            np.array([[_following(greens, a.links, k) for a in approaches] for k in range(len(greens))], np.float32),
            lanes.astype(np.float32),
            np.array([contract.timing.decision_interval_s / INTERVAL_SCALE_S], np.float32),
        )


@dataclass(frozen=True)
class Padded(Junction):
    """Junctions of a batch, padded to the most greens P and lanes L: arrays of Junction with a first axis, the row."""

    green_mask: Float32s
    """[n, P], 1 for a green of the junction."""
    lane_mask: Float32s
    """[n, L]"""

    @classmethod
    def of(cls, junctions: Sequence[Junction], greens: int = 0, lanes: int = 0) -> "Padded":
        """Pad junctions, to at least `greens` greens and `lanes` lanes."""
        p = max([greens, *(j.protected.shape[0] for j in junctions)])
        m = max([lanes, *(j.protected.shape[1] for j in junctions)])
        shapes = junction_shapes(p, m)
        padded = {name: np.zeros((len(junctions), *shape), np.float32) for name, shape in shapes.items()}
        for k, junction in enumerate(junctions):
            for name, values in _with_masks(junction).items():
                padded[name][k][tuple(slice(size) for size in values.shape)] = values
        return cls(**padded)

    def take(self, rows: NDArray[np.intp]) -> "Padded":
        return Padded(**{name: array[rows] for name, array in vars(self).items()})


def junction_shapes(greens: int, lanes: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a junction's arrays, with its masks, by name."""
    return {
        "protected": (greens, lanes), "permissive": (greens, lanes), "change": (greens, greens),
        "kept": (greens, greens), "following": (greens, lanes), "lanes": (lanes, 2), "interval": (1,),
        "green_mask": (greens,), "lane_mask": (lanes,),
    }  # fmt: skip


JUNCTION_RANKS = {name: len(shape) for name, shape in junction_shapes(1, 1).items()}
"""Number of axes of a junction's arrays, by name."""


def _with_masks(junction: Junction) -> dict[str, Float32s]:
    """A junction's arrays by name, with masks: it has no padding."""
    greens, lanes = junction.protected.shape
    return {**vars(junction), "green_mask": np.ones(greens, np.float32), "lane_mask": np.ones(lanes, np.float32)}


def _following(greens: Sequence[str], links: Sequence[int], current: int) -> int:
    """The index of the first green after `current`, in turn, that serves a link which it does not; `current` without
    one."""
    waiting = [k for k in links if greens[current][k] not in GREEN]
    after = [(current + n) % len(greens) for n in range(1, len(greens))]
    return next((p for p in after if any(greens[p][k] in GREEN for k in waiting)), current)


@dataclass(frozen=True)
class PhaseCompetition(Step):
    """The logits [P] of a junction's greens from its observation in the street dialect."""

    key: ClassVar[str] = "phase_competition"
    parts: ClassVar[tuple[str, ...]] = (*SHAPES, *JUNCTION_RANKS)
    matrices = parts
    shared_parts: ClassVar[tuple[str, ...]] = tuple(SHAPES)

    networks: Mapping[str, Float32s]
    """By name of `SHAPES`, the weights of all networks: [networks, *shape]."""
    junction: Junction

    @property
    def weights(self) -> dict[str, Float32s]:
        return {**self.networks, **_with_masks(self.junction)}

    @property
    def greens(self) -> int:
        return int(self.junction.protected.shape[0])

    @property
    def lanes(self) -> int:
        return int(self.junction.protected.shape[1])

    @property
    def count(self) -> int:
        """Number of networks."""
        return len(self.networks["lane_bias_1"])

    @property
    def inputs(self) -> int:
        return self.greens + 2 + self.lanes * len(FEATURES)

    def units(self, before: int | None, branches: list[int | None]) -> int:
        super().units(before, branches)
        for name, shape in SHAPES.items():
            if self.networks[name].shape != (self.count, *shape):
                raise SizeMismatch(f"{name} has shape {list(self.networks[name].shape)}, not {[self.count, *shape]}")
        return self.greens

    @property
    def note(self) -> str:  # type: ignore[override]
        return f"of {self.count} networks" if self.count > 1 else ""

    @property
    def operation(self) -> Hashable:
        # a fleet holds the weights of a policy once: TLs with other weights are another group
        digest = hashlib.sha256(b"".join(self.networks[name].tobytes() for name in SHAPES)).hexdigest()
        return self.key, self.count, digest

    @property
    def padding_shapes(self) -> tuple[tuple[int, int], ...]:
        # padding costs products of small matrices, and another group some 100 operations for each network: relative to
        # a dense layer's both are some 50 times as much
        return ((self.greens, 3 * GREEN_UNITS), (self.lanes, LANE_UNITS))

    def fleet_columns(self, group: Sequence[Step]) -> NDArray[np.int32]:
        """Columns of an observation padded to the most greens and lanes of a group: those of this TL's, and
        `inputs` for a zero."""
        members = [member for member in group if isinstance(member, PhaseCompetition)]
        greens, lanes = max(member.greens for member in members), max(member.lanes for member in members)
        columns = np.full(greens + 2 + lanes * len(FEATURES), self.inputs, np.int32)
        columns[: self.greens] = np.arange(self.greens)
        rest = self.inputs - self.greens
        columns[greens : greens + rest] = self.greens + np.arange(rest)
        return columns

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return logits(self.networks, Padded.of([self.junction] * len(x)), x)

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        from export.actors import phase_competition_graph

        return phase_competition_graph.logits(x, {part: weight(part) for part in self.parts}, self.count)

    def to_json(self) -> dict[str, Any]:
        return {
            self.key: {"networks": self.count, "greens": self.greens, "lanes": self.lanes, "features": list(FEATURES)}
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any], weights: Mapping[str, Any]) -> Self:
        stored = description[cls.key]
        if stored["features"] != list(FEATURES):
            raise ValueError("its lane features are those of another version of greenserve")
        count, p, m = (int(stored[name]) for name in ("networks", "greens", "lanes"))
        if min(count, p, m) < 1:
            raise ValueError("it has no network, no green or no lane")
        parts = [field.name for field in fields(Junction)]
        shapes = {name: (count, *shape) for name, shape in SHAPES.items()} | junction_shapes(p, m)
        for name in (*SHAPES, *parts):
            if weights[name].shape != shapes[name]:
                raise ValueError(f"{name} has shape {list(weights[name].shape)}, not {list(shapes[name])}")
        networks = {name: weights[name] for name in SHAPES}
        return cls(networks, Junction(**{name: weights[name] for name in parts}))


def logits(networks: Mapping[str, Array], junction: Padded, x: Floats) -> Floats:
    """The logits [n, P] of the greens at n junctions, float64; padding has those of greens that must not be chosen.

    Args:
        networks: by name of `SHAPES`, the weights of all networks: [networks, *shape].
        junction: n rows.
        x: [n, P + 2 + L features], observations, padded.
    """
    greens, lanes = junction.protected.shape[1:]
    current, green_s = x[:, :greens], x[:, greens + 1]
    features = x[:, greens + 2 :].reshape(len(x), lanes, len(FEATURES))
    lane_x, green_x = inputs(junction, current, green_s, features)
    log_p = np.zeros((len(x), greens))
    for k in range(len(networks["lane_bias_1"])):
        network = [networks[name][k].astype(np.float64, copy=False) for name in SHAPES]
        log_p += np.maximum(log_softmax(scores(network, junction, lane_x, green_x)), MIN_LOG_PROBABILITY)
    allowed = greens_allowed(junction, current, green_s, features)
    return np.where(allowed, log_p, log_p.min(1, keepdims=True) - MASKED_BELOW)


def inputs(junction: Padded, current: Array, green_s: Array, features: Array) -> tuple[Array, Array]:
    """The inputs of the networks, scaled: of lanes [n, L, LANE_INPUTS] and of greens [n, P, GREEN_INPUTS].

    Args:
        junction: n rows.
        current: [n, P], one-hot of the current green.
        green_s: [n], for how long it has been shown.
        features: [n, L, features], as observed.
    """
    scaled = features.copy()
    scaled[..., TOTAL_WAIT] = np.sqrt(np.maximum(scaled[..., TOTAL_WAIT], 0))
    scaled = np.minimum(scaled / SCALES.astype(scaled.dtype), CAPS.astype(scaled.dtype))
    one = current[:, None, :]
    now = [(one @ shares)[:, 0, :, None] for shares in (junction.protected, junction.permissive)]
    lane_x = np.concatenate([scaled, *now, np.broadcast_to(junction.lanes, (*scaled.shape[:2], 2))], -1)
    green_x = np.zeros((*current.shape, GREEN_INPUTS), lane_x.dtype)
    green_x[..., 0] = current
    green_x[..., 1] = current * np.minimum(green_s / GREEN_TIME_SCALE_S, GREEN_TIME_CAP)[:, None]
    green_x[..., 2], green_x[..., 3] = (one @ junction.change)[:, 0], (one @ junction.kept)[:, 0]
    green_x[..., 4] = junction.green_mask.sum(1, keepdims=True) / GREENS_SCALE
    green_x[..., 5] = junction.interval
    return lane_x, green_x


def encode(network: Sequence[Array], junction: Padded, lane_x: Array, green_x: Array) -> tuple[Array, Array]:
    """(e [n, P, units], c [n, units]) of one network: its first six arrays, in the order of SHAPES."""
    k1, b1, k2, b2, k3, b3 = network[:6]
    f = np.maximum(np.maximum(lane_x @ k1 + b1, 0) @ k2 + b2, 0) * junction.lane_mask[..., None]
    served = junction.protected + junction.permissive
    partial = ((served > 0.01) & (served < 0.99)).astype(f.dtype)
    sums = [shares @ f for shares in (junction.protected, junction.permissive, partial)]
    e = np.maximum(np.concatenate([*sums, green_x], -1) @ k3 + b3, 0) * junction.green_mask[..., None]
    current = (green_x[..., :1] * e).sum(1)
    mean = e.sum(1) / junction.green_mask.sum(1, keepdims=True)
    return e, np.concatenate([current, mean, e.max(1), f.sum(1) / LANES_SCALE], -1)


def scores(network: Sequence[Array], junction: Padded, lane_x: Array, green_x: Array) -> Array:
    """The scores [n, P] of one network, very low for greens that are padding."""
    e, c = encode(network, junction, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    z = np.maximum(e @ k4[:GREEN_UNITS] + (c @ k4[GREEN_UNITS:])[:, None] + b4, 0)
    return np.where(junction.green_mask > 0, (z @ k5)[..., 0] + b5, -1e9)


def log_softmax(y: Array) -> Array:
    shifted = y - y.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def greens_allowed(junction: Padded, current: Array, green_s: Array, features: Array) -> NDArray[np.bool_]:
    """Tell whether a green of the junction may be chosen [n, P]; not one of the padding. Arguments: as for `inputs`."""
    is_late, serves_longest = _late_lane(junction, current, features)
    serves, is_full = junction.protected + junction.permissive > 0, _is_full(features)
    served_now, moves_now = _moves_now(serves, current, features)
    is_near = features[..., NEAR] > 0
    moves = np.any(serves & (is_near & ~is_full)[:, None], 2)
    only_fills = np.any(serves & (is_near & is_full)[:, None], 2) & ~moves
    is_restricted = only_fills.any(1) & moves.any(1)
    allowed = np.where(is_late[:, None], serves_longest, ~only_fills | ~is_restricted[:, None])
    moves_others = allowed & np.any(serves & (is_near & ~is_full & ~served_now)[:, None], 2)
    is_stuck = (green_s >= STUCK_S) & (served_now & is_near).any(1) & ~moves_now.any(1) & moves_others.any(1)
    allowed = np.where(is_stuck[:, None], moves_others, allowed)
    return _with_demand(allowed, junction, features)


def greens_in_training(junction: Padded, current: Array, features: Array) -> NDArray[np.bool_]:
    """As `greens_allowed`, without the rules for full exits and for greens that stand: among these a network is
    trained.

    A network that never meets full exits or a green that stands, because the rules avoid them, learns nothing of both.
    """
    is_late, serves_longest = _late_lane(junction, current, features)
    allowed = serves_longest | ~is_late[:, None]
    return _with_demand(allowed, junction, features)


def _with_demand(allowed: NDArray[np.bool_], junction: Padded, features: Array) -> NDArray[np.bool_]:
    """Keep the allowed greens [n, P] that have demand, or all of them if none serves a vehicle near."""
    serves = junction.protected + junction.permissive > 0
    is_near, arrives = features[..., NEAR] > 0, features[..., SOON] > 0
    moves = np.any(serves & (is_near & ~_is_full(features))[:, None], 2)
    serves_any = np.any(serves & (is_near | arrives)[:, None], 2)
    has_demand = serves_any | ~(allowed & moves).any(1, keepdims=True)
    return np.asarray(allowed & has_demand & (junction.green_mask > 0))


def _late_lane(junction: Padded, current: Array, features: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(whether a lane has to be served next [n], the greens that serve it [n, P])."""
    shares = junction.protected + junction.permissive
    serves = shares > 0
    served_now, moves_now = _moves_now(serves, current, features)
    waits = (features[..., HALTING] > 0) & serves.any(1) & ~_is_full(features) & ~moves_now
    waiting_s = np.where(waits, features[..., RED], 0.0)
    longest = waiting_s.argmax(1)
    rows = np.arange(len(longest))
    served = shares[rows, :, longest]
    serves_most = (served > 0) & (served >= served.max(1, keepdims=True) - SHARE_TOLERANCE)
    following = ((current > 0) * junction.following[rows, :, longest]).sum(1)
    follows = np.arange(serves.shape[1]) == following[:, None]
    return waiting_s[rows, longest] >= MAX_RED_S, np.where(served_now[rows, longest][:, None], follows, serves_most)


def _is_full(features: Array) -> NDArray[np.bool_]:
    """Tell whether the exits of a lane are full [n, L]."""
    blocked, occupancy = features[..., EXIT_BLOCKED], features[..., EXIT_OCCUPANCY]
    return np.asarray((blocked > MIN_BLOCKED_SHARE) & (occupancy > FULL_OCCUPANCY))


def _moves_now(
    serves: NDArray[np.bool_], current: Array, features: Array
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(lanes that the current green serves, those of them that move), both [n, L]."""
    served_now = np.any((current > 0)[:, :, None] & serves, 1)
    return served_now, served_now & (features[..., SPEED] >= MIN_RELATIVE_SPEED)
