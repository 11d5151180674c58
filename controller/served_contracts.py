"""What the models of a server are: their contracts at the start, and those of the versions that answer later."""

import itertools
import logging
import threading
from collections.abc import Iterable, Mapping

from city.errors import InputError
from controller.watch import Watch
from protos import policy_pb2 as pb
from protos.predict_pb2 import ModelVersionStatus
from serving.client import Client
from serving.contract import ContractError
from serving.errors import ModelNotFound, ServingError

log = logging.getLogger("controller")

AVAILABLE = ModelVersionStatus.AVAILABLE
LOOK_S = 1.0
"""Wall time that a look at one TL's contract may take, while nobody waits for it."""
WATCH_S = 60.0
"""Wall time in which every TL is asked for its contract once more: files may be replaced under the number that they had."""


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


def _versions(client: Client, tl: str) -> str:
    """The versions of a model that are served, for a message; "" where there are none."""
    try:
        served = [status.version for status in client.status(tl) if status.state == AVAILABLE]
    except ServingError:
        return ""
    return f"it serves version {', '.join(map(str, served))}; " if served else ""


def same_contract(one: pb.Policy, other: pb.Policy) -> bool:
    """Whether two contracts mean the same, whatever they were made from."""
    copies = pb.Policy(), pb.Policy()
    for copy, policy in zip(copies, (one, other), strict=True):
        copy.CopyFrom(policy)
        copy.ClearField("origin")
    return copies[0] == copies[1]


class ContractChanged(ServingError):
    """The server now answers with a policy of another contract."""

    code = "CONTRACT_CHANGED"


class ServedContracts:
    """Which versions of the TLs' models have the contract that this run began with.

    Asked by the decision steps and looked after by a thread of its own: what is known
    of a TL is replaced as a whole, so that the other may read it at any time.
    """

    def __init__(self, client: Client, contracts: Mapping[str, pb.Policy]) -> None:
        self._client = client
        self._contracts = dict(contracts)
        self._known = {tl: {policy.origin.model_number: True} for tl, policy in contracts.items()}
        """By TL and version, whether its contract is the one of the beginning; what must be asked is not there."""
        self._told = {(tl, policy.origin.model_number): True for tl, policy in contracts.items()}
        self._writing = threading.Lock()
        self._next = itertools.cycle(contracts)
        self.watch = Watch("contracts", WATCH_S / max(len(contracts), 1), self._look_at_next)

    def knows(self, tl: str, version: int) -> bool:
        return version in self._known[tl]

    def all_same(self, tl: str) -> bool:
        """Whether nothing else has been seen in the TL's place."""
        return all(self._known[tl].values())

    def objection(self, tl: str, version: int) -> ContractChanged | None:
        """Why a version's action is not to be followed; None: it may be."""
        is_same = self._known[tl].get(version)
        if is_same is None:
            return ContractChanged(f"version {version} has not told its contract yet")
        if not is_same:
            return ContractChanged(f"version {version} has another contract than the one this run began with")
        return None

    def forget(self) -> None:
        """Another server may be there from now on: what it serves under the same numbers must be asked."""
        self._known = {tl: {} for tl in self._known}

    def compare(self, versions: Mapping[str, int], timeout_s: float) -> None:
        """Learn whether versions, one by TL, mean the same numbers as those that this run began with."""
        known = self._known  # what was asked before a `forget` is forgotten with it
        for tl, new in self._client.policies(versions, timeout_s).items():
            if isinstance(new, ServingError):
                continue  # not known yet: asked again with the next answer
            version, is_same = versions[tl], isinstance(new, pb.Policy) and same_contract(self._contracts[tl], new)
            with self._writing:
                known[tl] = {**known[tl], version: is_same}
            if self._told.get((tl, version)) is is_same:
                continue
            self._told[tl, version] = is_same
            word = "with the same contract" if is_same else "with another contract: not followed"
            level = logging.INFO if is_same else logging.WARNING
            log.log(level, "%s: the server now answers with version %d, %s", tl, version, word)

    def look(self, tl: str) -> None:
        """Ask the newest of a TL's versions that may be followed for its contract once more."""
        for version in [version for version, is_same in self._known[tl].items() if is_same][-1:]:
            self.compare({tl: version}, LOOK_S)

    def _look_at_next(self) -> None:
        tl = next(self._next)
        try:
            self.look(tl)
        except Exception:
            log.error("%s cannot be asked for its contract", tl)
            raise
