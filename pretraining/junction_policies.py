"""A policy for any junction in this process, with NumPy: for simulations of hundreds of streets, without a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from export.actors.phase_competition import Junction, Padded, PhaseCompetition, logits
from export.checkpoints import phase_networks
from protos import policy_pb2 as pb
from signals.observation import Observation
from signals.policy import Answer


class JunctionPolicies:
    """The `Policies` of the decision step: the actions that exported models of the policy would give."""

    def __init__(self, contracts: Sequence[pb.PolicyContract], policy: Path) -> None:
        """Read the policy's file. Raises InputError. `contracts`: of the street dialect."""
        network, _ = phase_networks.load(policy)
        self._network = {name: array.astype(np.float64) for name, array in network.items()}
        junctions = [Junction.of_contract(c) for c in contracts]
        self._junctions = Padded.of(junctions)
        steps = [PhaseCompetition(network, junction) for junction in junctions]
        columns = [step.fleet_columns(steps) for step in steps]
        self._columns = {c.tl: (row, columns[row]) for row, c in enumerate(contracts)}
        """By TL, its row of the junctions, and the columns of its observation that make a padded one
        (`fleet_columns`)."""

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """The answer of every TL."""
        if not observations:
            return {}
        rows, x = [], []
        for tl, observation in observations.items():
            row, columns = self._columns[tl]
            rows.append(row)
            x.append(np.append(observation, 0.0)[columns])
        actions = logits(self._network, self._junctions.take(np.array(rows)), np.array(x)).argmax(1)
        return {tl: Answer(np.array([action], np.float64)) for tl, action in zip(observations, actions, strict=True)}
