"""No policies: for a controller whose TLs max-pressure drives."""

from collections.abc import Mapping

from city.config import City
from city.network import StreetNetwork
from protos import policy_pb2 as pb
from signals import contract
from signals.observation import Observation
from signals.policy import Action


class NoPolicies:
    """`Policies` without a model. No TL is asked about, because max-pressure chooses."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        """Return no action."""
        return {}


def contracts_of_city(city: City, tls: tuple[str, ...], street: StreetNetwork) -> dict[str, pb.PolicyContract]:
    """The contracts that policies of these TLs would have: their greens, lanes and times. Raises InputError."""
    return {tl: contract.build(city, city.tls[tl], street) for tl in tls}
