"""The contracts of served models, at the start and of versions that answer later."""

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from city.errors import InputError, ProgramFailed
from controller.policies.periodic_thread import PeriodicThread
from protos import policy_pb2 as pb
from protos.predict_pb2 import ModelVersionStatus
from serving.client import Client, Version
from serving.contract import ContractError
from serving.errors import BadRequest, DeadlineExceeded, ModelNotFound, ServingError, Unavailable

log = logging.getLogger("controller")

AVAILABLE = ModelVersionStatus.AVAILABLE
CHECK_TIMEOUT_S = 1.0
"""Timeout of the periodic request for one TL's contract."""
COMPARE_ALL_TIMEOUT_S = 10.0
"""Timeout of the requests for the contracts of all TLs, which an operator asks for."""
MAX_VERSIONS = 8
"""Versions of a TL whose contracts are kept, those that answered last; an earlier one is compared again when it
answers."""
CHECK_INTERVAL_S = 60.0
"""Wall time in which every TL's contract is requested once: files may be replaced under the same version."""


class ContractSource:
    """The contracts of a model server: of the TLs' own models, or of the fleet for a TL without one."""

    def __init__(self, client: Client, version: Version, fleet: str = "") -> None:
        """`version`: of the TLs' own models; a label selects the fleet's version too. `fleet`: "" for none."""
        self._client = client
        self._version = version
        self._fleet = fleet
        self.in_fleet: set[str] = set()
        """TLs whose contract was the fleet's."""

    def contract(self, tl: str) -> pb.PolicyContract:
        """Request a TL's contract. Raises InputError if the server is unavailable, or the TL has no valid contract."""
        address, model = self._client.address, f"model {tl}"
        if self._version is not None:
            model += f" {'version' if isinstance(self._version, int) else 'labelled'} {self._version}"
        try:
            contract = self._client.contract(tl, self._version)
        except (ModelNotFound, BadRequest) as error:
            member = self._member(tl, error)
            if member is None:
                raise InputError(f"{address}: {self._missing(tl, model, error)}") from None
            self.in_fleet.add(tl)
            return member.contract
        except ContractError as error:
            raise InputError(f"{address}: {model}: {error}") from None
        except (Unavailable, DeadlineExceeded) as error:
            raise InputError(
                f"no model server answers at {address} ({error.code}: {error}); "
                "start one (greenserve serve) or pass --server"
            ) from None
        except ServingError as error:
            raise InputError(
                f"{address}: the contract of {model} cannot be read ({error.code}: {error}); try again"
            ) from None
        if contract.tl != tl:
            raise InputError(f"{address}: {model} holds the policy of {contract.tl}; export {tl} again")
        return contract

    def _member(self, tl: str, error: ServingError) -> pb.Member | None:
        """The fleet's member for a TL whose own model is not served; None if there is none."""
        # for a model that it does not serve, TensorFlow Serving reports an unknown label
        if not isinstance(error, ModelNotFound) and not isinstance(self._version, str):
            return None
        member = self._members.get(tl)
        is_other_version = member is not None and isinstance(self._version, int) and self._version != member.version
        return None if is_other_version else member

    @functools.cached_property
    def _members(self) -> dict[str, pb.Member]:
        """The members of the fleet's newest or labelled version, by TL; empty if it is not served."""
        if not self._fleet:
            return {}
        label = self._version if isinstance(self._version, str) else None
        try:
            return {member.tl: member for member in self._client.contract(self._fleet, label).members}
        except (ModelNotFound, BadRequest):  # BadRequest: an unknown label
            return {}
        except (ServingError, ContractError) as error:
            raise InputError(
                f"{self._client.address}: fleet {self._fleet}: its contract cannot be read ({error}); build it again"
            ) from None

    def _missing(self, tl: str, model: str, error: ServingError) -> str:
        """The error text, with its remedy, for a `model` without this version or without a contract."""
        if isinstance(error, ModelNotFound):
            return (
                f"serves no {model} ({error}); {_versions(self._client, tl)}"
                f"export it (greenserve export --tl {tl}) or leave this TL out"
            )
        if isinstance(self._version, str):
            return f"{model}: {error}; label a version of it (greenserve serve config), or leave out --version-label"
        return f"{model} has no policy contract ({error.code}: {error}); export it (greenserve export --tl {tl})"


def fetch_contracts(
    client: Client, tls: Iterable[str], version: Version, fleet: str = ""
) -> dict[str, pb.PolicyContract]:
    """Request the contracts of TLs as `ContractSource.contract`. Raises InputError."""
    source = ContractSource(client, version, fleet)
    return {tl: source.contract(tl) for tl in tls}


def _versions(client: Client, tl: str) -> str:
    try:
        served = [status.version for status in client.status(tl) if status.state == AVAILABLE]
    except ServingError:
        return ""
    return f"it serves version {', '.join(map(str, served))}; " if served else ""


def same_contract(a: pb.PolicyContract, b: pb.PolicyContract) -> bool:
    """True if two contracts are equal except for their origin."""
    return without_origin(a) == without_origin(b)


def without_origin(contract: pb.PolicyContract) -> pb.PolicyContract:
    """A copy that does not tell which weights answer."""
    copy = pb.PolicyContract()
    copy.CopyFrom(contract)
    copy.ClearField("origin")
    return copy


class ContractChanged(ServingError):
    """The server now answers with a policy of another contract."""

    code = "CONTRACT_CHANGED"


class ComparedContract(NamedTuple):
    """The contract of a version, compared with that of the start."""

    is_same: bool
    contract: pb.PolicyContract | None


class ComparedContracts(NamedTuple):
    """The result of a comparison of all TLs' contracts."""

    same: tuple[str, ...]
    changed: tuple[str, ...]
    """TLs with another contract, whose answers are not followed."""
    failed: tuple[str, ...]
    """TLs whose contract could not be requested."""


class ServedContracts:
    """Versions of the TLs' models, and whether their contracts equal those that this run began with.

    The decision steps read it and a thread updates it: a TL's entry is replaced, never
    changed, so that it can be read at any time.
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
        self._compared = {
            tl: {contract.origin.model_number: ComparedContract(True, contract)} for tl, contract in contracts.items()
        }
        """By TL and version, in the order of their last answers. A version without an entry has not been compared."""
        self._logged = {(tl, contract.origin.model_number): True for tl, contract in contracts.items()}
        self._write_lock = threading.Lock()
        self._next_tl = itertools.cycle(contracts)
        self.updating = PeriodicThread(
            "the check of contracts", CHECK_INTERVAL_S / max(len(contracts), 1), self._check_next
        )

    def is_known(self, tl: str, version: int) -> bool:
        """True if the version's contract has been compared."""
        return version in self._compared[tl]

    def contract_of(self, tl: str, version: int) -> pb.PolicyContract | None:
        """The contract of a version that has been compared; None: it has not, or it is invalid."""
        compared = self._compared[tl].get(version)
        return compared.contract if compared is not None else None

    def is_unchanged(self, tl: str) -> bool:
        """True if the version that answered last has the contract of the start, or is not compared yet."""
        return all(compared.is_same for compared in list(self._compared[tl].values())[-1:])

    def note_answer(self, tl: str, version: int) -> None:
        """Record that a version has answered, which may be an earlier one again."""
        known = self._compared[tl]
        if version not in known or version == next(reversed(known)):
            return
        with self._write_lock:
            compared_by_tl = self._compared
            compared = dict(compared_by_tl[tl])
            if (answering := compared.pop(version, None)) is None:
                return  # forgotten meanwhile
            compared_by_tl[tl] = {**compared, version: answering}
        if answering.contract is not None and self._note_contract is not None:
            self._note_contract(tl, version, answering.contract)

    def contract_error(self, tl: str, version: int) -> ContractChanged | None:
        """Why a version's action must not be followed; None if it may be."""
        compared = self._compared[tl].get(version)
        if compared is None:
            return ContractChanged(f"the contract of version {version} is not known yet")
        if not compared.is_same:
            return ContractChanged(f"version {version} has another contract than the one this run began with")
        return None

    def forget(self) -> None:
        """Forget all results: another server may answer from now on, with other models under the same version
        numbers."""
        self._compared = {tl: {} for tl in self._compared}

    def compare(self, versions: Mapping[str, int], timeout_s: float) -> dict[str, ServingError]:
        """Request the contracts of versions, one by TL, and compare them with those that this run began with.

        Returns the errors of requests by TL; these are repeated with the next answer.
        """
        compared_by_tl = self._compared  # if `forget` replaces it meanwhile, this result is dropped
        errors: dict[str, ServingError] = {}
        for tl, contract in self._client.contracts(versions, timeout_s).items():
            if isinstance(contract, ServingError):
                errors[tl] = contract
                continue
            version = versions[tl]
            valid = contract if isinstance(contract, pb.PolicyContract) else None
            if valid is not None and self._note_contract is not None:
                self._note_contract(tl, version, valid)
            is_same = valid is not None and same_contract(self._contracts[tl], valid)
            with self._write_lock:
                compared = {**compared_by_tl[tl], version: ComparedContract(is_same, valid)}
                for old in list(compared)[:-MAX_VERSIONS]:
                    del compared[old]
                    self._logged.pop((tl, old), None)
                compared_by_tl[tl] = compared
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
        return errors

    def check_version(self, tl: str, version: int) -> None:
        """Request a version's contract, without a record of it.

        Raises InputError if the version is missing or has another contract, ProgramFailed if the server does not
        answer.
        """
        try:
            contract = self._client.contract(tl, version, timeout_s=CHECK_TIMEOUT_S)
        except (ModelNotFound, BadRequest) as error:
            versions = _versions(self._client, tl)
            remedy = (
                f"{versions}pass a served one, or latest"
                if versions
                else "its own model is not served; serve it beside the fleet (greenserve serve config --all-models)"
            )
            raise InputError(
                f"{self._client.address}: serves no version {version} of {tl} ({error}); {remedy}"
            ) from None
        except ContractError as error:
            raise InputError(f"{self._client.address}: version {version} of {tl}: {error}; export it again") from None
        except ServingError as error:
            raise ProgramFailed(
                f"{self._client.address}: version {version} of {tl}: no contract can be read ({error.code}: {error}); "
                "try again"
            ) from None
        if not same_contract(self._contracts[tl], contract):
            raise InputError(
                f"version {version} of {tl} has another contract than the one this run began with; restart the "
                f"controller with it (--model-number {version}), or pass another version"
            )

    def compare_again(self) -> ComparedContracts:
        """Request the contracts of the versions that answered last again, one by TL, and compare them."""
        versions = {tl: next(reversed(compared)) for tl, compared in list(self._compared.items()) if compared}
        errors = self.compare(versions, COMPARE_ALL_TIMEOUT_S)
        # a TL without a served model of its own is the fleet's
        failed = [tl for tl, error in errors.items() if not isinstance(error, ModelNotFound)]
        answered = [tl for tl in versions if tl not in errors]
        changed = [tl for tl in answered if self.contract_error(tl, versions[tl]) is not None]
        return ComparedContracts(tuple(tl for tl in answered if tl not in changed), tuple(changed), tuple(failed))

    def check(self, tl: str) -> None:
        """Request and compare again the contract of the version without a change that answered last."""
        unchanged = [version for version, compared in self._compared[tl].items() if compared.is_same]
        if unchanged:
            self.compare({tl: unchanged[-1]}, CHECK_TIMEOUT_S)

    def _check_next(self) -> None:
        tl = next(self._next_tl)
        try:
            self.check(tl)
        except BaseException:
            log.error("%s: its contract cannot be requested", tl)
            raise
