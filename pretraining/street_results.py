"""A policy or a driver in control of a street, and what becomes of the vehicles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from city.config import City
from city.network import StreetNetwork
from controller.policies.no_policies import NoPolicies
from pretraining.junction_policies import JunctionPolicies
from pretraining.streets import RandomTraffic
from signals import contract
from simulation.controlled_simulation import Control, ControlledSimulation
from simulation.street_simulation import simulated
from simulation.trips import read_trips

GRIDLOCK_SHARE = 0.7
"""An arm with fewer arrivals than this share of the best arm's has a gridlock."""


@dataclass(frozen=True)
class StreetResult:
    """An arm on a street."""

    delay_s: float
    """Mean over all vehicles, also those that have not arrived or departed."""
    finished: int
    total: int
    duration_s: float
    """Mean time in the network, over all vehicles."""


def has_gridlock(by_arm: Mapping[str, StreetResult], arm: str) -> bool:
    """Whether an arm has far fewer arrivals than the best one."""
    return by_arm[arm].finished < GRIDLOCK_SHARE * max(result.finished for result in by_arm.values())


def control_of(city: City, street: StreetNetwork, policy: Path | None, driver: str | None = None) -> Control:
    """Control of all TLs of a street by a policy for any junction, or by a driver. Raises InputError.

    Args:
        city: the TLs and their times.
        street: the city's network.
        policy: the policy's file.
        driver: one of `controller.assembly.DRIVERS`, which controls in the place of a policy.
    """
    contracts = [contract.build(city, tl, street) for tl in city.tls.values()]
    return Control(contracts, NoPolicies() if policy is None else JunctionPolicies(contracts, policy), driver)


def simulate(
    city: City,
    street: StreetNetwork,
    traffic: RandomTraffic,
    control: Control,
    folder: Path,
    options: Sequence[str] = (),
) -> StreetResult:
    """Simulate a street under control to the end of its traffic. Raises InputError, SimulationFailed.

    `folder`: for the files of the simulation. `options`: further options of SUMO.
    """
    tripinfo = folder / "tripinfo.xml"
    with simulated(city, traffic, tripinfo, options) as connection:
        ControlledSimulation(connection, city, street, control).advance(traffic.seconds)
    trips = read_trips(tripinfo)
    return StreetResult(trips.delay_s, trips.finished, trips.total, trips.duration_s)
