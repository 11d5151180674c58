"""Learning of a city's TLs of the street dialect: one policy for all of them, from the start or from a trained one."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from export.actors.phase_competition import SHAPES
from export.checkpoints import phase_networks
from protos import policy_pb2 as pb
from training.phase_competition.batch import make_batch
from training.phase_competition.networks import ACTOR, CRITIC_SHAPES, StreetLayout, initial_arrays
from training.ppo_config import StreetPpo
from training.statistics import UpdateStatistics
from training.transitions import Float32s, Transitions

if TYPE_CHECKING:
    from training.phase_competition.learner import StreetLearner


class StreetLearning:
    """Learns from episodes; the interface is that of `mlp_learning`."""

    def __init__(
        self, layout: StreetLayout, ppo: StreetPpo, rng: np.random.Generator, start: Sequence[Float32s] | None = None
    ) -> None:
        """`start`: arrays to start from (`load`)."""
        self._layout, self._ppo = layout, ppo
        self._arrays = list(initial_arrays(rng) if start is None else start)

    @functools.cached_property
    def _learner(self) -> "StreetLearner":
        # TensorFlow takes seconds to load, and simulations need none
        from training.phase_competition.learner import StreetLearner

        return StreetLearner(self._arrays, self._ppo)

    def prepare(self) -> None:
        """Load TensorFlow and trace the update; otherwise the first update does."""
        self._learner.trace()

    @property
    def kind(self) -> str:
        """The kind of the actors."""
        return "street"

    @property
    def arrays(self) -> list[Float32s]:
        return list(self._arrays)

    def learn(
        self, episodes: Sequence[Mapping[str, Transitions]], rng: np.random.Generator, progress: float
    ) -> UpdateStatistics | None:
        """Learn from the transitions of episodes by TL; return statistics, None without decisions. Raises NotFinite."""
        junctions = dict(zip(self._layout.tls, self._layout.junctions, strict=True))
        parts = []
        for episode in episodes:
            own = [tl for tl in self._layout.tls if tl in episode]
            if own:
                parts.append(([junctions[tl] for tl in own], [episode[tl] for tl in own]))
        if not any(len(tl.value) > 1 for _, transitions in parts for tl in transitions):
            return None
        statistics = self._learner.learn(make_batch(parts, self._ppo.gamma, self._ppo.gae_lambda), rng, progress)
        self._arrays = self._learner.arrays
        return statistics

    def state(self) -> list[NDArray[Any]]:
        """The state to resume from."""
        return list(self._learner.state())

    def restore(self, state: Sequence[NDArray[Any]]) -> None:
        """Set the state that `state` returned. Raises ValueError for another one."""
        self._learner.restore(state)
        self._arrays = self._learner.arrays

    def write(
        self,
        folder: Path,
        contracts: Mapping[str, pb.PolicyContract],
        arrays: Sequence[Float32s],
        sharpness: float,
        number: int,
        formats: Mapping[str, str],
    ) -> dict[str, Path]:
        """Write the policy of a state, one file for all TLs; return TL -> path. Raises InputError."""
        path = policy_file(folder, number)
        save(path, arrays, sharpness, {"trained_on": sorted(contracts)})
        return dict.fromkeys(self._layout.tls, path)


def policy_file(folder: Path, number: int) -> Path:
    """The file of a policy with a model number."""
    return folder / f"street_trial_{number}{phase_networks.SUFFIX}"


def save(path: Path, arrays: Sequence[Float32s], sharpness: float, description: Mapping[str, Any]) -> None:
    """Write a policy, with the sharpness in the actors' last layers. Raises InputError."""
    arrays = list(arrays)
    arrays[ACTOR - 2 : ACTOR] = [np.float32(sharpness) * array for array in arrays[ACTOR - 2 : ACTOR]]
    actors, critics = (
        dict(zip(SHAPES, arrays[:ACTOR], strict=True)),
        dict(zip(CRITIC_SHAPES, arrays[ACTOR:], strict=True)),
    )
    phase_networks.save(path, actors, critics, description)


def load(path: Path) -> list[Float32s]:
    """The arrays to start from, of a file of `save`. Raises InputError."""
    actors, critics = phase_networks.load(path, CRITIC_SHAPES)
    return [*(actors[name] for name in SHAPES), *(critics[name] for name in CRITIC_SHAPES)]
