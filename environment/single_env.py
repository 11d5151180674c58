"""One TL as a Gymnasium `Env`."""

from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from city.config import City
from city.errors import InputError
from environment.episodes import Episodes, Info
from environment.options import RENDER_MODES, Keywords, Options
from signals.observation import Observation


def env(
    city: str | Path | City = "city.toml",
    target_tl: str | None = None,
    infer_tls: str | Iterable[str] | None = (),
    **options: Unpack[Keywords],
) -> "SingleTlEnv":
    """One TL of a city as a Gymnasium `Env`.

    `target_tl`: the TL that acts; not needed in a city of one TL. The other arguments are those of `parallel_env`.
    Raises InputError.
    """
    if not isinstance(target_tl, str | NoneType):
        raise InputError(
            f'target_tl = {target_tl!r} must be the name of a TL, such as "SA101"; for several use parallel_env'
        )
    return SingleTlEnv(Options(city=city, target_tls=target_tl, infer_tls=infer_tls, **options))


class SingleTlEnv(gymnasium.Env[Observation, Any], EzPickle):
    """The environment of `env`: a step is a decision of the TL."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 5}  # noqa: RUF012 - as its base class

    def __init__(self, options: Options) -> None:
        EzPickle.__init__(self, options)
        self.render_mode = options.get("render_mode")
        self._episodes = Episodes(options, is_single=True)
        if len(self._episodes.contracts) > 1:
            self._episodes.close()
            raise InputError(
                f"target_tl must be one of {', '.join(self._episodes.contracts)}; for several use parallel_env"
            )
        (self.tl,) = self._episodes.contracts
        self.observation_space: gymnasium.Space[Observation] = self._episodes.observation_spaces[self.tl]  # type: ignore[assignment]
        self.action_space = self._episodes.action_spaces[self.tl]
        self.save_csv = self._episodes.save_csv  # by sumo-rl's name

    def feature_names(self) -> list[str]:
        """A name for each value of the observation."""
        return list(self._episodes.feature_names[self.tl])

    def action_masks(self) -> NDArray[np.bool_]:
        """bool [actions], True for choices that are followed now, as sb3-contrib's MaskablePPO asks for them.

        Raises ResetNeeded; InputError if the TL's actions are numbers.
        """
        if not self._episodes.infos:
            raise ResetNeeded("no episode runs; call reset() before action_masks()")
        if "action_mask" not in self._episodes.infos[self.tl]:
            raise InputError(
                f"{self.tl}: its actions are numbers, which have no mask; use PPO in the place of MaskablePPO"
            )
        return np.array(self._episodes.infos[self.tl]["action_mask"], bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode: the first one of a seed, or the next one. `options` are not used.

        Raises InputError, SimulationFailed.
        """
        super().reset(seed=seed)
        self._episodes.reset(seed)
        return self._observation(), self._episodes.infos[self.tl]

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Apply the TL's action, and simulate to its next decision, or to the end, at which the episode is truncated.

        Raises ResetNeeded, InvalidAction, SimulationFailed.
        """
        episodes = self._episodes
        episodes.step({self.tl: action})
        is_over = episodes.ended_s is not None
        return self._observation(), episodes.rewards[self.tl], False, is_over, episodes.infos[self.tl]

    def _observation(self) -> Observation:
        return self._episodes.observations[self.tl].copy()

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the street around the TL: uint8 [height, width, 3]; None without a render mode."""
        return self._episodes.render()

    def close(self) -> None:
        """End SUMO and the embedded server, and remove their files."""
        self._episodes.close()
