"""sumo-rl's class `SumoEnvironment`, for scripts that take the dictionaries of its `step`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from environment.episodes import Episodes, Info
from environment.options import Options
from environment.single_env import SingleTlEnv
from signals.observation import Observation


def SumoEnvironment(
    net_file: str | Path, route_file: str | Path, *, single_agent: bool = False, **options: Any
) -> "SingleTlEnv | DictEnv":
    """sumo-rl's environment of one signal or, by default, of all of them. Raises InputError.

    `options`: sumo-rl's arguments and ours (`environment.options.Keywords`).
    """
    given: Any = {"net_file": net_file, "route_file": route_file, "single_agent": single_agent, **options}
    return SingleTlEnv(given) if single_agent else DictEnv(given)


class DictEnv:
    """Several signals as sumo-rl's class has them (sumo_rl/environment/env.py of sumo-rl 1.4.5)."""

    def __init__(self, options: Options) -> None:
        self._episodes = episodes = Episodes(options, is_single=False)
        self.ts_ids = list(episodes.contracts)
        spaces = episodes.observation_spaces, episodes.action_spaces
        self.observation_spaces, self.action_spaces = (by_signal.__getitem__ for by_signal in spaces)
        self.observation_space, self.action_space = (by_signal[self.ts_ids[0]] for by_signal in spaces)
        # a closed environment can be reset, as in sumo-rl
        self.close, self.render, self.save_csv = episodes.end_episode, episodes.render, episodes.save_csv

    def reset(self, seed: int | None = None, **_: Any) -> dict[str, Observation]:
        """Begin an episode; return the observations by signal. Raises InputError, SimulationFailed."""
        self._episodes.reset(seed)
        self._episodes.figures.clear()  # as in sumo-rl, whose other environments have a row of the reset
        return dict(self._episodes.observations)

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], Info]:
        """Apply an action for each signal; return observations, rewards, `dones` with `__all__`, and the figures.

        Raises ResetNeeded, InvalidAction, SimulationFailed.
        """
        episodes = self._episodes
        episodes.step(action)
        dones = dict.fromkeys(self.ts_ids, False) | dict(__all__=episodes.ended_s is not None)
        return dict(episodes.observations), dict(episodes.rewards), dones, episodes.figures[-1]

    def encode(self, state: Observation, ts_id: str) -> tuple[float, ...]:
        """An observation as a key of a table: green phase, min green bit, densities and queues in tenths (0 to 9)."""
        greens = int(self._episodes.contracts[ts_id].action.size)
        phases, (min_green,), shares = np.split(state, [greens, greens + 1])
        return int(np.argmax(phases)), min_green, *(min(int(10 * share), 9) for share in shares)
