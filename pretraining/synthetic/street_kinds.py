"""Kinds of streets, by seed: shape, sizes, lanes, speeds and signal programs, drawn before any tool of SUMO
runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Shape(StrEnum):
    """How the junctions lie."""

    GRID = "grid"
    LINE = "line"
    SINGLE = "single"
    RANDOM = "random"
    IRREGULAR = "irregular"
    """A junction of 3 to 6 arms at any angles, with up to two others and on-ramps beside it."""
    ROUNDABOUT = "roundabout"
    """A roundabout with a signal at each of its arms, there or before."""


SHAPES = {
    Shape.GRID: 0.26,
    Shape.LINE: 0.18,
    Shape.SINGLE: 0.2,
    Shape.RANDOM: 0.11,
    Shape.IRREGULAR: 0.15,
    Shape.ROUNDABOUT: 0.1,
}
"""Probability of each shape."""
LANES = {1: 0.36, 2: 0.34, 3: 0.2, 4: 0.1}
"""Probability of each number of lanes of a road, per direction."""
LAYOUTS = {"opposites": 0.75, "incoming": 0.25}
"""Probability of each of netconvert's layouts of a program."""
SPEEDS_KMH = (30, 40, 50, 50, 50, 60, 70, 80)
LEFT_GREENS_S = (0, 6, 8)
TURN_LANES_M = (20.0, 30.0, 45.0, 65.0)
MIN_BLOCK_M, MAX_BLOCK_M = 60.0, 400.0
MIN_SHORT_BLOCK_M, MAX_SHORT_BLOCK_M = 40.0, 80.0
MIN_CYCLE_S, MAX_CYCLE_S = 60, 120
OWN_PROGRAM_SHARES = (0.0, 0.5, 0.8, 1.0)


@dataclass(frozen=True)
class StreetKind:
    """The kind of a street. Everything else is drawn road by road, and signal by signal."""

    shape: Shape
    columns: int
    """Columns of a grid or a line; of an irregular street and of a roundabout, the number of signals."""
    rows: int
    block_m: float
    """Median distance of two junctions."""
    has_short_blocks: bool
    """Some junctions are so close that a queue spills back."""
    lanes: int
    """Lanes per direction of the roads; with `is_uniform` of all of them."""
    is_uniform: bool
    """All roads have the same lanes and the same speed limit."""
    speed_kmh: int
    jitter_m: float
    """Standard deviation of the junctions' places."""
    removed_share: float
    """Share of the roads that are removed, which leaves junctions of three roads."""
    turn_lane_m: float
    """Length of the turn lanes; 0 without."""
    lane_drop_share: float
    """Share of the approaches that lose a lane before the signal."""
    merges: int
    """Number of on-ramps."""
    own_lane_uses_share: float
    """Share of the approaches whose lanes serve other movements than those of netconvert's guess."""
    has_crossings: bool
    layout: str
    """netconvert's layout of the network's own programs."""
    left_green_s: int
    """Protected left green of the network's own programs; 0 without."""
    cycle_s: int
    own_program_share: float
    """Share of the signals with a program other than the network's own."""


def draw(rng: np.random.Generator) -> StreetKind:
    """Draw the kind of a street."""
    shape = choice(rng, SHAPES)
    columns, rows = {
        Shape.GRID: (int(rng.integers(2, 5)), int(rng.integers(2, 4))),
        Shape.LINE: (int(rng.integers(3, 6)), 1),
        Shape.SINGLE: (1, 1),
        Shape.RANDOM: (0, 0),
        Shape.IRREGULAR: (int(rng.choice((1, 2, 3), p=(0.35, 0.4, 0.25))), 1),
        Shape.ROUNDABOUT: (int(rng.choice((3, 4, 5), p=(0.25, 0.55, 0.2))), 1),
    }[shape]
    if shape is Shape.IRREGULAR:
        merges = int(rng.choice((0, 1, 2), p=(0.3, 0.5, 0.2)))
    else:
        merges = int(rng.choice((0, 1), p=(0.85, 0.15)))
    return StreetKind(
        shape=shape,
        columns=columns,
        rows=rows,
        block_m=float(np.exp(rng.uniform(np.log(80), np.log(350)))),
        has_short_blocks=bool(rng.random() < 0.25),
        lanes=choice(rng, LANES),
        is_uniform=bool(rng.random() < 0.3),
        speed_kmh=int(rng.choice(SPEEDS_KMH)),
        jitter_m=float(rng.uniform(0, 25)) if rng.random() < 0.7 else 0.0,
        removed_share={Shape.GRID: 0.15, Shape.LINE: 0.2, Shape.SINGLE: 0.1}.get(shape, 0.0),
        turn_lane_m=float(rng.choice(TURN_LANES_M)) if rng.random() < 0.6 else 0.0,
        lane_drop_share=float(rng.uniform(0.05, 0.25)) if rng.random() < 0.3 else 0.0,
        merges=merges,
        own_lane_uses_share=float(rng.uniform(0.2, 0.8)) if rng.random() < 0.5 else 0.0,
        has_crossings=bool(rng.random() < 1 / 3),
        layout=choice(rng, LAYOUTS),
        left_green_s=int(rng.choice(LEFT_GREENS_S)),
        cycle_s=int(rng.integers(MIN_CYCLE_S, MAX_CYCLE_S + 1)),
        own_program_share=float(rng.choice(OWN_PROGRAM_SHARES, p=(0.15, 0.25, 0.3, 0.3))),
    )


def choice(rng: np.random.Generator, shares: Mapping[T, float]) -> T:
    """Draw a key, with the probabilities that are its values."""
    return list(shares)[int(rng.choice(len(shares), p=list(shares.values())))]
