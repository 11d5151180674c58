"""A city's TLs as a PettingZoo or Gymnasium environment (docs/environment.md)."""

import importlib.util
import sys
from types import ModuleType

from gymnasium.envs.registration import register

from environment.options import Options
from environment.parallel_env import ParallelTlEnv, parallel_env
from environment.single_env import SingleTlEnv, env
from environment.sumo_environment import SumoEnvironment
from simulation.tl_readings import TlReadings

_NO_TENSORFLOW = "tensorboard.compat.notf"
if "tensorflow" not in sys.modules and importlib.util.find_spec("triton"):
    # stable-baselines3 imports TensorBoard, which would load TensorFlow to write its files, and PyTorch with Triton
    # crashes beside it: with this module, TensorBoard writes them itself
    sys.modules.setdefault(_NO_TENSORFLOW, ModuleType(_NO_TENSORFLOW))

register("greenserve-v0", entry_point="environment.single_env:env")

__all__ = ["Options", "ParallelTlEnv", "SingleTlEnv", "SumoEnvironment", "TlReadings", "env", "parallel_env"]
