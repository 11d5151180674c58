"""The contracts of served models: those at the start, and those of versions that answer later."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from city.errors import InputError
from controller.policies.periodic_thread import PeriodicThread
from protos import policy_pb2 as pb
from protos.predict_pb2 import ModelVersionStatus
from serving.client import Client, Version
from serving.contract import ContractError
from serving.errors import BadRequest, DeadlineExceeded, ModelNotFound, ServingError, Unavailable

log = logging.getLogger("controller")

AVAILABLE = ModelVersionStatus.AVAILABLE
CHECK_TIMEOUT_S = 1.0
"""Wall time for the request of one TL's contract beside the decision steps."""
CHECK_INTERVAL_S = 60.0
"""Wall time in which every TL's contract is requested once more: files may be replaced under the same version."""


def fetch_contracts(client: Client, tls: Iterable[str], version: Version, fleet: str = "") -> dict[str, pb.PolicyContract]:
    """Request each TL's contract; of a TL whose own model is not served, the one in the fleet.

    Raises InputError: server unavailable, no such model, no contract.
    """
    contracts = {}
    pinned = "" if version is None else f" version {version}" if isinstance(version, int) else f" labelled {version}"
    members: dict[str, pb.Member] | None = None
    for tl in tls:
        try:
            contract = client.contract(tl, version)
        except (ModelNotFound, BadRequest) as error:
            # of a model that it does not serve, TensorFlow Serving says that it does not know the label
            is_missing = isinstance(error, ModelNotFound) or isinstance(version, str)
            if members is None and is_missing:
                members = _members(client, fleet, version if isinstance(version, str) else None)
            member = members.get(tl) if members is not None and is_missing else None
            if member is not None and (not isinstance(version, int) or version == member.version):
                contracts[tl] = member.contract
                continue
            raise InputError(f"{client.address}: {_missing_contract(client, tl, version, pinned, error)}") from None
        except ContractError as error:
            raise InputError(f"{client.address}: model {tl}{pinned}: {error}") from None
        except (Unavailable, DeadlineExceeded) as error:
            raise InputError(
                f"no model server answers at {client.address} ({error.code}: {error}); "
                "start one (greenserve serve) or pass --server"
            ) from None
        except ServingError as error:
            raise InputError(
                f"{client.address}: the contract of model {tl}{pinned} cannot be read ({error.code}: {error}); try again"
            ) from None
        if contract.tl != tl:
            raise InputError(f"{client.address}: model {tl}{pinned} holds the policy of {contract.tl}; export {tl} again")
        contracts[tl] = contract
    return contracts


def _missing_contract(client: Client, tl: str, version: Version, pinned: str, error: ServingError) -> str:
    """What is wrong with a model that has no such version or no contract, and how to fix it."""
    if isinstance(error, ModelNotFound):
        return (
            f"serves no model {tl}{pinned} ({error}); {_versions(client, tl)}"
            f"export it (greenserve export --tl {tl}) or leave this TL out"
        )
    if isinstance(version, str):
        return f"model {tl}{pinned}: {error}; label a version of it (greenserve serve config), or leave out --version-label"
    return f"model {tl}{pinned} has no policy contract ({error.code}: {error}); export it (greenserve export --tl {tl})"


def _members(client: Client, fleet: str, label: str | None) -> dict[str, pb.Member]:
    """The TLs of a fleet's newest or labelled version; none if it is not served."""
    if not fleet:
        return {}
    try:
        return {member.tl: member for member in client.contract(fleet, label).members}
    except (ModelNotFound, BadRequest):  # BadRequest: it has no such label
        return {}
    except (ServingError, ContractError) as error:
        raise InputError(f"{client.address}: fleet {fleet}: its contract cannot be read ({error}); build it again") from None


def _versions(client: Client, tl: str) -> str:
    """The served versions of a model, for a message; "" if there are none."""
    try:
        served = [status.version for status in client.status(tl) if status.state == AVAILABLE]
    except ServingError:
        return ""
    return f"it serves version {', '.join(map(str, served))}; " if served else ""


def same_contract(a: pb.PolicyContract, b: pb.PolicyContract) -> bool:
    """Whether two contracts mean the same, whatever checkpoint they were exported from."""
    copies = pb.PolicyContract(), pb.PolicyContract()
    for copy, contract in zip(copies, (a, b), strict=True):
        copy.CopyFrom(contract)
        copy.ClearField("origin")
    return copies[0] == copies[1]


class ContractChanged(ServingError):
    """The server now answers with a policy of another contract."""

    code = "CONTRACT_CHANGED"


class ServedContracts:
    """Which versions of the TLs' models have the contract that this run began with.

    Read by the decision steps and updated by a thread: the entry of a TL is
    replaced as a whole, so that it can be read at any time.
    """

    def __init__(
        self,
        client: Client,
        contracts: Mapping[str, pb.PolicyContract],
        note_contract: Callable[[str, int, pb.PolicyContract], None] | None = None,
    ) -> None:
        """`note_contract`: called with (TL, version, contract) of every contract that is read."""
        self._client, self._note_contract = client, note_contract
        self._contracts = dict(contracts)
        self._is_same = {tl: {contract.origin.model_number: True} for tl, contract in contracts.items()}
        """By TL and version, whether its contract is that of the start; a version without entry must be asked."""
        self._logged = {(tl, contract.origin.model_number): True for tl, contract in contracts.items()}
        self._write_lock = threading.Lock()
        self._next_tl = itertools.cycle(contracts)
        self.updating = PeriodicThread("the check of contracts", CHECK_INTERVAL_S / max(len(contracts), 1), self._check_next)

    def is_known(self, tl: str, version: int) -> bool:
        return version in self._is_same[tl]

    def all_same(self, tl: str) -> bool:
        """Whether no version of the TL with another contract has answered."""
        return all(self._is_same[tl].values())

    def contract_error(self, tl: str, version: int) -> ContractChanged | None:
        """Why a version's action must not be followed; None: it may be."""
        is_same = self._is_same[tl].get(version)
        if is_same is None:
            return ContractChanged(f"the contract of version {version} is not known yet")
        if not is_same:
            return ContractChanged(f"version {version} has another contract than the one this run began with")
        return None

    def forget(self) -> None:
        """Forget all results: another server may answer from now on, with other models under the same numbers."""
        self._is_same = {tl: {} for tl in self._is_same}

    def compare(self, versions: Mapping[str, int], timeout_s: float) -> None:
        """Request the contracts of versions, one by TL, and compare them with those that this run began with."""
        is_same_by_tl = self._is_same  # a `forget` meanwhile replaces it, and drops this result
        for tl, contract in self._client.contracts(versions, timeout_s).items():
            if isinstance(contract, ServingError):
                continue  # not known yet: requested again with the next answer
            version = versions[tl]
            if isinstance(contract, pb.PolicyContract) and self._note_contract is not None:
                self._note_contract(tl, version, contract)
            is_same = isinstance(contract, pb.PolicyContract) and same_contract(self._contracts[tl], contract)
            with self._write_lock:
                is_same_by_tl[tl] = {**is_same_by_tl[tl], version: is_same}
            if self._logged.get((tl, version)) is is_same:
                continue
            self._logged[tl, version] = is_same
            if is_same:
                log.info("%s: the server now answers with version %d, with the same contract", tl, version)
            else:
                log.warning(
                    "%s: the server now answers with version %d, with another contract; its actions are ignored: "
                    "restart the controller to use it, or serve the previous version",
                    tl,
                    version,
                )

    def check(self, tl: str) -> None:
        """Request the contract of the newest version that may be followed once more."""
        for version in [version for version, is_same in self._is_same[tl].items() if is_same][-1:]:
            self.compare({tl: version}, CHECK_TIMEOUT_S)

    def _check_next(self) -> None:
        tl = next(self._next_tl)
        try:
            self.check(tl)
        except BaseException:
            log.error("%s: its contract cannot be requested", tl)
            raise
