"""Batches of the shared networks: decisions of TLs of many streets, with advantages over unequal times.

A decision lasts until the next one at which the green may change: 5 s if the green is kept, more if it changes. So
rewards and values are discounted by time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.actors.phase_competition import (
    Junction,
    Observed,
    Padded,
    greens_allowed,
    inputs,
    padded_columns,
    service_of,
)
from simulation.rewards import DELAY_SCALE
from training.ppo import Batch, gae
from training.ppo_config import PpoConfig
from training.transitions import Float32s, Transitions

TICK_S = 5.0
"""Time after which `gamma` and `gae_lambda` apply once."""
REWARD_VEHICLES = 5.0
"""Vehicles that lose time during a tick, for a reward of -1."""
MAX_ADVANTAGE = 4.0
"""Bound of an advantage, in standard deviations."""
MIN_SPREAD = 1e-2
"""Added to the spread of advantages: a junction whose decisions make no difference must not count for much."""


def make_batch(
    episodes: Sequence[tuple[Sequence[Junction], Sequence[Transitions]]], ppo: PpoConfig
) -> tuple[Batch, Batch]:
    """(decisions, the junctions that they share) of episodes: of each its TLs' junctions and transitions.

    Inputs of a decision are `junction`, its row in the shared arrays, `lane_x` [L, LANE_INPUTS], `green_x`
    [P, GREEN_INPUTS], the parts of its `Service`, and `allowed` [P], the greens among which it was made. Targets and
    values are squashed. Raises ValueError without a decision.
    """
    junctions: list[Junction] = []
    parts: list[dict[str, NDArray[Any]]] = []
    greens, lanes, _ = np.max([junction.sizes for own, _ in episodes for junction in own], 0).tolist()
    for episode, (own, transitions) in enumerate(episodes):
        own_greens, own_lanes, _ = np.max([junction.sizes for junction in own], 0).tolist()
        columns = padded_columns(own_greens, own_lanes, greens, lanes)
        for junction, tl in zip(own, transitions, strict=True):
            # those without a decision too: all are padded to the most greens and lanes
            junctions.append(junction)
            if len(tl.value) < 2:
                continue
            advantage, target = _advantages(tl, ppo)
            count = len(advantage)
            x = np.pad(tl.x[:-1], ((0, 0), (0, 1)))[:, columns]
            parts.append(
                {
                    "junction": np.full(count, len(junctions) - 1, np.int32),
                    "x": x,
                    "action": tl.action[:-1, 0].astype(np.int32),
                    "log_p": tl.log_p[:-1],
                    "advantage": advantage,
                    "spread": np.full(count, advantage.std()),
                    "episode": np.full(count, episode),
                    "target": target.astype(np.float32),
                    "value": tl.value[:-1],
                }
            )
    if not parts:
        raise ValueError("no TL has taken two decisions")
    by_name = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    padded = Padded.of(junctions)
    own_junction = padded.take(by_name["junction"].astype(np.intp))
    observed = Observed.of(by_name["x"], greens)
    service = service_of(own_junction, observed)
    lane_x, green_x = inputs(own_junction, observed, service)
    decisions = {
        **{name: by_name[name] for name in ("junction", "action", "log_p", "target", "value")},
        "lane_x": lane_x.astype(np.float32),
        "green_x": green_x.astype(np.float32),
        "protected": service.protected.astype(np.float32),
        "permissive": service.permissive.astype(np.float32),
        "allowed": greens_allowed(own_junction, observed, service),
        "advantage": by_name["advantage"].astype(np.float32),
    }
    if ppo.normalize_advantage:
        decisions["advantage"] = _scaled(by_name["advantage"], by_name["spread"], by_name["episode"])
    shared = {name: array for name, array in vars(padded).items() if name in ("green_mask", "lane_mask")}
    return decisions, shared


def squashed(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """sign(x) (sqrt(|x| + 1) - 1): congestion must not drown the rest (Pohlen et al. 2018)."""
    return np.asarray(np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1))


def unsquashed(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `squashed`."""
    return np.asarray(np.sign(y) * ((np.abs(y) + 1) ** 2 - 1))


def _advantages(tl: Transitions, ppo: PpoConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(advantages [T - 1], squashed targets [T - 1])."""
    value = unsquashed(tl.value.astype(np.float64))
    ticks = tl.duration_s[:-1].astype(np.float64) / TICK_S
    # `delay` is a mean over the decision's time; here it is its discounted sum
    discounted_ticks = (1 - ppo.gamma**ticks) / (1 - ppo.gamma)
    per_tick = tl.reward[:-1].astype(np.float64) * DELAY_SCALE / REWARD_VEHICLES
    reward = per_tick * discounted_ticks / (ticks if tl.is_difference else 1.0)
    advantages = gae(reward, value, ticks, ppo.gamma, ppo.gae_lambda)
    return advantages, squashed(advantages + value[:-1])


def _scaled(advantage: NDArray[np.float64], spread: NDArray[np.float64], episode: NDArray[np.intp]) -> Float32s:
    """Advantages of unit scale.

    In an episode, a decision at a congested junction counts for more than one at a quiet junction, but by the square
    root only. Divides by the root mean square of each episode's advantages, so that one on a quiet street counts as
    much as one on a congested street.

    Args:
        advantage: [N].
        spread: [N], standard deviation of the advantages of the decision's TL in its episode.
        episode: [N], number of the decision's episode.
    """
    mean_square = np.bincount(episode, advantage**2) / np.maximum(np.bincount(episode), 1)
    scaled = advantage / np.sqrt((spread + MIN_SPREAD) * (np.sqrt(mean_square[episode]) + MIN_SPREAD))
    scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-6)
    return np.asarray(np.clip(scaled, -MAX_ADVANTAGE, MAX_ADVANTAGE), np.float32)
