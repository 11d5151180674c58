"""The fleet that answers for many TLs in one call, for as long as it is what their own models are."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from controller.served_contracts import AVAILABLE, same_contract
from controller.watch import Watch
from protos import policy_pb2 as pb
from serving.client import Client
from serving.contract import ContractError
from serving.errors import ModelNotFound, ServingError
from serving.fleet import Fleet

log = logging.getLogger("controller")

LOOK_S = 5.0
"""Wall time between two looks at the versions that are served, and over which a look is spread."""


class Covered(NamedTuple):
    """One version of a fleet, and the TLs that it may answer for."""

    fleet: Fleet
    version: int
    tls: frozenset[str]


class ServedFleet:
    """Which TLs a fleet may answer for now.

    A fleet is a copy of other models. It answers for a TL only while the version
    that it was made from is the one that the TL's own model would answer with,
    and its contract is the one this run began with. Its own version is asked for
    by number: a newer one may hold its TLs in another order.
    """

    def __init__(self, client: Client, name: str, contracts: Mapping[str, pb.Policy], pinned: int | None) -> None:
        """`pinned`: the version of the TLs' own models that this run keeps to."""
        self.name = name
        self._client, self._contracts, self._pinned = client, dict(contracts), pinned
        self.covered: Covered | None = None
        """Replaced as a whole, so that another thread may read it at any time."""
        self._told = ""
        self.watch = Watch(f"fleet {name}", LOOK_S, self._look_again)

    def look(self, spread_s: float = 0.0) -> None:
        """Find out what the fleet covers now; whatever cannot be found out, it does not cover.

        `spread_s`: wall time over which the questions are spread, so that a thousand of them do not hold up a decision.
        """
        try:
            covered, words = self._find(spread_s)
        except ModelNotFound:
            covered, words = None, ""
        except (ServingError, ContractError) as error:
            covered, words = None, f"fleet {self.name} is not asked: {error}"
        self.covered = covered
        if words != self._told:
            self._told = words
            log.info("%s", words or f"fleet {self.name} is no longer served; every TL is asked by itself")

    def suspend(self, why: str) -> None:
        """Ask it no more until the next look."""
        self.covered = None
        self._told = ""
        log.warning("fleet %s did not answer (%s); every TL is asked by itself until it is looked at again", self.name, why)

    def _look_again(self) -> None:
        try:
            self.look(LOOK_S)
        except BaseException:
            self.covered = None
            log.error("fleet %s cannot be looked at; every TL is asked by itself", self.name)
            raise

    def _find(self, spread_s: float) -> tuple[Covered | None, str]:
        version = self._served(self.name)
        if version is None:
            return None, f"fleet {self.name} is not asked: no version of it is available"
        known = self.covered
        fleet = known.fleet if known and known.version == version else self._client.fleet(self.name, version)
        members = {member.tl: member for member in fleet.policy.members}
        apart: dict[str, str] = {}
        for tl, contract in self._contracts.items():
            if self.watch.wait(spread_s / len(self._contracts)):
                return self.covered, self._told
            if tl not in members:
                apart[tl] = "is not in it"
            elif not same_contract(members[tl].policy, contract):
                apart[tl] = "has another contract there"
            else:
                own = self._pinned if self._pinned is not None else self._served(tl)
                if own != members[tl].version:
                    apart[tl] = f"is at version {own}, there at {members[tl].version}"
        tls = frozenset(self._contracts) - frozenset(apart)
        words = f"fleet {self.name} version {version} answers for {len(tls)} of {len(self._contracts)} TLs"
        if apart:
            words += "; asked by themselves: " + ", ".join(f"{tl} ({why})" for tl, why in list(apart.items())[:5])
            words += f" and {len(apart) - 5} more" if len(apart) > 5 else ""
        return (Covered(fleet, version, tls) if len(tls) > 1 else None), words

    def _served(self, model: str) -> int | None:
        """The version that the server answers with where none is named."""
        available = (status.version for status in self._client.status(model) if status.state == AVAILABLE)
        return max(available, default=None)
