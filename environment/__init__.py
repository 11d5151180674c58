"""A city's TLs as a PettingZoo or Gymnasium environment (docs/environment.md)."""

from gymnasium.envs.registration import register

from environment.options import Options
from environment.parallel_env import ParallelTlEnv, parallel_env
from environment.single_env import SingleTlEnv, env
from simulation.tl_readings import TlReadings

register("greenserve-v0", entry_point="environment.single_env:env")

__all__ = ["Options", "ParallelTlEnv", "SingleTlEnv", "TlReadings", "env", "parallel_env"]
