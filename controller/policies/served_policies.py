"""Policies on a model server: actions within the deadline, even if the server fails."""

import logging
import time
from collections.abc import Callable, Mapping

from controller.policies.served_contracts import ComparedContracts, ServedContracts
from controller.policies.served_fleet import Coverage, ServedFleet
from protos import policy_pb2 as pb
from serving.client import Client, Prediction, Version
from serving.client.fleet import ScoredAction
from serving.client.messages import scores_of
from serving.contract import ACTION, ContractError, scores_name
from serving.errors import BadRequest, DeadlineExceeded, InvalidResponse, ModelNotFound, ServingError, Unavailable
from signals.observation import Observation
from signals.policy import Answer

log = logging.getLogger("controller")

DEADLINE_TOLERANCE_S = 0.05
"""Time beyond the deadline for this process to handle the answers."""
RECONNECT_AFTER_S = 1.5
"""Wall time without any answer after which a new connection is opened: the current one may be half-open."""
MIN_COMPARE_TIMEOUT_S = 0.1
"""Minimum timeout of the request for the contracts of new versions."""


class ServedPolicies:
    """Requests the actions of all due TLs at once: from the fleet for those that it covers, else from their own models.

    A pinned TL is answered by that version of its own model alone.
    """

    def __init__(
        self,
        client: Client,
        contracts: Mapping[str, pb.PolicyContract],
        version: Version,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
        fleet: ServedFleet | None = None,
        with_scores: bool = False,
    ) -> None:
        """Prepare the requests.

        Args:
            client: client of the model server.
            contracts: by TL, the contracts that this run began with.
            version: version to request of the TLs' own models.
            deadline_s: wall time after the readings within which an answer must arrive.
            clock: wall time in s.
            fleet: the fleet that is queried for the TLs that it covers, if there is one.
            with_scores: request the probabilities or q-values of categorical policies too.
        """
        self._fleet = fleet
        self._client = client
        self.contracts = ServedContracts(client, contracts, fleet.note_contract if fleet is not None else None)
        self._version = version
        self._deadline_s = deadline_s
        self._clock = clock
        self._with_scores = with_scores
        self._outputs = () if with_scores else (ACTION,)
        """Outputs to request of the TLs' own models; empty: all."""
        self._scores = {tl: (name, c.action.size) for tl, c in contracts.items() if (name := scores_name(c))}
        """By categorical TL, name and size of its own model's second output."""
        self.model_numbers: dict[str, int] = {}
        """By TL, the version of its newest answer."""
        self._silent_since_s: float | None = None
        """Begin of the time in which every call has exceeded its deadline."""
        self.pins: Mapping[str, int] = {}
        """By TL, the version that an operator has pinned. Replaced, never changed."""
        self._hanging: set[str] = set()
        """TLs without an answer while others had one: their models hang, but the connection works."""

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """Answers by TL within the deadline; an exception for a TL without one. Never raises."""
        end_s = (self._clock() if observed_s is None else observed_s) + self._deadline_s
        try:
            answers = self._request(observations, end_s)
            self._reconnect_if_silent(answers)
            return answers
        except Exception as error:  # noqa: BLE001 - an error here must become a fallback, not the end of the run
            return dict.fromkeys(observations, error)

    def check_pin(self, tl: str, version: int) -> None:
        """Request a version's contract. Called from another thread than the decision steps, which it does not delay.

        Raises InputError if the server lacks it or it has another contract, ProgramFailed if the server does not
        answer.
        """
        self.contracts.check_version(tl, version)

    def pin(self, tl: str, version: int | None) -> None:
        """Ask a TL's own model by this number from the next step on; None: the run's version or fleet again."""
        pins = {other: pinned for other, pinned in self.pins.items() if other != tl}
        self.pins = pins if version is None else {**pins, tl: version}

    def compare_contracts(self) -> ComparedContracts:
        """Request the contracts of all TLs' newest answers again and compare them with those of the start.

        Called from another thread than the decision steps, which it does not delay.
        """
        compared = self.contracts.compare_again()
        if self._fleet is not None:
            self._fleet.update()
        return compared

    def contract_of(self, tl: str, model: str, version: int) -> pb.PolicyContract | None:
        """The TL's contract in a version that has answered, of its own model or a fleet; None: not known now.

        Called by any thread.
        """
        if model == tl:
            return self.contracts.contract_of(tl, version)
        coverage = self._fleet.coverage if self._fleet is not None else None
        if coverage is None or coverage.fleet.model != model:
            return None
        members = (member for member in coverage.fleet.contract.members if member.tl == tl)
        return next((member.contract for member in members if member.version == version), None)

    def _reconnect_if_silent(self, answers: Mapping[str, Answer | Exception]) -> None:
        """Open a new connection if no TL has had an answer for a while: the current one may be half-open."""
        now = self._clock()
        silent = {tl for tl, answer in answers.items() if isinstance(answer, DeadlineExceeded)}
        if len(silent) < len(answers):
            self._silent_since_s = None
            self._hanging = self._hanging - answers.keys() | silent
        elif silent <= self._hanging:
            pass
        elif self._silent_since_s is None:
            self._silent_since_s = now
        elif (silent_s := now - self._silent_since_s) >= RECONNECT_AFTER_S:
            log.warning("%s has not answered for %.1f s; opening a new connection", self._client.address, silent_s)
            self._client.reconnect()
            self._silent_since_s = now
            self.contracts.forget()

    def _request(self, observations: Mapping[str, Observation], end_s: float) -> dict[str, Answer | Exception]:
        answers: dict[str, Answer | Exception] = {**self._request_fleet(observations, end_s)}
        others = {tl: observation for tl, observation in observations.items() if tl not in answers}
        predictions = self._request_own_models(others, end_s)
        if self._clock() > end_s + DEADLINE_TOLERANCE_S:
            return dict.fromkeys(observations, DeadlineExceeded("the answers arrived after the deadline"))
        if any(isinstance(prediction, Unavailable) for prediction in predictions.values()):
            self.contracts.forget()
        answers.update((tl, self._answer(tl, prediction)) for tl, prediction in predictions.items())
        answers.update(self._request_fleet_for_unserved(observations, predictions, end_s))
        # new versions are compared last, so that they cannot delay the other answers
        unloaded = self._compare_new_versions(predictions, answers, end_s)
        if unloaded:
            predictions = self._request_own_models({tl: observations[tl] for tl in unloaded}, end_s)
            answers.update((tl, self._answer(tl, prediction)) for tl, prediction in predictions.items())
            self._compare_new_versions(predictions, answers, end_s)
        return answers

    def _request_own_models(
        self, observations: Mapping[str, Observation], end_s: float
    ) -> Mapping[str, Prediction | ServingError]:
        if not observations:
            return {}
        versions = {tl: self.pins.get(tl, self._version) for tl in observations}
        return self._client.predict_many(observations, versions, max(end_s - self._clock(), 0.0), self._outputs)

    def _compare_new_versions(
        self, predictions: Mapping[str, Prediction | ServingError], answers: dict[str, Answer | Exception], end_s: float
    ) -> set[str]:
        """Compare the contracts of versions that answer for the first time, and update `answers`.

        Returns:
            The TLs with a version that was unloaded after it had answered.
        """
        new_versions = {
            tl: prediction.version
            for tl, prediction in predictions.items()
            if isinstance(prediction, Prediction) and not self.contracts.is_known(tl, prediction.version)
        }
        if not new_versions:
            return set()
        errors = self.contracts.compare(new_versions, max(end_s - self._clock(), MIN_COMPARE_TIMEOUT_S))
        answers.update((tl, self._answer(tl, predictions[tl])) for tl in new_versions)
        return {tl for tl, error in errors.items() if isinstance(error, ModelNotFound)}

    def _request_fleet_for_unserved(
        self,
        observations: Mapping[str, Observation],
        predictions: Mapping[str, Prediction | ServingError],
        end_s: float,
    ) -> Mapping[str, Answer | Exception]:
        """Answers by TL of a fleet that answers for TLs with an own model that is no longer served."""
        # for a model that it does not serve, TensorFlow Serving reports an unknown label
        missing = (ModelNotFound, BadRequest) if isinstance(self._version, str) else ModelNotFound
        unserved = {
            tl: observations[tl]
            for tl, prediction in predictions.items()
            if isinstance(prediction, missing) and tl not in self.pins
        }
        if self._fleet is None or not unserved or isinstance(self._version, int):
            return {}
        if not self._fleet.look_up(unserved, max(end_s - self._clock(), 0.0)):
            return {}
        return self._request_fleet(unserved, end_s)

    def _request_fleet(
        self, observations: Mapping[str, Observation], end_s: float, may_look_up: bool = True
    ) -> Mapping[str, Answer | Exception]:
        """Answers of the fleet by TL; {} if it does not answer. A TL with a value that is not finite has an exception.

        If the server no longer has the fleet's version, the number is looked up and the new version is requested, once.
        `may_look_up`: false in that second request.
        """
        coverage = self._fleet.coverage if self._fleet is not None else None
        if self._fleet is None or coverage is None:
            return {}
        due = {
            tl: observation
            for tl, observation in observations.items()
            if tl in coverage.tls and tl not in self.pins and self.contracts.is_unchanged(tl)
        }
        only_in_fleet = due.keys() & coverage.only_in_fleet
        if len(due) < 2 and not only_in_fleet:
            return {}
        remaining_s = max(end_s - self._clock(), 0.0)
        # half of the remaining time, so that the TLs' own models can still be queried
        timeout_s = remaining_s if len(only_in_fleet) == len(due) else remaining_s / 2
        try:
            answers = self._predict_fleet(coverage, due, timeout_s)
        except (ServingError, ContractError) as error:
            lookup_s = min(timeout_s, max(end_s - self._clock(), 0.0))
            if isinstance(error, ModelNotFound) and may_look_up and self._fleet.look_up((), lookup_s):
                return self._request_fleet(observations, end_s, may_look_up=False)
            if not only_in_fleet:
                self._fleet.suspend(f"{type(error).__name__}: {error}")
            return dict.fromkeys(only_in_fleet, error)
        self.model_numbers.update((tl, coverage.fleet.versions[tl]) for tl in answers)
        return answers

    def _predict_fleet(
        self, coverage: Coverage, observations: Mapping[str, Observation], timeout_s: float
    ) -> dict[str, Answer | Exception]:
        """Answers of the fleet by TL. Raises ServingError, ContractError."""
        request = self._client.predict_fleet_with_scores if self._with_scores else self._client.predict_fleet
        answers: dict[str, Answer | Exception] = {}
        for tl, result in request(coverage.fleet, observations, coverage.version, timeout_s).items():
            if isinstance(result, Exception):
                answers[tl] = result
                continue
            action, scores = result if isinstance(result, ScoredAction) else (result, None)
            answers[tl] = Answer(action, coverage.fleet.versions[tl], coverage.fleet.model, scores)
        return answers

    def _answer(self, tl: str, prediction: Prediction | ServingError) -> Answer | Exception:
        if isinstance(prediction, ServingError):
            return prediction
        contract_error = self.contracts.contract_error(tl, prediction.version)
        self.contracts.note_answer(tl, prediction.version)
        if contract_error is not None:
            return contract_error
        self.model_numbers[tl] = prediction.version
        action = prediction.outputs.get(ACTION)
        if action is None:
            return InvalidResponse(f"the answer has no output {ACTION!r}")
        scores = None
        if self._with_scores and tl in self._scores:
            name, size = self._scores[tl]
            scores = scores_of(prediction.outputs.get(name), size)
        return Answer(action, prediction.version, tl, scores)
