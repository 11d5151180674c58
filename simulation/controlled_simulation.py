"""A simulation under control: the decision steps of its TLs, from the takeover of their signals on.

The trainer and the environment (both through `target_tls`), the evaluation, and the results on many streets
(`street_results`) stand on this, and add their measurements:

    with simulated(city, demand, tripinfo) as connection:
        simulation = ControlledSimulation(connection, city, street, Control(contracts, policies))
        simulation.advance(end_s)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from city.config import City
from city.network import StreetNetwork
from controller.assembly import ControlledTls, assemble
from controller.events import Subscriber
from controller.policies.no_policies import NoPolicies
from controller.sumo.connection import StartConnection
from protos import policy_pb2 as pb
from signals.observation import Observation
from signals.policy import Answer, Policies
from simulation.street_simulation import SimulationFailed, failures_of


@dataclass(frozen=True)
class Control:
    """Control of the TLs of a simulation; all other signals run their programs."""

    contracts: Sequence[pb.PolicyContract] = ()
    """Contracts of the controlled TLs."""
    policies: Policies = field(default_factory=NoPolicies)
    driver: str | None = None
    """One of `controller.assembly.DRIVERS`, in the place of the policies."""
    is_checked: bool = False
    """The contracts are known to match the network file (`check_contract_matches_network`)."""


class ControlledSimulation:
    """The decision steps of a running simulation."""

    def __init__(
        self,
        connection: StartConnection,
        city: City,
        street: StreetNetwork,
        control: Control,
        subscribers: Sequence[Subscriber] = (),
    ) -> None:
        """Check the contracts against the simulation, and take the signals over. Raises InputError.

        `subscribers`: get the decision events; without any, no monitors check the shown states.
        """
        self.connection, self._policies, self._sumocfg = connection, control.policies, city.network.sumocfg
        tls = ControlledTls(street, control.contracts, city.safety, city.controller, control.driver)
        self.loop = assemble(connection, tls, control.policies, subscribers, bool(subscribers), control.is_checked)

    @property
    def now(self) -> float:
        """Simulated second."""
        return self.loop.now

    def observe(self) -> dict[str, Observation]:
        """The observations of the TLs that are due now; {} if none is. Raises SimulationFailed."""
        with failures_of(self.connection, self._sumocfg):
            observations = self.loop.observe()
            self.connection.shown()  # receive it before a measurement requests readings of its own
        return observations

    def step(self, until_s: float, given: Mapping[str, Answer] = {}) -> None:
        """Run a decision step, at most to second until_s.

        `given`: answers of due TLs; the policies are asked for those of the others.
        Raises SimulationFailed if SUMO ends early, or a policy has no valid answer.
        """
        begin_s = self.now
        with failures_of(self.connection, self._sumocfg):
            asked = {tl: observation for tl, observation in self.loop.observe().items() if tl not in given}
            # the answers' deadline begins now: the caller may have taken its time since the readings
            answers = self._policies.ask(asked) if asked else {}
            self.loop.act({**answers, **given}, until_s)
            self.connection.shown()
        if missing := asked.keys() & self.loop.counters.missing_answers.keys():
            # its policy does not control it any more
            raise SimulationFailed(
                f"{min(missing)} had no valid answer from its policy at second {begin_s:g}; look at the log of its "
                "model server"
            )

    def advance(self, until_s: float) -> None:
        """Run decision steps to second until_s. Raises SimulationFailed as `step`."""
        while self.now < until_s:
            self.step(until_s)
