"""The policies of a controller that has just started, from a model server."""

import numpy as np

from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies


class ControlledTls:
    """TLs with their contracts, their fleet if it has a name, and observations."""

    def __init__(self, client, tls, version=None, fleet="", deadline_s=5.0, with_scores=False):
        self.contracts = fetch_contracts(client, tls, version, fleet)
        self.fleet = ServedFleet(client, fleet, self.contracts, version) if fleet else None
        self.policies = ServedPolicies(
            client, self.contracts, version, deadline_s, fleet=self.fleet, with_scores=with_scores
        )
        rng = np.random.default_rng(0)
        self.observations = {tl: rng.random(c.observation.size, np.float32) for tl, c in self.contracts.items()}

    def ask(self, tls=None):
        return self.policies.ask({tl: self.observations[tl] for tl in tls or self.observations})


def failed(answers):
    return {tl for tl, answer in answers.items() if isinstance(answer, Exception)}
