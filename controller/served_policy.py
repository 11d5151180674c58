"""Policies that a model server answers for: actions within the deadline, whatever becomes of the server."""

import logging
import time
from collections.abc import Callable, Mapping

from controller.observation import Observation
from controller.policy import Action
from controller.served_contracts import ServedContracts
from controller.served_fleet import ServedFleet
from protos import policy_pb2 as pb
from serving.client import Client
from serving.contract import ACTION, ContractError
from serving.errors import BadAnswer, DeadlineExceeded, ServingError, Unavailable
from serving.messages import Answer

log = logging.getLogger("controller")

LATE_S = 0.05
"""What the answers' own way through this process may add to the deadline."""
RENEW_S = 1.5
"""Wall time between two questions without an answer after which a new connection is tried: the one there is may lead nowhere."""
COMPARE_S = 0.1
"""Wall time that asking new versions for their contracts may take at least."""


class ServedPolicies:
    """All TLs that are due, asked at once: the fleet for those that it covers, the others by themselves."""

    def __init__(
        self,
        client: Client,
        contracts: Mapping[str, pb.Policy],
        model_number: int | None,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
        fleet: ServedFleet | None = None,
    ) -> None:
        """`deadline_s`: how long after its observation an answer may come."""
        self._fleet = fleet
        self._client = client
        self.contracts = ServedContracts(client, contracts)
        self._pinned = {} if model_number is None else dict.fromkeys(contracts, model_number)
        self._deadline_s = deadline_s
        self._clock = clock
        self._silent_s: float | None = None
        """Since when every call has run into its deadline."""
        self._hanging: set[str] = set()
        """TLs that were not answered where others were: their models hang, and say nothing of the connection."""

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        """Actions by TL within the deadline; an exception where there is none. Never raises."""
        end = (self._clock() if observed_s is None else observed_s) + self._deadline_s
        try:
            found = self._ask(observations, end)
            self._listen(found)
            return found
        except Exception as error:  # noqa: BLE001 - whatever breaks here must become a fallback, not the end of the run
            return dict.fromkeys(observations, error)

    def _listen(self, answers: Mapping[str, Action | Exception]) -> None:
        """A server that does not answer at all may be one that this connection does not reach any more."""
        now = self._clock()
        silent = {tl for tl, answer in answers.items() if isinstance(answer, DeadlineExceeded)}
        if len(silent) < len(answers):
            self._silent_s = None
            self._hanging = self._hanging - answers.keys() | silent
        elif silent <= self._hanging:
            pass
        elif self._silent_s is None:
            self._silent_s = now
        elif now - self._silent_s >= RENEW_S:
            log.warning("%s has not answered for %.1f s; trying a new connection", self._client.address, now - self._silent_s)
            self._client.renew()
            self._silent_s = now
            self.contracts.forget()

    def _ask(self, observations: Mapping[str, Observation], end: float) -> dict[str, Action | Exception]:
        together = self._ask_fleet(observations, end)
        alone = {tl: x for tl, x in observations.items() if tl not in together}
        answers = self._client.predict_many(alone, self._pinned, max(end - self._clock(), 0.0)) if alone else {}
        if self._clock() > end + LATE_S:
            return dict.fromkeys(observations, DeadlineExceeded("the answers came after the deadline"))
        if any(isinstance(answer, Unavailable) for answer in answers.values()):
            self.contracts.forget()
        found: dict[str, Action | Exception] = {**together}
        found.update((tl, self._action(tl, answer)) for tl, answer in answers.items())
        # versions not seen before are looked at once every answer is judged: they must not make the others late
        new = {tl: x.version for tl, x in answers.items() if isinstance(x, Answer) and not self.contracts.knows(tl, x.version)}
        if new:
            self.contracts.compare(new, max(end - self._clock(), COMPARE_S))
            found.update((tl, self._action(tl, answers[tl])) for tl in new)
        return found

    def _ask_fleet(self, observations: Mapping[str, Observation], end: float) -> Mapping[str, Action]:
        """Actions of the TLs that the fleet answers for; of none where it does not answer."""
        covered = self._fleet.covered if self._fleet is not None else None
        if self._fleet is None or covered is None:
            return {}
        due = {tl: x for tl, x in observations.items() if tl in covered.tls and self.contracts.all_same(tl)}
        if len(due) < 2:
            return {}
        try:
            # half of the time that is left, so that the TLs' own models can still be asked
            return self._client.predict_fleet(covered.fleet, due, covered.version, max(end - self._clock(), 0.0) / 2)
        except (ServingError, ContractError) as error:
            self._fleet.suspend(f"{type(error).__name__}: {error}")
            return {}

    def _action(self, tl: str, answer: Answer | ServingError) -> Action | Exception:
        if isinstance(answer, ServingError):
            return answer
        objection = self.contracts.objection(tl, answer.version)
        if objection is not None:
            return objection
        action = answer.outputs.get(ACTION)
        return BadAnswer(f"the answer has no output {ACTION!r}") if action is None else action
