"""No policies: for TLs that are controlled without a model."""

from collections.abc import Mapping
from dataclasses import replace

from city import init, network
from city.config import TL, City
from city.errors import InputError
from city.network import StreetNetwork
from protos import policy_pb2 as pb
from signals import contract
from signals.observation import Observation
from signals.policy import Answer


class NoPolicies:
    """`Policies` without a model. No TL is asked about, because a baseline chooses."""

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """Return no answer."""
        return {}


def with_tls(city: City) -> City:
    """The city; if it describes no TL, every signal is one, named as `greenserve city init` names it. Raises
    InputError."""
    if city.tls:
        return city
    street = network.of_city(city)
    if not street.signals:
        raise InputError(f"{street.net_file}: has no signal; correct [network] of {city.path}")
    return replace(
        city, tls={tl: TL((signal,), init.SUMO_RL, tl) for tl, signal in init.tl_names(street.signals).items()}
    )


def contracts_of_city(city: City, tls: tuple[str, ...], street: StreetNetwork) -> dict[str, pb.PolicyContract]:
    """The contracts that policies of these TLs would have: their greens, lanes and times. Raises InputError."""
    return {tl: contract.build(city, city.tls[tl], street) for tl in tls}
