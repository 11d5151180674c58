"""Learning of the TLs of one layout of `actor_critics`: networks, optimiser, scales of the rewards, checkpoints."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protos import policy_pb2 as pb
from training.actor_critics import ActorCritics, Layout
from training.ppo_config import PpoConfig
from training.statistics import UpdateStatistics
from training.transitions import Float32s, RewardScale, Transitions, make_batch

if TYPE_CHECKING:
    from training.ppo import Learner

DEFAULT_FORMAT = "tf2"


class MlpLearning:
    """Learns from episodes; the interface is that of `phase_competition.street_learning` too."""

    def __init__(self, layout: Layout, ppo: PpoConfig, rng: np.random.Generator) -> None:
        self._layout, self._ppo = layout, ppo
        self._networks = ActorCritics(layout, ActorCritics.initial_arrays(layout, rng))
        self._scales = [RewardScale(ppo.gamma) for _ in range(layout.row_count)]

    @functools.cached_property
    def _learner(self) -> "Learner":
        from training.ppo import Learner  # TensorFlow takes seconds to load, and simulations need none

        return Learner(self._networks, self._ppo)

    def prepare(self) -> None:
        """Load TensorFlow and trace the update; otherwise the first update does."""
        self._learner.trace()

    @property
    def kind(self) -> str:
        """The kind of the actors."""
        return "categorical" if self._layout.is_categorical else "continuous"

    @property
    def arrays(self) -> list[Float32s]:
        return list(self._networks.arrays)

    def learn(
        self, episodes: Sequence[Mapping[str, Transitions]], rng: np.random.Generator, progress: float
    ) -> UpdateStatistics | None:
        """Learn from the transitions of episodes by TL; return statistics, None without decisions. Raises NotFinite."""
        layout, batches = self._layout, []
        tls_of_row: list[list[str]] = [[] for _ in range(layout.row_count)]
        for tl, row in zip(layout.tls, layout.rows, strict=True):
            tls_of_row[row].append(tl)
        for scale, tls in zip(self._scales, tls_of_row, strict=True):
            transitions = [episode[tl] for episode in episodes for tl in tls if tl in episode]
            batches.append(make_batch(transitions, scale.update(transitions), self._ppo.gamma, self._ppo.gae_lambda))
        return self._learner.learn(batches, rng, progress)

    def state(self) -> list[NDArray[Any]]:
        """The state to resume from."""
        return [np.array([scale.variance for scale in self._scales]), *self._learner.state()]

    def restore(self, state: Sequence[NDArray[Any]]) -> None:
        """Set the state that `state` returned. Raises ValueError for another layout's."""
        variances, *rest = state
        for scale, variance in zip(self._scales, variances.tolist(), strict=True):
            scale.variance = variance
        self._learner.restore(rest)

    def write(
        self,
        folder: Path,
        contracts: Mapping[str, pb.PolicyContract],
        arrays: Sequence[Float32s],
        sharpness: float,
        number: int,
        formats: Mapping[str, str],
    ) -> dict[str, Path]:
        """Write the checkpoints of a state; return TL -> path. Raises InputError.

        Args:
            folder: folder of the checkpoints.
            contracts: by TL.
            arrays: as `arrays` returns them.
            sharpness: factor of categorical actors' logits.
            number: model number.
            formats: checkpoint format by TL (default: DEFAULT_FORMAT).
        """
        from training import checkpoints

        networks = ActorCritics(self._layout, arrays, sharpness)
        return {
            tl: checkpoints.write(
                formats.get(tl, DEFAULT_FORMAT), folder, contracts[tl], networks.layers_of(tl), number
            )
            for tl in self._layout.tls
        }
