"""A network that scores every green of a junction from what is on its lanes: one set of weights for any junction.

What a green can move on a lane depends on the link that the lane's first vehicle waits for, which no detector sees. A
green that the vehicle stood through for STOOD_S does not serve it, so none of the lane's links that this green shows G
is its link; unless no other link is left, as before a full exit. The shares of a lane are those of the links that are
left: G_pi shown G by green p, g_pi shown g.

With x_i the features of incoming lane i and s_p those of green p:

    f_i     = ReLU(W2 ReLU(W1 x_i + b1) + b2)                               every lane
    e_p     = ReLU(W3 [sum_i G_pi f_i | sum_i g_pi f_i | sum_i d_pi f_i | s_p] + b3)    every green; d_pi: 1 if green p
    serves
                                                                            some links of lane i and not others, else 0
    c       = [e of the current green | mean_p e_p | max_p e_p | sum_i f_i / 4]         the junction
    score_p = W5 ReLU(W4 [e_p | c] + b4) + b5

Two rules come after the network, in training too:

- A link that is left for a lane with halting vehicles, and has had no green for MAX_RED_S, is served next, unless the
  lane moves under the current green or its exits are full; of several, the one with the longest time.
- A green that moves nothing is not chosen while another one moves something. A green moves a lane with vehicles near or
  arriving soon whose exits are not full; the current green none whose first vehicle has stood for STOOD_S under it.

Exits of a lane are full if all of them are blocked and have little room.

Lanes, links and greens are of any number: a fleet pads them.

Phase competition: Zheng et al., Learning Phase Competition for Traffic Signal Control (CIKM 2019).
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from export.actors.activations import Floats
from export.actors.steps import Step, Weights
from protos import policy_pb2 as pb
from signals.approach_features import FEATURES, LONGEST_RED_S, REACH_M, reach_m
from signals.policy_signals import greens_of
from signals.safety.conflicts import GREEN

Float32s = NDArray[np.float32]
Array = NDArray[Any]
"""Arrays of float32 in training, of float64 in a parity check."""

MAX_RED_S = 120.0
"""Time without green of a link after which its lane, with halting vehicles, is served next."""
STOOD_S = 4.0
"""Time for which the first vehicle of a lane stands under a green that does not serve it: others start sooner."""
MIN_BLOCKED_SHARE, FULL_OCCUPANCY = (float(np.float32(bound)) for bound in (0.99, 0.8))
"""Exits are full if more than this share of them is blocked, and their occupancy is higher than this.

Rounded to float32, so that an evaluation in float64 decides the same at a bound: 8 vehicles on an exit of 75 m have
0.8.
"""
SHARE_TOLERANCE = 1e-3
"""Difference of two shares of a lane's links that are equal but for rounding."""
PADDING_SCORE = -1e9
"""Score of a green that is padding."""
MASKED_BELOW = 30.0
"""How far the logit of a green that must not be chosen is below the least of all others."""

OBSERVED_SHARES = (0.0, 0.3, 1.0)
"""Shares of an observation's lanes that have vehicles, or full exits: the rules compare lanes with each other."""

# (scale, cap of the scaled value) of the features of a lane; a total wait counts by its square root
_SCALES: dict[str, tuple[float, float]] = {
    "halting": (5, 12), "vehicles_near": (5, 12), "vehicles_middle": (5, 12), "vehicles_far": (5, 12),
    "arriving_soon": (3, 12), "arriving_later": (3, 12), "lost_time": (5, 12), "relative_speed": (1, 2),
    "longest_wait": (60, 3), "total_wait": (20, 3), "occupancy": (1, 1.5), "nearest": (REACH_M, 1),
    "first_wait": (60, 3),
    "exit_occupancy": (1, 1.2), "exit_queue": (1, 1.2), "exit_blocked": (1, 1),
}  # fmt: skip
SCALES = np.array([_SCALES[name][0] for name in FEATURES])
CAPS = np.array([_SCALES[name][1] for name in FEATURES])
HALTING, NEAR, SOON, FIRST_WAIT, TOTAL_WAIT, EXIT_BLOCKED, EXIT_OCCUPANCY = (
    FEATURES.index(name)
    for name in (
        "halting", "vehicles_near", "arriving_soon", "first_wait", "total_wait", "exit_blocked", "exit_occupancy",
    )
)  # fmt: skip
GREEN_TIME_SCALE_S, GREEN_TIME_CAP, CHANGE_SCALE_S, GREENS_SCALE, INTERVAL_SCALE_S = 60.0, 3.0, 5.0, 4.0, 5.0
LIMIT_SCALE_MPS, LANES_SCALE = 15.0, 4.0
RED_SCALE_S, RED_CAP = 60.0, 4.0

LANE_INPUTS = len(FEATURES) + 6
"""The lane's features, the time without green of its links, whether it stands under the current green, its shares of G
and g now, speed limit and reach."""
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
"""Weights, in order."""


@dataclass(frozen=True)
class Junction:
    """Constants of a junction with P greens, K links and L incoming lanes; float32."""

    protected: Float32s
    """[P, K], 1 for a link that the green shows G."""
    permissive: Float32s
    """[P, K], 1 for a link that it shows g."""
    links: Float32s
    """[L, K], 1 for a link of the lane that some green serves; for any of its links if none does."""
    change: Float32s
    """[P, P], time of the change from the row's green to the column's, scaled."""
    kept: Float32s
    """[P, P], the share of the row's lanes that the column's green serves too."""
    lanes: Float32s
    """[L, 2], speed limit and reach, scaled."""
    interval: Float32s
    """[1], decision interval, scaled."""

    @classmethod
    def of_contract(cls, contract: pb.PolicyContract) -> "Junction":
        """The junction of a contract of the street dialect."""
        signal = contract.signals[0]
        greens, approaches = greens_of(signal), signal.approaches
        shown = np.array([list(green) for green in greens]).reshape(len(greens), -1)
        is_served = np.isin(shown, list(GREEN)).any(0)
        links = np.zeros((len(approaches), shown.shape[1]), np.float32)
        for row, approach in zip(links, approaches, strict=True):
            own = np.array(approach.links, np.intp)
            served = own[np.asarray(is_served)[own]]
            row[served if len(served) else own] = 1
        serves = (np.isin(shown, list(GREEN)).astype(np.float64) @ links.T > 0).astype(np.float64)
        limit_mps = [next(lane.limit_mps for lane in a.upstream if lane.lane_id == a.lane_id) for a in approaches]
        lanes = np.array([limit_mps, list(map(reach_m, approaches))]).T / (LIMIT_SCALE_MPS, REACH_M)
        return cls(
            (shown == "G").astype(np.float32),
            (shown == "g").astype(np.float32),
            links,
            (np.array(signal.change_s).reshape(len(greens), len(greens)) / CHANGE_SCALE_S).astype(np.float32),
            (serves @ serves.T / np.maximum(serves.sum(1, keepdims=True), 1)).astype(np.float32),
            lanes.astype(np.float32),
            np.array([contract.timing.decision_interval_s / INTERVAL_SCALE_S], np.float32),
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(P, L, K)."""
        return self.protected.shape[-2], self.links.shape[-2], self.links.shape[-1]


@dataclass(frozen=True)
class Padded(Junction):
    """Junctions of a batch, padded to the most greens, lanes and links: arrays of Junction with a first axis, the
    row."""

    green_mask: Float32s
    """[n, P], 1 for a green of the junction."""
    lane_mask: Float32s
    """[n, L]"""

    @classmethod
    def of(cls, junctions: Sequence[Junction]) -> "Padded":
        """Pad junctions."""
        sizes = np.max([junction.sizes for junction in junctions], 0).tolist()
        padded = {
            name: np.zeros((len(junctions), *shape), np.float32) for name, shape in junction_shapes(*sizes).items()
        }
        for k, junction in enumerate(junctions):
            for name, values in _with_masks(junction).items():
                padded[name][k][tuple(slice(size) for size in values.shape)] = values
        return cls(**padded)

    @classmethod
    def repeated(cls, junction: Junction, count: int) -> "Padded":
        """Views of one junction `count` times."""
        return cls(**{k: np.broadcast_to(array, (count, *array.shape)) for k, array in _with_masks(junction).items()})

    def take(self, rows: NDArray[np.intp]) -> "Padded":
        return Padded(**{name: array[rows] for name, array in vars(self).items()})


def junction_shapes(greens: int, lanes: int, links: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a junction's arrays, with its masks, by name."""
    return {
        "protected": (greens, links), "permissive": (greens, links), "links": (lanes, links),
        "change": (greens, greens), "kept": (greens, greens), "lanes": (lanes, 2), "interval": (1,),
        "green_mask": (greens,), "lane_mask": (lanes,),
    }  # fmt: skip


JUNCTION_RANKS = {name: len(shape) for name, shape in junction_shapes(1, 1, 1).items()}
"""Number of axes of a junction's arrays, by name."""


def _with_masks(junction: Junction) -> dict[str, Float32s]:
    """A junction's arrays by name, with masks: it has no padding."""
    greens, lanes, _ = junction.sizes
    return {**vars(junction), "green_mask": np.ones(greens, np.float32), "lane_mask": np.ones(lanes, np.float32)}


class Observed(NamedTuple):
    """The parts of n padded observations, arrays or tensors; P greens, L lanes."""

    current: Any
    """[n, P], one-hot of the current green."""
    green_s: Any
    """[n], for how long it has been shown."""
    since_s: Any
    """[n, P], time since each green was left, 0 for the current one."""
    features: Any
    """[n, L, features]."""

    @classmethod
    def of(cls, x: Array, greens: int) -> "Observed":
        """The parts of observations [n, 2 P + 2 + L features]."""
        begin = 2 * greens + 2
        features = x[:, begin:].reshape(len(x), -1, len(FEATURES))
        return cls(x[:, :greens], x[:, greens + 1], x[:, greens + 2 : begin], features)


class Service(NamedTuple):
    """Links that are left for the first vehicles of the lanes, by what the greens show them; arrays or tensors."""

    protected: Any
    """[n, P, L], the share of a lane's links that the green shows G."""
    permissive: Any
    """[n, P, L], the share that it shows g."""
    red_s: Any
    """[n, L, K], the time without green of such a link of the lane; 0 for other links."""
    stands: Any
    """[n, L], whether the current green serves a link of the lane and its first vehicle stands."""


@dataclass(frozen=True)
class PhaseCompetition(Step):
    """The logits [P] of a junction's greens from its observation in the street dialect."""

    key: ClassVar[str] = "phase_competition"
    parts: ClassVar[tuple[str, ...]] = (*SHAPES, *JUNCTION_RANKS)
    matrices = parts
    shared_parts: ClassVar[tuple[str, ...]] = tuple(SHAPES)

    network: Mapping[str, Float32s]
    """The weights, by name of `SHAPES`."""
    junction: Junction

    @property
    def weights(self) -> dict[str, Float32s]:
        return {**self.network, **_with_masks(self.junction)}

    @property
    def inputs(self) -> int:
        greens, lanes, _ = self.junction.sizes
        return observation_size(greens, lanes)

    def units(self, before: int | None, branches: list[int | None]) -> int:
        super().units(before, branches)
        return self.junction.sizes[0]

    @property
    def operation(self) -> Hashable:
        # a fleet holds the weights of a policy once: TLs with other weights are another group
        return self.key, hashlib.sha256(b"".join(self.network[name].tobytes() for name in SHAPES)).hexdigest()

    def graph_shape(self, part: str) -> tuple[int | None, ...]:
        if part in SHAPES:
            return super().graph_shape(part)
        return {"lanes": (None, 2), "interval": (1,)}.get(part, (None,) * JUNCTION_RANKS[part])

    @property
    def graph_inputs(self) -> None:
        return None

    @property
    def padding_shapes(self) -> tuple[tuple[int, int], ...]:
        # padding costs products of small matrices, and another group some 100 operations: relative to a dense layer's
        # both are some 50 times as much
        greens, lanes, links = self.junction.sizes
        return ((greens, 3 * GREEN_UNITS), (lanes, LANE_UNITS), (links, greens + lanes))

    def fleet_columns(self, group: Sequence[Step]) -> NDArray[np.int32]:
        """Columns of an observation padded to the most greens and lanes of a group: those of this TL's, and
        `inputs` for a zero."""
        members = [member.junction.sizes for member in group if isinstance(member, PhaseCompetition)]
        greens, lanes = max(p for p, _, _ in members), max(m for _, m, _ in members)
        return padded_columns(*self.junction.sizes[:2], greens, lanes)

    def evaluate(self, x: Floats, branches: list[Floats]) -> Floats:
        return logits(self.network, Padded.repeated(self.junction, len(x)), x)

    def build(self, x: Any, weight: Weights, branches: list[Any]) -> Any:
        from export.actors import phase_competition_graph

        return phase_competition_graph.logits(x, {part: weight(part) for part in self.parts})

    def to_json(self) -> dict[str, Any]:
        greens, lanes, links = self.junction.sizes
        return {self.key: {"greens": greens, "lanes": lanes, "links": links, "features": list(FEATURES)}}

    @classmethod
    def from_json(cls, description: Mapping[str, Any], weights: Mapping[str, Any]) -> Self:
        stored = description[cls.key]
        if stored["features"] != list(FEATURES):
            raise ValueError("its lane features are those of another version of greenserve")
        sizes = [int(stored[name]) for name in ("greens", "lanes", "links")]
        if min(sizes) < 1:
            raise ValueError("it has no green, no lane or no link")
        parts = [field.name for field in fields(Junction)]
        shapes = SHAPES | junction_shapes(*sizes)
        for name in (*SHAPES, *parts):
            if weights[name].shape != shapes[name]:
                raise ValueError(f"{name} has shape {list(weights[name].shape)}, not {list(shapes[name])}")
        network = {name: weights[name] for name in SHAPES}
        return cls(network, Junction(**{name: weights[name] for name in parts}))


def observation_size(greens: int, lanes: int) -> int:
    """Size of an observation of the street dialect."""
    return 2 * greens + 2 + lanes * len(FEATURES)


def padded_columns(own_greens: int, own_lanes: int, greens: int, lanes: int) -> NDArray[np.int32]:
    """Columns of an observation padded to so many greens and lanes: the own ones, and the own size for a zero."""
    columns = np.full(observation_size(greens, lanes), observation_size(own_greens, own_lanes), np.int32)
    columns[:own_greens] = np.arange(own_greens)
    columns[greens : greens + 2 + own_greens] = own_greens + np.arange(2 + own_greens)
    rest = own_lanes * len(FEATURES)
    columns[2 * greens + 2 :][:rest] = 2 * own_greens + 2 + np.arange(rest)
    return columns


def logits(network: Mapping[str, Array], junction: Padded, x: Floats) -> Floats:
    """The logits [n, P] of the greens at n junctions, float64; padding has those of greens that must not be chosen.

    Args:
        network: the weights, by name of `SHAPES`.
        junction: n rows.
        x: [n, 2 P + 2 + L features], observations, padded.
    """
    observed = Observed.of(x, junction.sizes[0])
    service = service_of(junction, observed)
    lane_x, green_x = inputs(junction, observed, service)
    weights = [network[name].astype(np.float64, copy=False) for name in SHAPES]
    log_p = log_softmax(scores(weights, junction, service, lane_x, green_x))
    allowed = greens_allowed(junction, observed, service)
    return np.where(allowed, log_p, log_p.min(1, keepdims=True) - MASKED_BELOW)


def service_of(junction: Padded, observed: Observed) -> Service:
    """The links that are left for the first vehicle of each lane, and what the greens show them."""
    # float32, so that an evaluation in float64 decides the same at the bound
    first_s = observed.features[:, None, :, FIRST_WAIT].astype(np.float32)
    since_s = observed.since_s.astype(np.float32)
    is_current = observed.current > 0
    # the current green must have been shown for that time, every other one was
    had_time = ~is_current | (observed.green_s >= STOOD_S)[:, None]
    stood = had_time[:, :, None] & (first_s >= since_s[:, :, None] + np.float32(STOOD_S))
    not_its = (np.swapaxes(stood, 1, 2).astype(np.float32) @ junction.protected) > 0
    links = junction.links * ~not_its
    links = np.where(links.any(2, keepdims=True), links, junction.links)
    count = np.maximum(links.sum(2), 1)[:, None]
    shares = [shown @ np.swapaxes(links, 1, 2) / count for shown in (junction.protected, junction.permissive)]
    shows = (junction.protected + junction.permissive) > 0
    red_s = np.where(shows, since_s[:, :, None], np.float32(LONGEST_RED_S)).min(1)
    serves = shows.astype(np.float32) @ np.swapaxes(junction.links, 1, 2) > 0
    stands = np.any(is_current[:, :, None] & serves & stood, 1)
    return Service(shares[0], shares[1], links * red_s[:, None], stands)


def inputs(junction: Padded, observed: Observed, service: Service) -> tuple[Array, Array]:
    """The inputs of the network, scaled: of lanes [n, L, LANE_INPUTS] and of greens [n, P, GREEN_INPUTS]."""
    current, features = observed.current, observed.features
    scaled = features.copy()
    scaled[..., TOTAL_WAIT] = np.sqrt(np.maximum(scaled[..., TOTAL_WAIT], 0))
    scaled = np.minimum(scaled / SCALES.astype(scaled.dtype), CAPS.astype(scaled.dtype))
    one = current[:, None, :]
    own = [
        np.minimum(service.red_s.max(2) / RED_SCALE_S, RED_CAP),
        service.stands,
        *((one @ shares)[:, 0] for shares in (service.protected, service.permissive)),
    ]
    lane_x = np.concatenate(
        [scaled, *(values[..., None] for values in own), np.broadcast_to(junction.lanes, (*scaled.shape[:2], 2))], -1
    ).astype(features.dtype, copy=False)
    green_x = np.zeros((*current.shape, GREEN_INPUTS), lane_x.dtype)
    green_x[..., 0] = current
    green_x[..., 1] = current * np.minimum(observed.green_s / GREEN_TIME_SCALE_S, GREEN_TIME_CAP)[:, None]
    green_x[..., 2], green_x[..., 3] = (one @ junction.change)[:, 0], (one @ junction.kept)[:, 0]
    green_x[..., 4] = junction.green_mask.sum(1, keepdims=True) / GREENS_SCALE
    green_x[..., 5] = junction.interval
    return lane_x, green_x


def encode(
    network: Sequence[Array], junction: Padded, service: Service, lane_x: Array, green_x: Array
) -> tuple[Array, Array]:
    """(e [n, P, units], c [n, units]): the first six arrays of the network, in the order of SHAPES."""
    k1, b1, k2, b2, k3, b3 = network[:6]
    f = np.maximum(np.maximum(lane_x @ k1 + b1, 0) @ k2 + b2, 0) * junction.lane_mask[..., None]
    served = service.protected + service.permissive
    partial = ((served > SHARE_TOLERANCE) & (served < 1 - SHARE_TOLERANCE)).astype(f.dtype)
    sums = [shares.astype(f.dtype, copy=False) @ f for shares in (service.protected, service.permissive, partial)]
    e = np.maximum(np.concatenate([*sums, green_x], -1) @ k3 + b3, 0) * junction.green_mask[..., None]
    current = (green_x[..., :1] * e).sum(1)
    mean = e.sum(1) / junction.green_mask.sum(1, keepdims=True)
    return e, np.concatenate([current, mean, e.max(1), f.sum(1) / LANES_SCALE], -1)


def scores(network: Sequence[Array], junction: Padded, service: Service, lane_x: Array, green_x: Array) -> Array:
    """The scores [n, P], very low for greens that are padding."""
    e, c = encode(network, junction, service, lane_x, green_x)
    k4, b4, k5, b5 = network[6:]
    z = np.maximum(e @ k4[:GREEN_UNITS] + (c @ k4[GREEN_UNITS:])[:, None] + b4, 0)
    return np.where(junction.green_mask > 0, (z @ k5)[..., 0] + b5, PADDING_SCORE)


def log_softmax(y: Array) -> Array:
    shifted = y - y.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def greens_allowed(junction: Padded, observed: Observed, service: Service) -> NDArray[np.bool_]:
    """Tell whether a green of the junction may be chosen [n, P]; not one of the padding."""
    features, is_current = np.moveaxis(observed.features, -1, 0), observed.current > 0
    shares = service.protected + service.permissive
    serves = shares > 0
    is_full = (features[EXIT_BLOCKED] > MIN_BLOCKED_SHARE) & (features[EXIT_OCCUPANCY] > FULL_OCCUPANCY)
    served_now = np.any(is_current[:, :, None] & serves, 1)
    waits = (features[HALTING] > 0) & serves.any(1) & (~served_now | service.stands) & ~is_full
    waiting_s = (service.red_s * waits[..., None]).max(1)
    longest, rows = waiting_s.argmax(1), np.arange(len(waiting_s))
    serves_longest = (junction.protected + junction.permissive)[rows, :, longest] > 0
    is_late = waiting_s[rows, longest] >= MAX_RED_S
    allowed = (serves_longest | ~is_late[:, None]) & (junction.green_mask > 0)
    can_move = serves & ~is_full[:, None] & ~(is_current[:, :, None] & service.stands[:, None])
    is_near, arrives = features[NEAR][:, None] > 0, features[SOON][:, None] > 0
    moves, has_demand = np.any(can_move & is_near, 2), np.any(can_move & (is_near | arrives), 2)
    return np.asarray(allowed & (has_demand | ~(allowed & moves).any(1, keepdims=True)))


def observations_at_bounds(greens: int, lanes: int, rows: int, rng: np.random.Generator) -> Float32s:
    """Observations [rows, O] of a junction at the bounds of the rules, for parity checks.

    Random numbers seldom reach a rule: its vehicles, times and exits have the values at its bounds, and those beside.
    """

    def draw(values: tuple[float, ...], *shape: int) -> Float32s:
        return rng.choice(np.array(values, np.float32), (rows, *shape))

    def some(values: tuple[float, ...]) -> Float32s:
        """[rows, lanes]: 0, but for some lanes."""
        return np.where(rng.random((rows, lanes)) < draw(OBSERVED_SHARES)[:, None], draw(values, lanes), np.float32(0))

    current = np.eye(greens, dtype=np.float32)[rng.integers(greens, size=rows)]
    green_s = draw((0.0, _beside(STOOD_S, 0), STOOD_S, 20.0))
    times_s = (1.0, 30.0, _beside(MAX_RED_S, 0), MAX_RED_S, 200.0, LONGEST_RED_S)
    # in some observations all greens were left at once, so that a lane of many greens is late
    since_s = np.where(rng.random((rows, 1)) < 0.3, draw(times_s, 1), draw(times_s, greens)) * (1 - current)
    # the gamma distribution of shape 0.5 and scale 6
    features = 3 * np.square(rng.standard_normal((rows, lanes, len(FEATURES)), np.float32))
    features[..., HALTING], features[..., NEAR], features[..., SOON] = (some((0.5, 1.0, 4.0)) for _ in range(3))
    # the first vehicle has stood for STOOD_S since some green was left, or for less, or never, or since all of them
    first_s = np.take_along_axis(since_s, rng.integers(greens, size=(rows, lanes)), 1) + np.float32(STOOD_S)
    first_s = np.where(rng.random((rows, lanes)) < 0.3, np.nextafter(first_s, np.float32(0)), first_s)
    stands = rng.random((rows, lanes)) < draw(OBSERVED_SHARES)[:, None]
    features[..., FIRST_WAIT] = np.where(stands, first_s, draw((0.0, 0.0, 0.0, 2 * LONGEST_RED_S), 1))
    features[..., EXIT_BLOCKED] = some((0.5, MIN_BLOCKED_SHARE, _beside(MIN_BLOCKED_SHARE, np.inf), 1.0, 1.0))
    features[..., EXIT_OCCUPANCY] = some((0.5, FULL_OCCUPANCY, _beside(FULL_OCCUPANCY, np.inf), 1.2, 1.2))
    full = rng.random((rows, lanes)) < draw(OBSERVED_SHARES)[:, None]
    for feature in (EXIT_BLOCKED, EXIT_OCCUPANCY):
        features[..., feature] = np.where(full, np.float32(1), features[..., feature])
    head = [current, draw((0.0, 1.0), 1), green_s[:, None], since_s]
    return np.concatenate([*head, features.reshape(rows, -1)], 1)


def _beside(bound: float, side: float) -> float:
    """The float32 beside a bound."""
    return float(np.nextafter(np.float32(bound), np.float32(side)))
