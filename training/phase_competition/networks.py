"""Actor and critic of the street dialect: one set of weights for all TLs. NumPy only, for the simulation processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.actors.phase_competition import (
    GREEN_UNITS,
    LANE_UNITS,
    MIN_LOG_PROBABILITY,
    SCORE_UNITS,
    SHAPES,
    Junction,
    Padded,
    encode,
    greens_allowed,
    greens_in_training,
    inputs,
    log_softmax,
    scores,
)
from signals.approach_features import FEATURES
from training.actor_critics import orthogonal
from training.transitions import Float32s

CRITIC_SHAPES = {**SHAPES, "score_kernel_1": (3 * GREEN_UNITS + LANE_UNITS, SCORE_UNITS)}
"""The critic has a tower of its own; its head sees the junction alone."""
ACTOR = len(SHAPES)
"""Number of the actor's arrays; the critic's follow."""
FORBIDDEN_LOGIT = np.float32(-1e9)
FIRST_SCORE_GAIN = 0.1
"""Gain of the actor's last layer: at first all greens are nearly as likely."""


@dataclass(frozen=True)
class StreetLayout:
    """The TLs of a street that share the weights, and their junctions."""

    tls: tuple[str, ...]
    junctions: tuple[Junction, ...]
    is_categorical = True

    def networks(self, arrays: Sequence[Float32s], sharpness: float) -> "StreetActorCritic | Heuristic":
        """The networks of `arrays`; without arrays, the heuristic that they are cloned from at first."""
        return StreetActorCritic(self, arrays, sharpness) if arrays else Heuristic(self)


def initial_arrays(rng: np.random.Generator) -> list[Float32s]:
    """The actor's arrays, then the critic's, of one network: [1, *shape].

    Orthogonal kernels (Saxe et al. 2014), scaled by sqrt(2), the last ones less.
    """
    arrays = []
    for shapes, last_gain in ((SHAPES, FIRST_SCORE_GAIN), (CRITIC_SHAPES, 1.0)):
        for name, shape in shapes.items():
            if len(shape) == 1:
                arrays.append(np.zeros((1, *shape), np.float32))
                continue
            gain = last_gain if name == "score_kernel_2" else np.sqrt(2.0)
            inputs_count, units = shape
            arrays.append((gain * orthogonal(inputs_count, units, rng)).astype(np.float32)[None])
    return arrays


class StreetNetworks:
    """The junctions of one street as rows; with its subclasses, the interface is that of `ActorCritics`."""

    def __init__(self, layout: StreetLayout) -> None:
        self.layout = layout
        self._junctions = Padded.of(layout.junctions)
        self._row = {tl: k for k, tl in enumerate(layout.tls)}
        self._greens, self._lanes = self._junctions.protected.shape[1:]
        self._columns = [_columns(junction, self._greens) for junction in layout.junctions]

    def rows_of(self, tls: Sequence[str]) -> NDArray[np.intp]:
        """Rows [n] of TLs."""
        return np.array([self._row[tl] for tl in tls], np.intp)

    def inputs_of(self, observations: Sequence[Float32s], rows: NDArray[np.intp]) -> Float32s:
        """Observations as one array [n, P + 1 + L features], padded to the most greens and lanes, without the min_green
        bit."""
        x = np.zeros((len(observations), self._greens + 1 + self._lanes * len(FEATURES)), np.float32)
        for k, (observation, row) in enumerate(zip(observations, rows.tolist(), strict=True)):
            target, source = self._columns[row]
            x[k, target] = observation[source]
        return x


class StreetActorCritic(StreetNetworks):
    """Actor and critic."""

    def __init__(self, layout: StreetLayout, arrays: Sequence[Float32s], sharpness: float = 1.0) -> None:
        """Prepare the networks.

        Args:
            layout: the street's TLs.
            arrays: the actors' arrays, then the critics', [networks, *shape]. The policy is the product of the
                networks'.
            sharpness: factor of the scores; the larger it is, the more often the actor takes its best action.
        """
        super().__init__(layout)
        self._sharpness = sharpness
        networks = [[array[k] for array in arrays] for k in range(len(arrays[0]))]
        self._actors = [network[: len(SHAPES)] for network in networks]
        self._critics = [network[len(SHAPES) :] for network in networks]

    def sample(self, rows: NDArray[np.intp], x: Float32s, rng: np.random.Generator) -> tuple[Float32s, Float32s]:
        """Sample (actions [n, 1], log probabilities [n]) among the greens of `greens_in_training`."""
        junction, current, _, features = self._observed(rows, x)
        log_p = self._log_p(rows, x, greens_in_training(junction, current, features))
        action = (log_p + rng.gumbel(size=log_p.shape)).argmax(1)
        return np.asarray(action[:, None], np.float32), log_p[np.arange(len(action)), action]

    def greedy_actions(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """The best actions [n, 1] among the greens that the rules allow."""
        return np.asarray(self._log_p(rows, x, greens_allowed(*self._observed(rows, x))).argmax(1)[:, None], np.float32)

    def critic(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """Values [n], squashed (`batch.squashed`)."""
        junction, lane_x, green_x = self._inputs(rows, x)
        values = []
        for critic in self._critics:
            _, c = encode(critic, junction, lane_x, green_x)
            k4, b4, k5, b5 = critic[6:]
            values.append((np.maximum(c @ k4 + b4, 0) @ k5 + b5)[:, 0])
        return np.asarray(np.mean(values, 0), np.float32)

    def _log_p(self, rows: NDArray[np.intp], x: Float32s, allowed: NDArray[np.bool_]) -> Float32s:
        junction, lane_x, green_x = self._inputs(rows, x)
        y = np.zeros(green_x.shape[:2], np.float32)
        for actor in self._actors:
            log_p = log_softmax(self._sharpness * scores(actor, junction, lane_x, green_x))
            y = y + np.maximum(log_p, MIN_LOG_PROBABILITY)
        return np.asarray(log_softmax(np.where(allowed, y, FORBIDDEN_LOGIT)), np.float32)

    def _observed(self, rows: NDArray[np.intp], x: Float32s) -> tuple[Padded, Float32s, Float32s, Float32s]:
        return self._junctions.take(rows), *split(x, self._greens)

    def _inputs(self, rows: NDArray[np.intp], x: Float32s) -> tuple[Padded, Float32s, Float32s]:
        observed = self._observed(rows, x)
        return observed[0], *inputs(*observed)


class Heuristic(StreetNetworks):
    """The green with the most vehicles within 150 m on its lanes; the actor is cloned from it at first.

    A lane counts by the share of its links that the green shows G, by half of that for g, and less as its exits are
    full. The current green counts for some vehicles more, because a change costs time.
    """

    KEPT_VEHICLES, EXIT_VEHICLES = 3.0, 5.0

    def sample(self, rows: NDArray[np.intp], x: Float32s, rng: np.random.Generator) -> tuple[Float32s, Float32s]:
        return self.greedy_actions(rows, x), np.zeros(len(x), np.float32)

    def greedy_actions(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        junction = self._junctions.take(rows)
        current, _, features = split(x, self._greens)
        near, middle, exits = (FEATURES.index(name) for name in ("vehicles_near", "vehicles_middle", "exit_occupancy"))
        waiting = features[..., near] + features[..., middle] - self.EXIT_VEHICLES * features[..., exits]
        score = ((junction.protected + 0.5 * junction.permissive) @ waiting[..., None])[..., 0]
        score += self.KEPT_VEHICLES * current
        return np.asarray(np.where(junction.green_mask > 0, score, -np.inf).argmax(1)[:, None], np.float32)

    def critic(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        return np.zeros(len(x), np.float32)


def split(x: Float32s, greens: int) -> tuple[Float32s, Float32s, Float32s]:
    """(one-hot of the current green [n, P], its time in s [n], features [n, L, features]) of padded observations."""
    return x[:, :greens], x[:, greens], x[:, greens + 1 :].reshape(len(x), -1, len(FEATURES))


def _columns(junction: Junction, greens: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(columns of a padded observation, those of the TL's own that go there)."""
    own_greens, lanes = junction.protected.shape
    rest = 1 + lanes * len(FEATURES)
    target = np.concatenate([np.arange(own_greens), greens + np.arange(rest)])
    source = np.concatenate([np.arange(own_greens), own_greens + 1 + np.arange(rest)])
    return target, source
