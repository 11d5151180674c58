"""The learner of the shared networks of streets: the computation of `networks`, in TensorFlow; and its batches.

A batch has decisions of TLs of many streets, with advantages over unequal times: a decision lasts until the next one at
which the green may change, 5 s if the green is kept, more if it changes. So rewards and values are discounted by time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from export.actors import phase_competition_graph as graph
from export.actors.phase_competition import (
    GREEN_INPUTS,
    LANE_INPUTS,
    PADDING_SCORE,
    Junction,
    Observed,
    Padded,
    Service,
    greens_allowed,
    inputs,
    padded_columns,
    service_of,
)
from simulation.rewards import DELAY_SCALE
from training.phase_competition.networks import ACTOR
from training.ppo import Adam, Batch, Learner, Tensors, gae
from training.settings import PpoConfig, StreetPpo
from training.transitions import Float32s, Transitions

TICK_S = 5.0
"""Time after which `gamma` and `gae_lambda` apply once."""
REWARD_VEHICLES = 5.0
"""Vehicles that lose time during a tick, for a reward of -1."""
MAX_ADVANTAGE = 4.0
"""Bound of an advantage, in standard deviations."""
MIN_SPREAD = 1e-2
"""Added to the spread of advantages: a junction whose decisions make no difference must not count for much."""


class Inputs(NamedTuple):
    """The inputs of N decisions, as `export.actors.phase_competition_graph` takes them."""

    junctions: graph.Junction
    """Their masks."""
    service: Service
    lane_x: tf.Tensor
    green_x: tf.Tensor


class StreetLearner(Learner):
    """Updates the actor's and the critic's arrays. They learn together."""

    specs = {  # noqa: RUF012 - never changed
        "junction": tf.TensorSpec([1, None], tf.int32),
        "lane_x": tf.TensorSpec([1, None, None, LANE_INPUTS], tf.float32),
        "green_x": tf.TensorSpec([1, None, None, GREEN_INPUTS], tf.float32),
        "protected": tf.TensorSpec([1, None, None, None], tf.float32),
        "permissive": tf.TensorSpec([1, None, None, None], tf.float32),
        "allowed": tf.TensorSpec([1, None, None], tf.bool),
        "action": tf.TensorSpec([1, None], tf.int32),
    }
    shared_specs = {  # noqa: RUF012 - never changed
        name: tf.TensorSpec([None, None], tf.float32) for name in ("green_mask", "lane_mask")
    }

    def __init__(self, arrays: Sequence[Float32s], ppo: StreetPpo) -> None:
        variables = [tf.Variable(array) for array in arrays]
        self.actor, self._critic = variables[:ACTOR], variables[ACTOR:]
        super().__init__(ppo, variables, [Adam(part, ppo.max_grad_norm) for part in (self.actor, self._critic)])

    def outputs(self, decisions: Tensors, shared: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        own, allowed = inputs_of(decisions, shared), decisions["allowed"][0]
        # the actor decided among these greens (invalid action masking: Huang and Ontanon 2022)
        all_log_p = self.log_p(own, allowed)
        log_p = tf.gather(all_log_p, decisions["action"][0], batch_dims=1)
        entropy = -tf.reduce_sum(tf.exp(all_log_p) * tf.where(allowed, all_log_p, 0.0), -1)
        return log_p[None], entropy[None], graph.value(self._critic, *own)[None]

    def log_p(self, own: Inputs, allowed: tf.Tensor) -> tf.Tensor:
        """Log-probabilities [N, P] among the allowed greens [N, P]."""
        y = self.sharpness * graph.scores(self.actor, *own)
        return tf.nn.log_softmax(tf.where(allowed, y, PADDING_SCORE))


def inputs_of(decisions: Tensors, shared: Tensors) -> Inputs:
    """The inputs for decisions at the shared junctions."""
    junctions = {name: tf.gather(array, decisions["junction"][0]) for name, array in shared.items()}
    # the rest of it is in lane_x and in the allowed greens
    service = Service(decisions["protected"][0], decisions["permissive"][0], None, None)
    return Inputs(junctions, service, decisions["lane_x"][0], decisions["green_x"][0])


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
