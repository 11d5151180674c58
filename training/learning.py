"""Learning of the TLs of one layout: their weights, what they learn from, and their checkpoints.

TensorFlow is loaded with the learner: it takes seconds, and simulations need none.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from protos import policy_pb2 as pb
from training.actor_critics import ActorCritics, ParameterLayout
from training.phase_competition.networks import StreetLayout, initial_arrays, policy_path, save_policy
from training.settings import Layers, Settings
from training.statistics import UpdateStatistics
from training.transitions import Float32s, RewardScale, Transitions

if TYPE_CHECKING:
    from training.ppo import Batch, Learner

Episodes = Sequence[Mapping[str, Transitions]]
"""The transitions of episodes by TL."""


class Learning(ABC):
    """Learns from episodes."""

    def __init__(self, kind: str, arrays: Sequence[Float32s]) -> None:
        """`kind`: of the actors. `arrays`: the first weights."""
        self.kind, self.arrays = kind, list(arrays)

    @functools.cached_property
    @abstractmethod
    def _learner(self) -> "Learner":
        """The learner of `arrays`."""

    @abstractmethod
    def _batches(self, episodes: Episodes) -> "tuple[list[Batch | None], Batch]":
        """(the decisions by row, arrays that they share)."""

    @abstractmethod
    def write(
        self, settings: Settings, contracts: Sequence[pb.PolicyContract], arrays: Sequence[Float32s], sharpness: float
    ) -> dict[str, Path]:
        """Write the checkpoints of weights; return TL -> path. Raises InputError.

        Args:
            settings: folder, model number and formats.
            contracts: of all target TLs.
            arrays: as `arrays` has them.
            sharpness: factor of categorical actors' logits.
        """

    def prepare(self) -> None:
        """Load TensorFlow and trace the update; otherwise the first update does."""
        self._learner.trace()

    def learn(self, episodes: Episodes, rng: np.random.Generator, progress: float) -> UpdateStatistics | None:
        """Learn from episodes; return statistics, None without decisions. Raises NotFinite; `arrays` stay then."""
        batches, shared = self._batches(episodes)
        if all(batch is None for batch in batches):
            return None
        statistics = self._learner.learn(batches, rng, progress, shared)
        self.arrays = self._learner.arrays
        return statistics

    def state(self) -> list[NDArray[Any]]:
        """The state to resume from."""
        return self._learner.state()

    def restore(self, state: Sequence[NDArray[Any]]) -> None:
        """Set the state that `state` returned. Raises ValueError for another layout's."""
        self._learner.restore(state)
        self.arrays = self._learner.arrays


class MlpLearning(Learning):
    """Learning of separate networks, a row each."""

    def __init__(self, layout: ParameterLayout, settings: Settings, rng: np.random.Generator) -> None:
        arrays = ActorCritics.initial_arrays(layout, rng)
        if settings.start is not None:
            _continue(arrays, layout, settings.start.layers)
        super().__init__("categorical" if layout.is_categorical else "continuous", arrays)
        self._layout, self._ppo = layout, settings.ppo
        self._scales = [RewardScale(self._ppo.gamma) for _ in range(layout.row_count)]

    @functools.cached_property
    def _learner(self) -> "Learner":
        from training.mlp_learner import MlpLearner

        return MlpLearner(self._layout, self.arrays, self._ppo)

    def _batches(self, episodes: Episodes) -> "tuple[list[Batch | None], Batch]":
        from training.mlp_learner import make_batch

        batches = []
        for row, scale in enumerate(self._scales):
            tls = [tl for tl, own in zip(self._layout.tls, self._layout.rows, strict=True) if own == row]
            transitions = [episode[tl] for episode in episodes for tl in tls if tl in episode]
            batches.append(make_batch(transitions, scale.update(transitions), self._ppo))
        return batches, {}

    def state(self) -> list[NDArray[Any]]:
        return [np.array([scale.sums for scale in self._scales]), *super().state()]

    def restore(self, state: Sequence[NDArray[Any]]) -> None:
        sums, *rest = state
        for scale, (total, weight) in zip(self._scales, sums.tolist(), strict=True):
            scale.sums = total, weight
        super().restore(rest)

    def write(
        self, settings: Settings, contracts: Sequence[pb.PolicyContract], arrays: Sequence[Float32s], sharpness: float
    ) -> dict[str, Path]:
        from training import checkpoints

        networks, paths = ActorCritics(self._layout, arrays, sharpness), {}
        for contract in contracts:
            if contract.tl in self._layout.tls:
                kind, layers = settings.formats.get(contract.tl, "tf2"), networks.layers_of(contract.tl)
                paths[contract.tl] = checkpoints.write(kind, settings.out, contract, layers, settings.number)
        return paths


class StreetLearning(Learning):
    """Learning of networks that all TLs of dialect street share, from the start or from a trained policy."""

    def __init__(self, layout: StreetLayout, settings: Settings, rng: np.random.Generator) -> None:
        arrays = initial_arrays(rng)
        if settings.start is not None:
            arrays[: len(settings.start.street)] = settings.start.street
        super().__init__("street", arrays)
        # one sharpness for all TLs of an episode
        self._ppo = replace(settings.street_ppo, final_sharpness=settings.ppo.final_sharpness)
        self._layout = layout

    @functools.cached_property
    def _learner(self) -> "Learner":
        from training.phase_competition.street_learner import StreetLearner

        return StreetLearner(self.arrays, self._ppo)

    def _batches(self, episodes: Episodes) -> "tuple[list[Batch | None], Batch]":
        from training.phase_competition.street_learner import make_batch

        tls, junctions = self._layout.tls, self._layout.junctions
        # all TLs of an episode: its observations are padded to the largest junction of all
        parts = [(junctions, [episode[tl] for tl in tls]) for episode in episodes if episode.keys() >= set(tls)]
        if not any(len(tl.value) > 1 for _, transitions in parts for tl in transitions):
            return [None], {}
        batch, shared = make_batch(parts, self._ppo)
        return [batch], shared

    def write(
        self, settings: Settings, contracts: Sequence[pb.PolicyContract], arrays: Sequence[Float32s], sharpness: float
    ) -> dict[str, Path]:
        """Write one file for all TLs; return TL -> path. Raises InputError."""
        path = policy_path(settings.out, settings.number)
        save_policy(path, arrays, sharpness, {"trained_on": sorted(contract.tl for contract in contracts)})
        return dict.fromkeys(self._layout.tls, path)


def _continue(arrays: list[Float32s], layout: ParameterLayout, actors: Mapping[str, Layers]) -> None:
    """Set the actors' layers in the arrays of a layout. `actors`: by TL. Raises InputError."""
    by_row: dict[int, str] = {}
    for tl, row in zip(layout.tls, layout.rows, strict=True):
        first = by_row.setdefault(row, tl)
        for k, (kernel, bias) in enumerate(actors[tl]):
            if first == tl:
                inputs, units = kernel.shape
                arrays[2 * k][row, :inputs, :units], arrays[2 * k + 1][row, :units] = kernel, bias
            elif not (np.array_equal(kernel, actors[first][k][0]) and np.array_equal(bias, actors[first][k][1])):
                raise InputError(
                    f"--shared: {first} and {tl} share an actor, but --start-from has another one for each; pass the "
                    "checkpoint of one, or leave --shared out"
                )


def learning_of(layout: ParameterLayout | StreetLayout, settings: Settings, rng: np.random.Generator) -> Learning:
    """The learning of a layout. `rng`: draws the first weights."""
    if isinstance(layout, StreetLayout):
        return StreetLearning(layout, settings, rng)
    return MlpLearning(layout, settings, rng)
