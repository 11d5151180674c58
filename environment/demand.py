"""The demand of an environment's episodes, by seed and episode."""

from pathlib import Path

import numpy as np

from city.errors import InputError
from simulation.demand import MAX_SUMO_SEED, Demand, SimulatedDemand, varied

VARIED, CITY, SAME = NAMES = ("varied", "city", "same")
GivenDemand = str | Path | SimulatedDemand
"""One of NAMES, a route file, or a demand of the user's own."""


def check_demand(demand: GivenDemand) -> None:
    """Raise InputError if a demand is neither a name of NAMES, nor a file, nor a demand."""
    if isinstance(demand, str | Path):
        if demand not in NAMES and not Path(demand).is_file():
            raise InputError(f"demand: {demand}: no such file; pass {', '.join(NAMES)}, a route file, or a Demand")
    elif not callable(getattr(demand, "options", None)):
        raise InputError(f"demand = {demand!r} must be {', '.join(NAMES)}, a route file, or a Demand")


def demand_of(demand: GivenDemand, seed: int, episode: int) -> SimulatedDemand:
    """The demand of an episode since `reset(seed=seed)`.

    `varied`: that of the same episode of a training with this seed. `city` and route files: SUMO's seed is the sum of
    seed and episode. `same`: the city's, with the seed as SUMO's in every episode, as in sumo-rl. A demand of the
    user's own is the same in every episode.
    """
    if demand == VARIED:
        return varied(np.random.default_rng([seed, episode]), varies=True)
    if isinstance(demand, str | Path):
        sumo_seed = seed if demand == SAME else seed + episode
        route_file = None if demand in (CITY, SAME) else Path(demand).resolve()
        return Demand(sumo_seed % MAX_SUMO_SEED, route_file=route_file)
    return demand
