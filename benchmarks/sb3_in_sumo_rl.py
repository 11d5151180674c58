"""stable-baselines3's PPO in sumo-rl's environment with SuperSuit, for `benchmarks.time_to_policy`.

    python -m benchmarks.sb3_in_sumo_rl train CITY FOLDER SEED BEGIN LIMIT_S
    python -m benchmarks.sb3_in_sumo_rl evaluate CITY ZIP SEED TRIPINFO

As sumo-rl's documentation does it (its experiments/sb3_grid4x4.py): one network for all signals, with that script's
hyperparameters. Three things differ. Signals with fewer lanes or greens are padded, because the script's street has
equal ones. The simulation runs over libsumo, which its documentation recommends for speed; that allows one environment
in a process, where the script has two over TraCI. And an update has 2 * 256 decisions of each signal, as with the
script's two environments.
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["LIBSUMO_AS_TRACI"] = "1"  # before traci is imported
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # stable-baselines3 imports TensorFlow's TensorBoard
import sumo

os.environ["SUMO_HOME"] = sumo.SUMO_HOME
import sumo_rl
import supersuit
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecMonitor

from city import config, network, sumo_files
from controller.sumo.tripinfo import TRIPINFO_OPTIONS

HYPERPARAMETERS: dict[str, Any] = {
    "gamma": 0.95, "n_steps": 512, "ent_coef": 0.0905168, "learning_rate": 0.00062211, "vf_coef": 0.042202,
    "max_grad_norm": 0.9, "gae_lambda": 0.99, "n_epochs": 5, "clip_range": 0.3, "batch_size": 256,
}  # fmt: skip


def environment(city: Path, seed: int | str, *options: str) -> Any:
    """sumo-rl's PettingZoo environment of a city's street, padded. `seed`: SUMO's, or random."""
    sumocfg = config.load(city).network.sumocfg
    assert sumocfg is not None, "city init has written one"
    street = network.of_sumocfg(sumocfg)
    assert street.end_s is not None
    routes = ",".join(map(str, sumo_files.listed_files(sumocfg, "route-files")))
    env = sumo_rl.parallel_env(
        net_file=str(street.net_file), route_file=routes, begin_time=int(street.begin_s),
        num_seconds=int(street.end_s - street.begin_s), sumo_seed=seed, sumo_warnings=False, add_system_info=False,
        add_per_agent_info=False, additional_sumo_cmd=" ".join(["--no-step-log", "true", *options]),
    )  # fmt: skip
    env.unwrapped.render_mode = None  # SuperSuit of today reads it
    return supersuit.pad_action_space_v0(supersuit.pad_observations_v0(env))


class Snapshots(BaseCallback):
    """Saves the policy after each update, named by the wall time of the training so far; ends it at a limit."""

    def __init__(self, folder: Path, begin_s: float, limit_s: float) -> None:
        super().__init__()
        self._folder, self._begin_s, self._limit_s = folder, begin_s, limit_s

    def _on_rollout_start(self) -> None:
        if self.n_calls:  # 0 before the first update
            self.model.save(self._folder / f"{time.time() - self._begin_s:08.1f}.zip")

    def _on_step(self) -> bool:
        return time.time() - self._begin_s < self._limit_s


def train(city: Path, folder: Path, seed: int, begin_s: float, limit_s: float) -> None:
    """Train for a wall time that counts from `begin_s` (time.time), so with the imports of this process; save
    snapshots.

    `seed`: of the weights and of the exploration; SUMO's own is random, so that episodes differ.
    """
    set_random_seed(seed)  # PPO's argument would seed the environment too, which SuperSuit's has no method for
    envs = supersuit.pettingzoo_env_to_vec_env_v1(environment(city, "random"))
    envs = VecMonitor(supersuit.concat_vec_envs_v1(envs, 1, num_cpus=1, base_class="stable_baselines3"))
    model = PPO("MlpPolicy", envs, device="cpu", **HYPERPARAMETERS)
    model.learn(sys.maxsize, callback=Snapshots(folder, begin_s, limit_s))


def evaluate(city: Path, checkpoint: Path, seed: int, tripinfo: Path) -> None:
    """Simulate an episode with the best actions of a saved policy."""
    model = PPO.load(checkpoint, device="cpu")
    env = environment(city, seed, "--tripinfo-output", str(tripinfo), *TRIPINFO_OPTIONS)
    observations = env.reset(seed=seed)[0]
    while env.agents:
        actions = {
            agent: int(model.predict(observation, deterministic=True)[0]) for agent, observation in observations.items()
        }
        observations = env.step(actions)[0]
    env.close()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        if sys.argv[1] == "train":
            train(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
        else:
            evaluate(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
