"""The rewards of a training are those of `simulation.rewards`."""

from simulation.rewards import DELAY_SCALE, names

__all__ = ["DELAY_SCALE", "names"]
