"""Policies of phase competition with random weights, for junctions of any size."""

import numpy as np

from export.actors import Actor
from export.actors.phase_competition import SHAPES, Junction, PhaseCompetition
from protos import policy_pb2 as pb
from signals.approach_features import FEATURES


def random_network(rng, gain=1.0):
    """Weights by name."""
    return {
        name: (gain * rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def contract_of(greens, lanes, rng=None):
    """The contract of a signal.

    Args:
        greens: states.
        lanes: the links of each lane.
        rng: draws change times, lengths and speed limits.
    """
    rng = rng or np.random.default_rng(0)

    def approach(k, links):
        length_m, limit_mps = rng.uniform(20, 300), rng.uniform(5, 30)
        lane = pb.ReadLane(lane_id=f"lane{k}", share=1, length_m=length_m, limit_mps=limit_mps)
        return pb.Approach(lane_id=f"lane{k}", links=links, upstream=[lane])

    signal = pb.Signal(
        id="A",
        greens=greens,
        change_s=rng.uniform(0, 10, len(greens) ** 2),
        approaches=[approach(k, links) for k, links in enumerate(lanes)],
    )
    return pb.PolicyContract(signals=[signal], timing=pb.Timing(decision_interval_s=rng.uniform(1, 10)))


def junction_of(greens, lanes, rng=None):
    """The junction of a signal; arguments as for `contract_of`."""
    return Junction.of_contract(contract_of(greens, lanes, rng))


def random_junction(rng, greens, lanes, max_links=3, links=None):
    """A junction whose greens show random links G or g; a link may have no green at all.

    `links`: their number; random without it.
    """
    counts = rng.integers(0 if links else 1, max_links + 1, lanes)
    links = links or int(counts.sum())
    states = ["".join(row) for row in rng.choice(list("GGgrrr"), (greens, links))]
    begins = np.cumsum(counts) - counts
    return junction_of(
        states, [[(begin + k) % links for k in range(count)] for begin, count in zip(begins, counts, strict=True)], rng
    )


def random_policy(rng, greens, lanes, network=None, links=None):
    junction = random_junction(rng, greens, lanes, links=links)
    return Actor("phase-competition", (PhaseCompetition(network or random_network(rng), junction),))


def random_observations(rng, greens, lanes, rows, max_since_s=110.0):
    """Observations as the street dialect has them, float32 [rows, O]."""
    features = rng.gamma(0.5, 6.0, (rows, lanes, len(FEATURES)))
    features *= rng.random(features.shape) < 0.7
    features[..., FEATURES.index("relative_speed")] *= rng.random((rows, 1)) < 0.5
    features[..., FEATURES.index("first_wait")] *= 5
    current = np.eye(greens)[rng.integers(greens, size=rows)]
    head = [current, rng.integers(2, size=(rows, 1)), rng.gamma(1, 20, (rows, 1))]
    head += [(1 - current) * rng.uniform(0, max_since_s, (rows, greens))]
    return np.concatenate([*head, features.reshape(rows, -1)], 1).astype(np.float32)
