"""Readings of three lanes."""

import numpy as np

from signals.observation import Readings

LENGTH_M = np.array([75.0, 30.0, 50.0])


def readings(vehicles, halting=(0, 0, 0), mean_length=(5, 5, 5), outflow=(0, 0, 0)):
    return Readings(np.array([vehicles, halting], float), np.array(mean_length, float), np.array(outflow, float))
