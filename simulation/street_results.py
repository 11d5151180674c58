"""A policy or a driver in control of a street, and what becomes of the vehicles."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from city.config import City
from city.network import StreetNetwork
from controller.assembly import assemble
from controller.policies.no_policies import NoPolicies
from controller.sumo.connection import SumoConnection
from signals import contract
from signals.policy import Policies
from simulation.junction_policies import JunctionPolicies

GRIDLOCK_SHARE = 0.7
"""An arm with fewer arrivals than this share of the best arm's has a gridlock."""


@dataclass(frozen=True)
class StreetResult:
    """An arm on a street."""

    delay_s: float
    """Mean over all vehicles, also those that have not arrived or departed."""
    finished: int
    total: int


def has_gridlock(by_arm: Mapping[str, StreetResult], arm: str) -> bool:
    """Whether an arm has far fewer arrivals than the best one."""
    return by_arm[arm].finished < GRIDLOCK_SHARE * max(result.finished for result in by_arm.values())


def control(
    connection: SumoConnection,
    city: City,
    street: StreetNetwork,
    seconds: float,
    policy: Path | None,
    driver: str | None = None,
) -> None:
    """Control all TLs of a running simulation. Raises InputError.

    Args:
        connection: the simulation.
        city: the TLs and their times.
        street: the city's network.
        seconds: second at which the control ends.
        policy: file of a policy for any junction.
        driver: one of `controller.assembly.DRIVERS`, which controls in the place of a policy.
    """
    contracts = [contract.build(city, tl, street) for tl in city.tls.values()]
    policies: Policies = NoPolicies() if policy is None else JunctionPolicies(contracts, policy)
    loop = assemble(connection, street, contracts, policies, city.safety, city.controller, driver=driver)
    while loop.now < seconds:
        loop.step(seconds)
