"""Several TLs as a PettingZoo `ParallelEnv`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import EzPickle
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from city.config import City
from environment.episodes import ActionSpace, Episodes, Info
from environment.options import RENDER_MODES, Keywords, Options
from signals.observation import Observation


def parallel_env(
    city: str | Path | City = "city.toml",
    target_tls: str | Iterable[str] | None = None,
    infer_tls: str | Iterable[str] | None = (),
    **options: Unpack[Keywords],
) -> "ParallelTlEnv":
    """A city's TLs as a PettingZoo `ParallelEnv`: an agent is a TL.

    With `net_file` and `route_file`, and the other arguments of sumo-rl's constructor, it is sumo-rl's environment.

    Args:
        city: path of a city.toml.
        target_tls: the TLs that act (default: all but the infer TLs).
        infer_tls: TLs that a served model controls; all other signals run their programs.
        options: see `environment.options.Keywords`, and docs/environment.md.

    Raises InputError.
    """
    return ParallelTlEnv(Options(city=city, target_tls=target_tls, infer_tls=infer_tls, **options))


class ParallelTlEnv(ParallelEnv[str, Observation, Any], EzPickle):  # type: ignore[misc]
    """The environment of `parallel_env`.

    All agents live to the end of an episode. If TLs decide at different moments, a step ends at the next moment at
    which one of them does: `info["decides"]` says whose next action is followed. The others' observations are those of
    their last decision, and their rewards are 0 until they decide again.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "greenserve_v0",
        "render_modes": list(RENDER_MODES),
        "render_fps": 5,
        "is_parallelizable": True,
    }

    def __init__(self, options: Options) -> None:
        EzPickle.__init__(self, options)
        self.render_mode = options.get("render_mode")
        self._episodes = Episodes(options, is_single=False)
        self.possible_agents = list(self._episodes.contracts)
        self.agents: list[str] = []
        self.observation_spaces, self.action_spaces = self._episodes.observation_spaces, self._episodes.action_spaces

    def observation_space(self, agent: str) -> Box:
        """The space of a TL's observations, always the same object."""
        return self._episodes.observation_spaces[agent]

    def action_space(self, agent: str) -> ActionSpace:
        """The space of a TL's actions, always the same object."""
        return self._episodes.action_spaces[agent]

    def feature_names(self, agent: str) -> list[str]:
        """A name for each value of a TL's observation."""
        return list(self._episodes.feature_names[agent])

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin an episode: the first one of a seed, or the next one. `options` are not used.

        Raises InputError, SimulationFailed.
        """
        self.agents = []
        self._episodes.reset(seed)
        self.agents = list(self.possible_agents)
        return self._observed()

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        """Apply the actions of the TLs that decide now, and simulate to the next decision of one, or to the end.

        No episode is terminated; at its end all agents are truncated. Raises ResetNeeded, InvalidAction,
        SimulationFailed.
        """
        self._episodes.step(actions)
        observations, infos = self._observed()
        is_over = self._episodes.ended_s is not None
        rewards = dict(self._episodes.rewards)
        terminations, truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, is_over)
        if is_over:
            self.agents = []
        return observations, rewards, terminations, truncations, infos

    def _observed(self) -> tuple[dict[str, Observation], dict[str, Info]]:
        observations = {tl: observation.copy() for tl, observation in self._episodes.observations.items()}
        return observations, dict(self._episodes.infos)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the street around the TLs: uint8 [height, width, 3]; None without a render mode."""
        return self._episodes.render()

    def close(self) -> None:
        """End SUMO and the embedded server, and remove their files."""
        self.agents = []
        self._episodes.close()
