"""The fleet: one call answers for many TLs, as long as it agrees with their own models."""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from city import names
from controller.policies.periodic_thread import PeriodicThread
from controller.policies.served_contracts import AVAILABLE, same_contract
from protos import policy_pb2 as pb
from serving.client import Client, Fleet, Version
from serving.contract import ContractError
from serving.errors import BadRequest, ModelNotFound, ServingError

log = logging.getLogger("controller")

UPDATE_INTERVAL_S = 5.0
"""Wall time between two updates; the requests of an update are spread over it."""
MAX_STATUS_CALLS = 50
"""Models with a version request in one update; all TLs' own models take turns."""
CALL_TIMEOUT_S = 5.0
"""Timeout of one call of an update."""
MAX_NAMED_TLS = 5
"""TLs named in one line; the others are counted."""


class Coverage(NamedTuple):
    """A version of a fleet, and the TLs that it may answer for."""

    fleet: Fleet
    version: int
    tls: frozenset[str]
    only_in_fleet: frozenset[str]
    """TLs of `tls` without a served model of their own."""


class ServedFleet:
    """Determines which TLs a fleet may answer for.

    A fleet is a copy of other models. It answers for a TL only while its contract for the
    TL is the one this run began with. If the TL's own model is served too, the fleet must
    hold the version and export that this model would answer with. Requests name the
    fleet's version: a newer one may have its TLs in another order.
    """

    def __init__(self, client: Client, name: str, contracts: Mapping[str, pb.PolicyContract], version: Version) -> None:
        """`version`: the requested version of the TLs' own models; a label selects the fleet's version too."""
        self.name = name
        self._client = client
        self._contracts = dict(contracts)
        self._version = version
        self._origins = {tl: (contract.origin.model_number, contract.origin) for tl, contract in contracts.items()}
        """By TL, the version of its own model's newest contract, and the contract's origin."""
        self.coverage: Coverage | None = None
        """Replaced, never changed, so that another thread may read it at any time."""
        self._write_lock = threading.Lock()
        self._update_lock = threading.Lock()
        """Held during an update: an operator may ask for one beside the periodic ones."""
        self._own_versions: dict[str, int | None] = {}
        """By TL, the served version of its own model at the last request; None if it is not served."""
        self._next = 0
        """Index of the TL with the next request for its own model's version."""
        self._compared_version: int | None = None
        """The fleet's version that the TLs' own models were compared with."""
        self._changes = 0
        """Counts `suspend`, `look_up` and `note_contract`, which invalidate an update that began before."""
        self._logged = ""
        self.updating = PeriodicThread(f"the update of fleet {name}", UPDATE_INTERVAL_S, self._update_or_drop)

    def update(self, spread_s: float = 0.0) -> None:
        """Determine which TLs the fleet covers now. TLs of unknown versions are not covered.

        `spread_s`: wall time over which the requests are spread, so that a thousand of them do not delay a decision.
        """
        with self._update_lock:
            changes = self._changes
            try:
                coverage, message = self._find_coverage(spread_s)
            except ModelNotFound:
                coverage, message = None, f"fleet {self.name} is not served (optional); every TL's own model is queried"
            except (ServingError, ContractError) as error:
                coverage, message = None, f"fleet {self.name} is not used: {error}"
            with self._write_lock:
                if changes != self._changes:
                    return
                self.coverage = coverage
            self._log(message)

    def look_up(self, unserved: Collection[str], timeout_s: float) -> bool:
        """Look up which version of the fleet is served now, after the server answered NOT_FOUND, and use it.

        TLs' own models are not compared again: the results of the last update are still valid.

        Args:
            unserved: TLs with an own model that the server no longer has.
            timeout_s: wall time for all calls.

        Returns:
            Whether to request the fleet again: it is another version, or it answers for one of `unserved`.
        """
        end_s = time.monotonic() + timeout_s
        current = self.coverage
        try:
            version = self._served_version(self.name, timeout_s)
            if version is None:
                return False
            is_new = current is None or current.version != version
            remaining_s = max(end_s - time.monotonic(), 0.0)
            fleet = current.fleet if current and not is_new else self._client.fleet(self.name, version, remaining_s)
            if unserved and fleet.versions.keys().isdisjoint(unserved):
                return False
            for tl in list(unserved)[:MAX_STATUS_CALLS]:
                if self._own_versions.get(tl) is not None:
                    self._own_versions[tl] = self._own_version(tl, max(end_s - time.monotonic(), 0.0))
        except (ServingError, ContractError) as error:
            log.debug("fleet %s: its version cannot be looked up: %s", self.name, error)
            return False
        with self._write_lock:
            coverage, message = self._cover(fleet, version)
            if coverage is None or not (coverage.only_in_fleet.intersection(unserved) if unserved else is_new):
                return False
            self._changes += 1
            self.coverage = coverage
        self._log(message)
        return True

    def _log(self, message: str) -> None:
        if message != self._logged:
            self._logged = message
            log.info("%s", message)

    def note_contract(self, tl: str, version: int, contract: pb.PolicyContract) -> None:
        """Record the contract of a TL's own model. If it is from another export, the fleet no longer answers for the
        TL."""
        if self._origins.get(tl) == (version, contract.origin):
            return
        with self._write_lock:
            self._origins[tl] = version, contract.origin
            self._changes += 1
            if self.coverage is not None:
                self.coverage = self.coverage._replace(
                    tls=self.coverage.tls - {tl}, only_in_fleet=self.coverage.only_in_fleet - {tl}
                )

    def suspend(self, reason: str) -> None:
        """Stop using the fleet until the next update."""
        with self._write_lock:
            self._changes += 1
            self.coverage = None
        self._logged = ""
        log.warning(
            "fleet %s did not answer (%s); every TL's own model is queried until its next update", self.name, reason
        )

    def _update_or_drop(self) -> None:
        try:
            self.update(UPDATE_INTERVAL_S)
        except BaseException:
            self.coverage = None
            log.error("fleet %s cannot be updated; every TL's own model is queried", self.name)
            raise

    def _find_coverage(self, spread_s: float) -> tuple[Coverage | None, str]:
        version = self._served_version(self.name)
        if version is None:
            return None, f"fleet {self.name} is not used: no version of it is available"
        current = self.coverage
        fleet = current.fleet if current and current.version == version else self._client.fleet(self.name, version)
        due = self._due(fleet, version)
        for tl in self._contracts:
            if tl in due:
                if self.updating.wait(spread_s / len(due)):
                    return self.coverage, self._logged
                self._own_versions[tl] = self._own_version(tl)
        self._compared_version = version
        return self._cover(fleet, version)

    def _cover(self, fleet: Fleet, version: int) -> tuple[Coverage | None, str]:
        """Compare a version of the fleet with the known versions of the own models: (its coverage, a log text)."""
        members = {member.tl: member for member in fleet.contract.members}
        excluded: dict[str, str] = {}
        only_in_fleet: set[str] = set()
        for tl, contract in self._contracts.items():
            if reason := self._exclusion(tl, contract, members.get(tl)):
                excluded[tl] = reason
            elif self._own_versions[tl] is None:
                only_in_fleet.add(tl)
        tls = frozenset(self._contracts) - frozenset(excluded)
        is_useful = len(tls) > 1 or only_in_fleet
        message = f"fleet {self.name} version {version} answers for {len(tls)} of {len(self._contracts)} TLs"
        if excluded:
            reasons = [f"{tl} ({reason})" for tl, reason in excluded.items()]
            message += f"; their own models are queried: {names.listed(reasons, MAX_NAMED_TLS)}"
        return (Coverage(fleet, version, tls, frozenset(only_in_fleet)) if is_useful else None), message

    def _due(self, fleet: Fleet, version: int) -> set[str]:
        """The TLs with a request for their own model's version now: the next ones, and after a new fleet those that
        differ.

        A call returns the versions of one model: a thousand TLs every few seconds would be hundreds of calls per
        second.
        """
        tls = list(self._contracts)
        rotated = [*tls[self._next :], *tls[: self._next]]
        due = set(rotated[:MAX_STATUS_CALLS])
        self._next = (self._next + MAX_STATUS_CALLS) % len(tls)
        if version != self._compared_version:
            members = fleet.contract.members
            due |= {
                each.tl
                for each in members
                if each.tl in self._contracts and self._own_versions.get(each.tl) != each.version
            }
        # also after an update that ended early
        return due | {tl for tl in tls if tl not in self._own_versions}

    def _exclusion(self, tl: str, contract: pb.PolicyContract, member: pb.Member | None) -> str:
        if member is None:
            return "is not in it"
        if not same_contract(member.contract, contract):
            return "has another contract in the fleet"
        if tl not in self._own_versions:
            return "has not been compared yet"
        served = self._own_versions[tl]
        pinned = self._version if isinstance(self._version, int) else None
        if served is None and pinned in (None, member.version):
            return ""
        own_version = served if pinned is None else pinned
        read_version, origin = self._origins[tl]
        if own_version != member.version:
            return f"is served at version {own_version}, the fleet holds version {member.version}"
        if read_version != own_version:
            return f"has not answered with version {own_version} yet"
        return "" if origin == member.contract.origin else "was exported again since; build the fleet again"

    def _own_version(self, tl: str, timeout_s: float = CALL_TIMEOUT_S) -> int | None:
        try:
            return self._served_version(tl, timeout_s)
        except (ModelNotFound, BadRequest):  # BadRequest: an unknown label
            return None

    def _served_version(self, model: str, timeout_s: float = CALL_TIMEOUT_S) -> int | None:
        """The version that the server answers with: that of the label, else the newest available."""
        if isinstance(self._version, str):
            return self._client.version_number(model, self._version, timeout_s)
        available = (status.version for status in self._client.status(model, timeout_s) if status.state == AVAILABLE)
        return max(available, default=None)
