"""Shadow evaluation: what other models would have decided in a recorded run.

The models get requests with the recorded observations, while the replay follows the recorded
answers. So each decision is compared in the situation in which it was really taken, and
what the other decision would have led to later is not simulated.
"""

import copy
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from city.errors import InputError
from controller.policies.served_contracts import fetch_contracts, same_contract, without_origin
from protos import policy_pb2 as pb
from records.differences import differing_fields
from records.record_reader import RecordedStep
from serving.client import Client, Version
from serving.contract import PROBABILITIES, scores_name
from signals.intersection import Intersection
from signals.policy import ROUNDING, ActionSpace, Answer, InvalidAction, Policies

MAX_RECHECKS = 64
"""Moments between two decisions at which a would-be decision needs commands."""
PERCENTILES = (50, 95, 99)


@dataclass
class TlShadow:
    """Would-be decisions of a TL's other model."""

    asked: int = 0
    missing: int = 0
    """Requests without a valid action."""
    first_failure: str = ""
    """Why the first of them was missing."""
    decisions: int = 0
    """Recorded decisions of a policy that the model answered too."""
    otherwise: int = 0
    """Decisions of them with another choice or other values."""
    probability: float = 0.0
    """Sum over these of the probability of the model's choice."""
    recorded_probability: float = 0.0
    """Sum over these of the model's probability of the recorded choice."""
    with_probability: int = 0
    """Number of values in both sums."""
    overrides: int = 0
    """Overrides that the other decisions would have met at once, up to the next decision."""
    recorded_overrides: int = 0
    """Overrides that the recorded decisions met in the same time."""
    versions: set[int] = field(default_factory=set)
    latency_s: "array[float]" = field(default_factory=lambda: array("f"))
    """Wall time of the requests that this TL was part of."""

    def as_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        counted = self.with_probability
        return {
            "asked": self.asked,
            "missing": self.missing,
            "first_failure": self.first_failure,
            "decisions": self.decisions,
            "otherwise": self.otherwise,
            "mean_probability": self.probability / counted if counted else None,
            "mean_probability_of_recorded": self.recorded_probability / counted if counted else None,
            "would_be_overrides": self.overrides,
            "recorded_overrides": self.recorded_overrides,
            "versions": sorted(self.versions),
            "latency_ms": percentiles_ms(self.latency_s),
        }


def percentiles_ms(latency_s: Sequence[float]) -> dict[str, float | None]:
    """The PERCENTILES of wall times, in ms, as p50 and so on; None without any."""
    return {f"p{p}": float(np.percentile(latency_s, p)) * 1000 if len(latency_s) else None for p in PERCENTILES}


def served_contracts(
    client: Client, recorded: Sequence[pb.PolicyContract], version: Version, fleet: str
) -> dict[str, pb.PolicyContract]:
    """The contracts of the served models. Raises InputError if a model is missing, or its contract is not the recorded
    one."""
    contracts = fetch_contracts(client, [contract.tl for contract in recorded], version, fleet)
    for contract in recorded:
        served = contracts[contract.tl]
        if same_contract(contract, served):
            continue
        differences = differing_fields(without_origin(contract), without_origin(served))
        path, before, after = next(differences, ("contract", "?", "?"))
        raise InputError(
            f"{client.address}: model {contract.tl} has another contract than the record: {path} is {after}, recorded "
            f"{before}; request a version of the same contract (--model-number), or leave this TL out with --tl"
        )
    return contracts


class ShadowEvaluation:
    """Queries policies beside a replay, which follows the recorded answers."""

    def __init__(
        self,
        served: Policies,
        contracts: Mapping[str, pb.PolicyContract],
        intersections: Callable[[], Mapping[str, Intersection]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`contracts`: of the TLs whose models are queried. `intersections`: of the replay's newest loop."""
        self._served = served
        self._clock = clock
        self._spaces = {tl: ActionSpace(contract) for tl, contract in contracts.items()}
        self._has_probabilities = {tl for tl, contract in contracts.items() if scores_name(contract) == PROBABILITIES}
        self._intersections = intersections
        self.by_tl = {tl: TlShadow() for tl in contracts}
        self.latency_s = array("f")

    def ask(self, step: RecordedStep, answers: Mapping[str, Answer | Exception]) -> None:
        """Query the models of the TLs that decided in a step. `answers`: the recorded ones."""
        asked = {
            tl: np.array(step.tls[tl].decision.observation, np.float32)
            for tl in answers
            if tl in self.by_tl and self._intersections()[tl].has_policy
        }
        if not asked:
            return
        begin = self._clock()
        served = self._served.ask(asked)
        latency_s = self._clock() - begin
        self.latency_s.append(latency_s)
        for tl in asked:
            self.by_tl[tl].latency_s.append(latency_s)
            self._add(tl, step.step.at_s, answers[tl], served.get(tl))

    def _add(self, tl: str, now: float, answer: Answer | Exception, served: Answer | Exception | None) -> None:
        shadow, intersection = self.by_tl[tl], self._intersections()[tl]
        shadow.asked += 1
        action = self._action(tl, served)
        if isinstance(action, str):
            shadow.missing += 1
            shadow.first_failure = shadow.first_failure or action
            return
        assert isinstance(served, Answer), "it has a valid action"
        shadow.versions.add(served.version)
        recorded_action = self._action(tl, answer)
        # an answer in fallback, or before the dialect may decide, only shows that the policy is available
        if isinstance(recorded_action, str) or not intersection.decides_at(now):
            return
        shadow.decisions += 1
        if np.allclose(action, recorded_action, rtol=0.0, atol=ROUNDING):
            return
        shadow.otherwise += 1
        if tl in self._has_probabilities and served.scores is not None:
            shadow.with_probability += 1
            shadow.probability += float(served.scores[int(action[0])])
            shadow.recorded_probability += float(served.scores[int(recorded_action[0])])
        shadow.overrides += would_be_overrides(intersection, served, now)
        shadow.recorded_overrides += would_be_overrides(intersection, answer, now)

    def _action(self, tl: str, answer: Answer | Exception | None) -> tuple[float, ...] | str:
        """The values of a valid action, or why there is none."""
        if not isinstance(answer, Answer):
            return f"{type(answer).__name__}: {answer}" if answer is not None else "no answer"
        try:
            return self._spaces[tl].validated(answer.action)
        except (InvalidAction, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


def would_be_overrides(intersection: Intersection, answer: Answer | Exception, now: float) -> int:
    """Overrides that an answer would meet up to the next decision. The intersection itself is not changed."""
    shared = [intersection.contract, *(safety.rules for safety in intersection.safeties)]
    would_be = copy.deepcopy(intersection, {id(each): each for each in shared})
    would_be.apply_answer(answer, now)
    overrides = 0
    for _ in range(MAX_RECHECKS):
        overrides += len(would_be.commands(now)[1])
        now = would_be.next_due_s(now)
        if now >= would_be.state.next_decision_s:
            break
    return overrides
