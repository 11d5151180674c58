"""Episodes of a training on many streets."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from export.actors.phase_competition import Junction
from pretraining.streets import MAX_KEPT_STREETS, RandomTraffic, StreetFiles, city_of, unpacked
from simulation.street_simulation import SimulationFailed
from simulation.trips import Trips
from training.episode import EpisodeSimulator, TrainingTask
from training.phase_competition.networks import StreetLayout
from training.transitions import Float32s, Transitions


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
        self._simulator = functools.lru_cache(MAX_KEPT_STREETS)(self._new_simulator)

    def run(
        self,
        street: StreetFiles,
        arrays: Sequence[Float32s],
        vehicles_per_lane_h: float,
        seed: int,
        explore: bool,
        sharpness: float,
    ) -> StreetEpisode | str:
        """Simulate an episode on a street; the reason if SUMO ends it early. Raises InputError.

        Args:
            street: of `synthetic.streets.generate`, or one like it.
            arrays: actor and critic; none for the heuristic.
            vehicles_per_lane_h: demand.
            seed: of the demand and the exploration.
            explore: sample actions and record transitions.
            sharpness: factor of the scores.
        """
        with unpacked(street) as folder:
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

    def _new_simulator(self, folder: Path) -> EpisodeSimulator:
        city = city_of(folder)
        return EpisodeSimulator(TrainingTask(city, tuple(city.tls), reward=self._reward, seconds=self._seconds))
