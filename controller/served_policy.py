"""Policies that a model server answers for: contracts at the start, actions after."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from city.errors import InputError
from controller.observation import Observation
from controller.policy import Action
from controller.served_fleet import ServedFleet, same_contract
from protos import policy_pb2 as pb
from protos.predict_pb2 import ModelVersionStatus
from serving.client import Answer, Client
from serving.contract import ACTION, ContractError
from serving.errors import BadAnswer, DeadlineExceeded, ModelNotFound, ServingError, Unavailable


def fetch_contracts(client: Client, tls: Iterable[str], model_number: int | None) -> dict[str, pb.Policy]:
    """Ask each TL's model what it is. Raises InputError: server dead, no such model, no contract."""
    contracts = {}
    pinned = f" version {model_number}" if model_number is not None else ""
    for tl in tls:
        try:
            policy = client.policy(tl, model_number)
        except ModelNotFound as error:
            raise InputError(
                f"{client.address} serves no model {tl}{pinned} ({error}); {_versions(client, tl)}"
                f"export it (python -m export --tl {tl}) or leave it out with --infer-tl"
            ) from None
        except ContractError as error:
            raise InputError(f"{client.address}: model {tl}{pinned}: {error}") from None
        except ServingError as error:
            raise InputError(
                f"no model server answers at {client.address} ({error.code}: {error}); "
                "start one (python -m serving) or say --server"
            ) from None
        if policy.tl != tl:
            raise InputError(f"{client.address}: model {tl}{pinned} holds the policy of {policy.tl}")
        contracts[tl] = policy
    return contracts


log = logging.getLogger("controller")
AVAILABLE = ModelVersionStatus.AVAILABLE

LATE_S = 0.05
"""What the answers' own way through this process may add to the deadline."""
RENEW_S = 1.5
"""Wall time between two questions without an answer after which a new connection is tried: the one there is may lead nowhere."""
COMPARE_S = 0.1
"""Wall time that asking new versions for their contracts may take at least."""
LOOK_S = 1.0
"""Wall time that a look at one TL's contract may take, while nobody waits for it."""
WATCH_S = 60.0
"""Wall time in which every TL is asked for its contract once more: files may be replaced under the number that they had."""


def _versions(client: Client, tl: str) -> str:
    """The versions of a model that are served, for a message; "" where there are none."""
    try:
        served = [status.version for status in client.status(tl) if status.state == AVAILABLE]
    except ServingError:
        return ""
    return f"it serves version {', '.join(map(str, served))}; " if served else ""


class ContractChanged(ServingError):
    """The server now answers with a policy of another contract."""

    code = "CONTRACT_CHANGED"


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
        self._contracts = dict(contracts)
        self._pinned = {} if model_number is None else dict.fromkeys(contracts, model_number)
        self._known = {tl: {policy.origin.model_number: True} for tl, policy in contracts.items()}
        """By TL and version, whether its contract is the one that this run began with; what must be asked is not there."""
        self._told = {(tl, policy.origin.model_number): True for tl, policy in contracts.items()}
        self._deadline_s = deadline_s
        self._clock = clock
        self._silent_s: float | None = None
        """Since when every call has run into its deadline."""
        self._hanging: set[str] = set()
        """TLs that were not answered where others were: their models hang, and say nothing of the connection."""
        self._stopping = threading.Event()
        self._watching: threading.Thread | None = None

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
            self._forget()

    def _ask(self, observations: Mapping[str, Observation], end: float) -> dict[str, Action | Exception]:
        together = self._ask_fleet(observations, end)
        alone = {tl: x for tl, x in observations.items() if tl not in together}
        answers = self._client.predict_many(alone, self._pinned, max(end - self._clock(), 0.0)) if alone else {}
        if self._clock() > end + LATE_S:
            return dict.fromkeys(observations, DeadlineExceeded("the answers came after the deadline"))
        if any(isinstance(answer, Unavailable) for answer in answers.values()):
            self._forget()
        found: dict[str, Action | Exception] = {**together}
        found.update((tl, self._action(tl, answer)) for tl, answer in answers.items())
        # versions not seen before are looked at once every answer is judged: they must not make the others late
        new = {tl: x.version for tl, x in answers.items() if isinstance(x, Answer) and x.version not in self._known[tl]}
        if new:
            self._compare(new, max(end - self._clock(), COMPARE_S))
            found.update((tl, self._action(tl, answers[tl])) for tl in new)
        return found

    def _forget(self) -> None:
        """Another server may be there from now on: what it serves under the same numbers must be asked."""
        self._known = {tl: {} for tl in self._known}

    def _ask_fleet(self, observations: Mapping[str, Observation], end: float) -> Mapping[str, Action]:
        """Actions of the TLs that the fleet answers for; of none where it does not answer."""
        covered = self._fleet.covered if self._fleet is not None else None
        if self._fleet is None or covered is None:
            return {}
        due = {tl: x for tl, x in observations.items() if tl in covered.tls and all(self._known[tl].values())}
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
        is_same = self._known[tl].get(answer.version)
        if is_same is None:
            return ContractChanged(f"version {answer.version} has not told its contract yet")
        if not is_same:
            return ContractChanged(f"version {answer.version} has another contract than the one this run began with")
        action = answer.outputs.get(ACTION)
        return BadAnswer(f"the answer has no output {ACTION!r}") if action is None else action

    def _compare(self, versions: Mapping[str, int], timeout_s: float) -> None:
        """Learn whether versions mean the same numbers as those that this run began with."""
        for tl, new in self._client.policies(versions, timeout_s).items():
            if isinstance(new, ServingError):
                continue  # not known yet: asked again with the next answer
            version = versions[tl]
            is_same = self._known[tl][version] = isinstance(new, pb.Policy) and same_contract(self._contracts[tl], new)
            if self._told.get((tl, version)) is is_same:
                continue
            self._told[tl, version] = is_same
            word = "with the same contract" if is_same else "with another contract: not followed"
            level = logging.INFO if is_same else logging.WARNING
            log.log(level, "%s: the server now answers with version %d, %s", tl, version, word)

    def watch(self) -> None:
        """Look at the contracts again and again, in a thread of its own, until `close`."""
        self._watching = threading.Thread(target=self._watch, name="contracts", daemon=True)
        self._watching.start()

    def close(self) -> None:
        self._stopping.set()
        if self._watching is not None:
            self._watching.join()

    def look(self, tl: str) -> None:
        """Ask a TL's versions that may be followed for their contracts once more."""
        for version in [version for version, is_same in self._known[tl].items() if is_same][-1:]:
            self._compare({tl: version}, LOOK_S)

    def _watch(self) -> None:
        while True:
            for tl in self._contracts:
                if self._stopping.wait(WATCH_S / len(self._contracts)):
                    return
                try:
                    self.look(tl)
                except Exception:
                    log.exception("%s cannot be asked for its contract", tl)
