"""Observations of the street dialect at which the rules of phase competition switch, for parity checks.

Random numbers seldom reach a rule: its vehicles, times and exits have the values at its bounds here, and those beside.
"""

import numpy as np
from numpy.typing import NDArray

from export.actors.phase_competition import (
    EXIT_BLOCKED,
    EXIT_OCCUPANCY,
    FIRST_WAIT,
    FULL_OCCUPANCY,
    HALTING,
    MAX_RED_S,
    MIN_BLOCKED_SHARE,
    NEAR,
    SOON,
    STOOD_S,
)
from signals.approach_features import FEATURES, LONGEST_RED_S

Float32s = NDArray[np.float32]
SHARES = (0.0, 0.3, 1.0)
"""Shares of an observation's lanes that have vehicles, or full exits: the rules compare lanes with each other."""


def observations_at_bounds(greens: int, lanes: int, rows: int, rng: np.random.Generator) -> Float32s:
    """Observations [rows, O] of a junction, drawn at the bounds of the rules."""

    def draw(values: tuple[float, ...], *shape: int) -> Float32s:
        return rng.choice(np.array(values, np.float32), (rows, *shape))

    def some(values: tuple[float, ...]) -> Float32s:
        """[rows, lanes]: 0, but for some lanes."""
        return np.where(rng.random((rows, lanes)) < draw(SHARES)[:, None], draw(values, lanes), np.float32(0))

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
    stands = rng.random((rows, lanes)) < draw(SHARES)[:, None]
    features[..., FIRST_WAIT] = np.where(stands, first_s, draw((0.0, 0.0, 0.0, 2 * LONGEST_RED_S), 1))
    features[..., EXIT_BLOCKED] = some((0.5, MIN_BLOCKED_SHARE, _beside(MIN_BLOCKED_SHARE, np.inf), 1.0, 1.0))
    features[..., EXIT_OCCUPANCY] = some((0.5, FULL_OCCUPANCY, _beside(FULL_OCCUPANCY, np.inf), 1.2, 1.2))
    full = rng.random((rows, lanes)) < draw(SHARES)[:, None]
    for feature in (EXIT_BLOCKED, EXIT_OCCUPANCY):
        features[..., feature] = np.where(full, np.float32(1), features[..., feature])
    head = [current, draw((0.0, 1.0), 1), green_s[:, None], since_s]
    return np.concatenate([*head, features.reshape(rows, -1)], 1)


def _beside(bound: float, side: float) -> float:
    """The float32 beside a bound."""
    return float(np.nextafter(np.float32(bound), np.float32(side)))
