"""Actor and critic of the street dialect: one set of weights for all TLs, and the file of a policy between trainings.
NumPy only, for the simulation processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.actors.phase_competition import (
    GREEN_UNITS,
    LANE_UNITS,
    SCORE_UNITS,
    SHAPES,
    Junction,
    Observed,
    Padded,
    Service,
    encode,
    greens_allowed,
    inputs,
    log_softmax,
    observation_size,
    padded_columns,
    scores,
    service_of,
)
from export.checkpoints import phase_networks
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
    """The actor's arrays, then the critic's.

    Orthogonal kernels (Saxe et al. 2014), scaled by sqrt(2), the last ones less.
    """
    arrays = []
    for shapes, last_gain in ((SHAPES, FIRST_SCORE_GAIN), (CRITIC_SHAPES, 1.0)):
        for name, shape in shapes.items():
            if len(shape) == 1:
                arrays.append(np.zeros(shape, np.float32))
                continue
            gain = last_gain if name == "score_kernel_2" else np.sqrt(2.0)
            inputs_count, units = shape
            arrays.append((gain * orthogonal(inputs_count, units, rng)).astype(np.float32))
    return arrays


class StreetNetworks:
    """The junctions of one street as rows; with its subclasses, the interface is that of `ActorCritics`."""

    def __init__(self, layout: StreetLayout) -> None:
        self.layout = layout
        self._junctions = Padded.of(layout.junctions)
        self._row = {tl: k for k, tl in enumerate(layout.tls)}
        self._greens, lanes, _ = self._junctions.sizes
        self._size = observation_size(self._greens, lanes)
        self._columns = [padded_columns(*junction.sizes[:2], self._greens, lanes) for junction in layout.junctions]

    def rows_of(self, tls: Sequence[str]) -> NDArray[np.intp]:
        """Rows [n] of TLs."""
        return np.array([self._row[tl] for tl in tls], np.intp)

    def inputs_of(self, observations: Sequence[Float32s], rows: NDArray[np.intp]) -> Float32s:
        """Observations as one array [n, O], padded to the most greens and lanes."""
        x = np.zeros((len(observations), self._size), np.float32)
        for own, observation, row in zip(x, observations, rows.tolist(), strict=True):
            own[:] = np.append(observation, np.float32(0))[self._columns[row]]
        return x


class StreetActorCritic(StreetNetworks):
    """Actor and critic."""

    def __init__(self, layout: StreetLayout, arrays: Sequence[Float32s], sharpness: float = 1.0) -> None:
        """Prepare the networks.

        Args:
            layout: the street's TLs.
            arrays: the actor's, then the critic's.
            sharpness: factor of the scores; the larger it is, the more often the actor takes its best action.
        """
        super().__init__(layout)
        self._sharpness = sharpness
        self._actor, self._critic = arrays[:ACTOR], arrays[ACTOR:]

    def sample(self, rows: NDArray[np.intp], x: Float32s, rng: np.random.Generator) -> tuple[Float32s, Float32s]:
        """Sample (actions [n, 1], log probabilities [n]) among the greens that the rules allow."""
        log_p = self._log_p(rows, x)
        action = (log_p + rng.gumbel(size=log_p.shape)).argmax(1)
        return np.asarray(action[:, None], np.float32), log_p[np.arange(len(action)), action]

    def greedy_actions(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """The best actions [n, 1] among the greens that the rules allow."""
        return np.asarray(self._log_p(rows, x).argmax(1)[:, None], np.float32)

    def critic(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        """Values [n], squashed (`street_learner.squashed`)."""
        junction, observed, service = self._observed(rows, x)
        _, c = encode(self._critic, junction, service, *inputs(junction, observed, service))
        k4, b4, k5, b5 = self._critic[6:]
        return np.asarray((np.maximum(c @ k4 + b4, 0) @ k5 + b5)[:, 0], np.float32)

    def _log_p(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        junction, observed, service = self._observed(rows, x)
        y = self._sharpness * scores(self._actor, junction, service, *inputs(junction, observed, service))
        allowed = greens_allowed(junction, observed, service)
        return np.asarray(log_softmax(np.where(allowed, y, FORBIDDEN_LOGIT)), np.float32)

    def _observed(self, rows: NDArray[np.intp], x: Float32s) -> tuple[Padded, Observed, Service]:
        junction, observed = self._junctions.take(rows), Observed.of(x, self._greens)
        return junction, observed, service_of(junction, observed)


class Heuristic(StreetNetworks):
    """The green with the most vehicles within 150 m on its lanes; the actor is cloned from it at first.

    A lane counts by the share of its links that the green shows G, by half of that for g, and less as its exits are
    full. The current green counts for some vehicles more, because a change costs time.
    """

    KEPT_VEHICLES, EXIT_VEHICLES = 3.0, 5.0

    def sample(self, rows: NDArray[np.intp], x: Float32s, rng: np.random.Generator) -> tuple[Float32s, Float32s]:
        return self.greedy_actions(rows, x), np.zeros(len(x), np.float32)

    def greedy_actions(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        junction, observed = self._junctions.take(rows), Observed.of(x, self._greens)
        service, features = service_of(junction, observed), observed.features
        near, middle, exits = (FEATURES.index(name) for name in ("vehicles_near", "vehicles_middle", "exit_occupancy"))
        waiting = features[..., near] + features[..., middle] - self.EXIT_VEHICLES * features[..., exits]
        score = ((service.protected + 0.5 * service.permissive) @ waiting[..., None])[..., 0]
        score += self.KEPT_VEHICLES * observed.current
        score[~greens_allowed(junction, observed, service)] = -np.inf
        return np.asarray(score.argmax(1)[:, None], np.float32)

    def critic(self, rows: NDArray[np.intp], x: Float32s) -> Float32s:
        return np.zeros(len(x), np.float32)


def policy_path(folder: Path, number: int) -> Path:
    """The file of a policy with a model number."""
    return folder / f"street_trial_{number}{phase_networks.SUFFIX}"


def save_policy(path: Path, arrays: Sequence[Float32s], sharpness: float, description: Mapping[str, Any]) -> None:
    """Write a policy, with the sharpness in the actor's last layer. Raises InputError.

    `description`: how it was trained, in JSON's types.
    """
    arrays = list(arrays)
    arrays[ACTOR - 2 : ACTOR] = [np.float32(sharpness) * array for array in arrays[ACTOR - 2 : ACTOR]]
    actor = dict(zip(SHAPES, arrays[:ACTOR], strict=True))
    critic = dict(zip(CRITIC_SHAPES, arrays[ACTOR:], strict=True))
    phase_networks.save(path, actor, critic, {"training": description})


def load_policy(path: Path) -> list[Float32s]:
    """The actor's arrays, then the critic's if the file holds one, of a file of `save_policy`. Raises InputError."""
    actor, critic = phase_networks.load(path, CRITIC_SHAPES)
    return [*(actor[name] for name in SHAPES), *(critic[name] for name in CRITIC_SHAPES if critic)]
