"""Policies of phase competition with random weights, for junctions of any size."""

import numpy as np

from export.actors import Actor
from export.actors.phase_competition import SHAPES, Junction, PhaseCompetition
from signals.approach_features import FEATURES


def random_networks(rng, count=1, gain=1.0):
    """Weights of `count` networks, by name: [count, *shape]."""
    return {
        name: (gain * rng.standard_normal((count, *shape)) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def random_junction(rng, greens, lanes):
    """A junction whose greens show random links G or g; a lane may have no green at all."""
    shares = rng.choice([0.0, 0.0, 0.5, 1.0], (greens, lanes))
    return Junction(
        protected=np.where(rng.random((greens, lanes)) < 0.7, shares, 0).astype(np.float32),
        permissive=(rng.choice([0.0, 0.0, 0.25, 0.5], (greens, lanes)) * (1 - shares)).astype(np.float32),
        change=rng.uniform(0, 2, (greens, greens)).astype(np.float32),
        kept=rng.random((greens, greens)).astype(np.float32),
        following=rng.integers(0, greens, (greens, lanes)).astype(np.float32),
        lanes=rng.uniform(0.2, 2, (lanes, 2)).astype(np.float32),
        interval=rng.uniform(0.2, 2, 1).astype(np.float32),
    )


def random_policy(rng, greens, lanes, networks=None):
    return Actor(
        "phase-competition", (PhaseCompetition(networks or random_networks(rng), random_junction(rng, greens, lanes)),)
    )


def random_observations(rng, greens, lanes, rows, max_red_s=119.0):
    """Observations as the street dialect has them, float32 [rows, O]."""
    features = rng.gamma(0.5, 6.0, (rows, lanes, len(FEATURES)))
    features *= rng.random(features.shape) < 0.7
    features[..., FEATURES.index("relative_speed")] *= rng.random((rows, 1)) < 0.5
    features[..., FEATURES.index("longest_red")] = rng.uniform(0, max_red_s, (rows, lanes))
    head = np.zeros((rows, greens + 2))
    head[np.arange(rows), rng.integers(greens, size=rows)] = 1
    head[:, greens], head[:, greens + 1] = rng.integers(2, size=rows), rng.gamma(1, 20, rows)
    return np.concatenate([head, features.reshape(rows, -1)], 1).astype(np.float32)
