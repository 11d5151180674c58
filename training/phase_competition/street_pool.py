"""The streets of a training: their settings, their demand, and an episode on one of them."""

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city import config, network
from city.errors import InputError
from export.actors.phase_competition import Junction
from signals.contract import controllable
from simulation.demand import MAX_SUMO_SEED
from simulation.street_simulation import SimulationFailed
from simulation.trips import Trips
from training.episode import EpisodeSimulator, TrainingTask
from training.phase_competition.networks import StreetLayout
from training.synthetic.demand import RandomDemand
from training.transitions import Float32s, Transitions

SUMOCFG = "street.sumocfg"
"""Name of the configuration in a street's folder."""
INTERVALS_S, INTERVAL_SHARES = (5, 3, 4, 6, 8, 10), (0.7, 0.06, 0.06, 0.06, 0.06, 0.06)
MIN_GREENS_S, MIN_GREEN_SHARES = (5.0, 4.0, 7.0, 10.0), (0.7, 0.1, 0.1, 0.1)
PATH_RED_SHARE = 0.4
"""Share of the streets with an all-red by the junction's size, as the controller has by default; none on the others."""
MAX_KEPT_STREETS = 200
"""Streets that a process keeps in memory."""


@dataclass(frozen=True)
class RandomTraffic:
    """A random demand of one episode, with the interface of `simulation.demand.Demand`."""

    net_file: Path
    seed: int
    vehicles_per_lane_h: float
    seconds: float

    def options(self, sumocfg: Path, folder: Path) -> list[str]:
        """SUMO's options. `folder`: where the route file is written. Vehicles are not removed from a gridlock."""
        routes = folder / "demand.rou.xml"
        rng = np.random.default_rng([self.seed, 4])
        _demand_of(self.net_file).write(routes, rng, self.vehicles_per_lane_h, self.seconds)
        return [
            "--seed", str(self.seed % MAX_SUMO_SEED), "--random", "false", "--route-files", str(routes),
            "--time-to-teleport", "-1",
        ]  # fmt: skip


@functools.lru_cache(MAX_KEPT_STREETS)
def _demand_of(net_file: Path) -> RandomDemand:
    return RandomDemand(net_file)


@dataclass(frozen=True)
class StreetEpisode:
    """The results of an episode."""

    junctions: tuple[Junction, ...]
    transitions: tuple[Transitions, ...]
    """By junction; empty without exploration."""
    trips: Trips


class StreetSimulator:
    """Runs episodes on many streets, one after another, in this process."""

    def __init__(self, seconds: float, reward: str = "delay") -> None:
        self._seconds, self._reward = seconds, reward
        self._simulators: OrderedDict[Path, EpisodeSimulator] = OrderedDict()

    def run(
        self, folder: Path, arrays: Sequence[Float32s], vehicles_per_lane_h: float, seed: int, explore: bool, sharpness: float
    ) -> StreetEpisode | str:
        """Simulate an episode on the street of a folder; the reason if SUMO ends it early. Raises InputError.

        Args:
            folder: of `synthetic.streets.generate`, or one like it.
            arrays: actor and critic; none for the heuristic.
            vehicles_per_lane_h: demand.
            seed: of the demand and the exploration.
            explore: sample actions and record transitions.
            sharpness: factor of the scores.
        """
        simulator = self._simulator(folder)
        traffic = RandomTraffic(simulator.street.net_file, seed, vehicles_per_lane_h, self._seconds)
        try:
            episode = simulator.run([list(arrays)], traffic, (seed, 5), explore, sharpness)
        except SimulationFailed as error:
            return str(error)  # one street must not end a training on hundreds
        (layout,) = simulator.layouts
        assert isinstance(layout, StreetLayout), "all TLs of a street have the street dialect"
        by_tl = dict(zip(layout.tls, layout.junctions, strict=True))
        pairs = [(junction, episode.transitions[tl]) for tl, junction in by_tl.items() if tl in episode.transitions]
        return StreetEpisode(tuple(j for j, _ in pairs), tuple(t for _, t in pairs), episode.trips)

    def _simulator(self, folder: Path) -> EpisodeSimulator:
        if folder not in self._simulators:
            if len(self._simulators) >= MAX_KEPT_STREETS:
                self._simulators.popitem(last=False)
            city = city_of(folder)
            task = TrainingTask(city, tuple(city.tls), reward=self._reward, seconds=self._seconds)
            self._simulators[folder] = EpisodeSimulator(task)
        return self._simulators[folder]


def city_of(folder: Path) -> config.City:
    """A street as a city whose signals have the street dialect, with settings drawn by its name. Raises InputError."""
    sumocfg = folder / SUMOCFG
    rng = np.random.default_rng(list(folder.name.encode()))
    interval_s = int(rng.choice(INTERVALS_S, p=INTERVAL_SHARES))
    min_green_s = float(rng.choice(MIN_GREENS_S, p=MIN_GREEN_SHARES))
    safety = config.Safety(all_red_s=None if rng.random() < PATH_RED_SHARE else 0.0)
    street = network.of_sumocfg(sumocfg)
    tls = {
        signal: config.TL((signal,), "street", signal, delta_time_s=interval_s, min_green_s=min_green_s)
        for signal in street.signals
    }
    city = config.City(folder / "city.toml", config.Network(sumocfg=sumocfg), safety=safety, tls=tls)
    fit, _ = controllable(city, tls, street)
    if not fit:
        raise InputError(f"{sumocfg}: has no signal that can be controlled; leave it out")
    return config.City(city.path, city.network, safety=safety, tls={tl: tls[tl] for tl in fit})
