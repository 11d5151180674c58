"""The fleet that answers for many TLs in one call, as long as it agrees with their own models."""

import logging
import threading
from collections.abc import Mapping
from typing import NamedTuple

from controller.policies.periodic_thread import PeriodicThread
from controller.policies.served_contracts import AVAILABLE, same_contract
from protos import policy_pb2 as pb
from serving.client import Client, Fleet, Version
from serving.contract import ContractError
from serving.errors import BadRequest, ModelNotFound, ServingError

log = logging.getLogger("controller")

UPDATE_INTERVAL_S = 5.0
"""Wall time between two updates, and over which the requests of an update are spread."""
MAX_STATUS_CALLS = 50
"""Own models whose version is requested in one update; all of them take turns."""
MAX_NAMED_TLS = 5
"""TLs named in one line; the others are counted."""


class Coverage(NamedTuple):
    """One version of a fleet, and the TLs that it may answer for."""

    fleet: Fleet
    version: int
    tls: frozenset[str]
    without_own: frozenset[str]
    """Those of them whose own models are not served: only the fleet can answer for them."""


class ServedFleet:
    """Which TLs a fleet may answer for now.

    A fleet is a copy of other models. It answers for a TL only while its contract is the
    one this run began with and, if the TL's own model is served too, the version it was
    made from, of the same export, is the one that the TL's own model would answer with.
    It is requested by version: a newer one may hold its TLs in another order.
    """

    def __init__(self, client: Client, name: str, contracts: Mapping[str, pb.PolicyContract], version: Version) -> None:
        """`version`: of the TLs' own models; a label is the fleet's too."""
        self.name = name
        self._client, self._contracts, self._version = client, dict(contracts), version
        self._origins = {tl: (contract.origin.model_number, contract.origin) for tl, contract in contracts.items()}
        """By TL, the newest version of its own model whose contract was read, and the export that it is from."""
        self.coverage: Coverage | None = None
        """Replaced as a whole, so that another thread may read it at any time."""
        self._write_lock = threading.Lock()
        self._own: dict[str, int | None] = {}
        """By TL, the version that its own model answered with when it was asked last; None: it is not served."""
        self._next = 0
        """Number of the TL whose own model's version is requested next."""
        self._compared: int | None = None
        """The fleet's version that every TL's own model was compared with."""
        self._changes = 0
        """Counts `suspend` and `note_contract`: the result of an update that began before is dropped."""
        self._logged = ""
        self.updating = PeriodicThread(f"the update of fleet {name}", UPDATE_INTERVAL_S, self._update_or_drop)

    def update(self, spread_s: float = 0.0) -> None:
        """Determine which TLs the fleet covers now; a TL whose versions are unknown is not covered.

        `spread_s`: wall time over which the requests are spread, so that a thousand of them do not delay a decision.
        """
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
        if message != self._logged:
            self._logged = message
            log.info("%s", message)

    def note_contract(self, tl: str, version: int, contract: pb.PolicyContract) -> None:
        """Report the contract that a TL's own model has now; of another export, the fleet no longer answers for it."""
        if self._origins.get(tl) == (version, contract.origin):
            return
        with self._write_lock:
            self._origins[tl] = version, contract.origin
            self._changes += 1
            if self.coverage is not None:
                self.coverage = self.coverage._replace(tls=self.coverage.tls - {tl}, without_own=self.coverage.without_own - {tl})

    def suspend(self, reason: str) -> None:
        """Stop using the fleet until the next update."""
        with self._write_lock:
            self._changes += 1
            self.coverage = None
        self._logged = ""
        log.warning("fleet %s did not answer (%s); every TL's own model is queried until its next update", self.name, reason)

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
        known = self.coverage
        fleet = known.fleet if known and known.version == version else self._client.fleet(self.name, version)
        members = {member.tl: member for member in fleet.contract.members}
        excluded: dict[str, str] = {}
        without_own: set[str] = set()
        to_ask = self._due(version, members)
        for tl, contract in self._contracts.items():
            if tl in to_ask:
                if self.updating.wait(spread_s / len(to_ask)):
                    return self.coverage, self._logged
                self._own[tl] = self._own_version(tl)
            if reason := self._exclusion(tl, contract, members.get(tl)):
                excluded[tl] = reason
            elif self._own[tl] is None:
                without_own.add(tl)
        tls = frozenset(self._contracts) - frozenset(excluded)
        covers_more = len(tls) > 1 or without_own
        message = f"fleet {self.name} version {version} answers for {len(tls)} of {len(self._contracts)} TLs{_listed(excluded)}"
        return (Coverage(fleet, version, tls, frozenset(without_own)) if covers_more else None), message

    def _due(self, version: int, members: Mapping[str, pb.Member]) -> set[str]:
        """The TLs whose own models' versions are requested now: the next ones; of a new fleet, also those that it contradicts.

        The API gives the versions of one model a call: a thousand TLs every few seconds would be hundreds of calls a second.
        """
        tls = list(self._contracts)
        rotated = [*tls[self._next :], *tls[: self._next]]
        due = set(rotated[:MAX_STATUS_CALLS])
        self._next = (self._next + MAX_STATUS_CALLS) % len(tls)
        if version != self._compared:
            due |= {tl for tl in tls if tl not in self._own or (tl in members and self._own[tl] != members[tl].version)}
            self._compared = version
        return due

    def _exclusion(self, tl: str, contract: pb.PolicyContract, member: pb.Member | None) -> str:
        """Why a fleet with this member does not answer for a TL; "": it does."""
        if member is None:
            return "is not in it"
        if not same_contract(member.contract, contract):
            return "has another contract in the fleet"
        served = self._own.get(tl)
        pinned = self._version if isinstance(self._version, int) else None
        if served is None and pinned in (None, member.version):
            return ""
        own_version = served if pinned is None else pinned
        known_version, origin = self._origins[tl]
        if own_version != member.version:
            return f"is served at version {own_version}, the fleet holds version {member.version}"
        if known_version != own_version:
            return f"has not answered with version {own_version} yet"
        return "" if origin == member.contract.origin else "was exported again since; build the fleet again"

    def _own_version(self, tl: str) -> int | None:
        """The version of a TL's own model that the server answers with; None: there is none."""
        try:
            return self._served_version(tl)
        except (ModelNotFound, BadRequest):  # BadRequest: it has no such label
            return None

    def _served_version(self, model: str) -> int | None:
        """The version that the server answers with by the label, or if none is requested."""
        if isinstance(self._version, str):
            return self._client.version_number(model, self._version)
        available = (status.version for status in self._client.status(model) if status.state == AVAILABLE)
        return max(available, default=None)


def _listed(excluded: Mapping[str, str]) -> str:
    """The first TLs that a fleet does not answer for, for a log line. `excluded`: by TL, the reason."""
    if not excluded:
        return ""
    named = ", ".join(f"{tl} ({reason})" for tl, reason in list(excluded.items())[:MAX_NAMED_TLS])
    more = f" and {len(excluded) - MAX_NAMED_TLS} more" if len(excluded) > MAX_NAMED_TLS else ""
    return f"; their own models are queried: {named}{more}"
