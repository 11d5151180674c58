"""A policy for any junction in this process, with NumPy: for simulations of hundreds of streets, without a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from export.actors.phase_competition import Array, Junction, PhaseCompetition
from export.checkpoints import phase_networks
from protos import policy_pb2 as pb
from signals.observation import Observation
from signals.policy import Answer


class JunctionPolicies:
    """The `Policies` of the decision step: the actions that exported models of the policy would give."""

    def __init__(self, contracts: Sequence[pb.PolicyContract], policy: Path) -> None:
        """Read the policy's file. Raises InputError. `contracts`: of the street dialect."""
        networks, _ = phase_networks.load(policy)
        self._steps = {c.tl: PhaseCompetition(networks, Junction.of_contract(c)) for c in contracts}

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Answer | Exception]:
        """The answer of every TL."""
        return {tl: Answer(self._action(self._steps[tl], observation)) for tl, observation in observations.items()}

    def _action(self, step: PhaseCompetition, observation: Observation) -> Array:
        logits = step.evaluate(observation[None].astype(np.float64), [])
        return np.asarray(logits.argmax(1), np.float64)
