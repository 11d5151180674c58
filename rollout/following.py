"""The street is made to follow the ledger.

    ledger  | begin | evaluate | load  | shadow | canary        | better | promote       | done | end
    street  |       |          | 3, 4  |        |   pinned to 4 |        |   stable is 4 |      |   no pin
            |       |          | pinned to 3    |               |        |               |      |

A change of what is wanted is a line of the ledger first, then a change of the street, then a line that the street has
confirmed (`drives`). A process that is killed between two of them leaves a street that is behind its ledger; the next
one makes it follow.

From `load` to the end the TLs are pinned, so that a controller that asks for the newest version stays with the old one.
"""

from collections.abc import Sequence

from city.errors import InputError, ProgramFailed
from city.ledger import CANARY, EVALUATE, PROMOTE
from protos import control_pb2 as pb
from rollout.open_rollout import Ending, OpenRollout
from rollout.street import PIN_LEASE_S, Seen, ServedStreet
from serving.tf_serving.config_files import STABLE, Versions, labelled_versions

CONFIRM_S = 300.0
"""Wall time in which a controller without an operator's mode must be seen to follow a pin."""
CONFIRM_INTERVAL_S = 1.0
OPERATOR_MODES = ("fixed", "hold")
PINNED_BY = "rollout "
"""How the author of a rollout's pins begins, as ctl and the live page show it."""


class Following:
    """Makes the street follow the ledger."""

    def __init__(self, own: OpenRollout, street: ServedStreet) -> None:
        self._own, self._street = own, street

    def settle(self, tls: Sequence[str]) -> None:
        """Make the street what the ledger wants, and wait until the controller is seen to follow. Raises Ending,
        InputError, ProgramFailed."""
        begin_s = self._own.clock.monotonic()
        while True:
            self._own.keep_lease()
            try:
                seen = self.follow(tls)
                if not (pending := self._pending(tls)):
                    return
                if self.note_operator(pending, seen):
                    begin_s = self._own.clock.monotonic()
            except ProgramFailed as error:
                self._own.note_wait(str(error))
            if self._own.clock.monotonic() - begin_s > CONFIRM_S:
                late = ", ".join(self._pending(tls) or tls)
                raise ProgramFailed(
                    f"{late}: the controller has not been seen to follow the ledger for {CONFIRM_S:g} s; look at "
                    "greenserve ctl tls, then run this again"
                )
            self._own.clock.sleep(CONFIRM_INTERVAL_S)

    def follow(self, tls: Sequence[str]) -> Seen:
        """Do once what makes the street what the ledger wants; return the TLs as they were before it.

        An old model is pinned before a new one is loaded; a new one is loaded before it is pinned, and pinned away from
        before it is unloaded. Raises Ending if the controller refuses a pin, or an operator has set another one;
        ProgramFailed if server or controller does not answer.
        """
        rollout = self._own.rollout
        if rollout is None or rollout.is_aborted or all(rollout.has_passed(tl, PROMOTE) for tl in rollout.targets):
            return self._close(tls)
        seen = self._see(tls)
        self._note_lost(tls, seen)
        in_canary = [tl for tl in tls if self._own.tl(tl).canary is not None]
        self._pin([tl for tl in tls if tl not in in_canary], seen)
        self._street.serve({tl: self._versions(tl) for tl in tls})
        self._pin(in_canary, seen)
        return seen

    def _note_lost(self, tls: Sequence[str], seen: Seen) -> None:
        """Write which canaries the controller has ended by itself: at the end of their lease, or by its restart."""
        for tl in tls:
            state, now = self._own.tl(tl), seen.tls[tl]
            is_lost = now.version == state.stable.number and now.pinned_version != state.wanted.number
            if is_lost and state.canary == state.drives and not self._own.has_passed(tl, CANARY):
                self._own.append("rollback", {tl: state.stable}, text="the controller has gone back to it by itself")
                self._own.append("drives", {tl: state.stable})

    def note_operator(self, tls: Sequence[str], seen: Seen) -> bool:
        """Report that an operator has set a TL's mode, if one has."""
        for tl in tls:
            if (now := seen.tls[tl]).mode in OPERATOR_MODES:
                self._own.note_wait(f"{tl} is set to {now.mode} by {now.set_by or 'an operator'}")
                return True
        return False

    def _close(self, tls: Sequence[str]) -> Seen:
        """Unload what is not stable, and let the pins go, as far as server and controller answer."""
        rollout = self._own.rollout
        # one that was refused at its gate has changed nothing
        changed = [tl for tl in tls if rollout is None or rollout.has_passed(tl, EVALUATE)]
        if not changed:
            return self._see(tls)
        try:
            seen = self._see(tls)
            self._pin([tl for tl in changed if _is_own(seen.tls[tl])], seen)
        except (ProgramFailed, Ending) as error:
            self._own.note(str(error))
        try:
            self._street.serve({tl: self._closing_versions(tl) for tl in changed}, is_rollback=True)
        except ProgramFailed as error:
            self._own.note(f"{error}; models.config no longer names the new number")
        seen = self._see(tls)
        for tl in changed:
            if _is_own(seen.tls[tl]) and self._may_unpin(tl):
                self._street.pin(tl, None, seen.tls[tl].pinned_by)
        return seen

    def _see(self, tls: Sequence[str]) -> Seen:
        """The TLs now. Writes which of them are driven by what is wanted: it is asked, and no other model has answered
        last."""
        seen = self._street.see(tls)
        for tl in self._pending(tls):
            wanted, now = self._own.tl(tl).wanted, seen.tls[tl]
            if now.version == wanted.number or (now.version == 0 and now.pinned_version == wanted.number):
                self._own.append("drives", {tl: wanted})
                self._own.report(f"{tl} is driven by {wanted.number}")
        return seen

    def _pending(self, tls: Sequence[str]) -> list[str]:
        """The TLs that are not known to be driven by what is wanted."""
        return [tl for tl in tls if self._own.tl(tl).drives != self._own.tl(tl).wanted]

    def _versions(self, tl: str) -> Versions:
        """The versions and labels of a TL in a rollout."""
        stable, target = self._own.tl(tl).stable.number, self._own.targets[tl].number
        return self._closing_versions(tl) if stable == target else labelled_versions(stable, target)

    def _closing_versions(self, tl: str) -> Versions:
        state, rollout = self._own.tl(tl), self._own.rollout
        numbers = {state.stable.number}
        if rollout is not None and rollout.targets[tl] == state.stable:
            # controllers ask by its number until they have moved; it goes with the next rollout
            numbers.add(state.were_stable[-1].number)
        return Versions(tuple(sorted(numbers)), {STABLE: state.stable.number})

    def _pin(self, tls: Sequence[str], seen: Seen) -> None:
        """Pin TLs to what the ledger wants. Raises Ending, ProgramFailed."""
        for tl in tls:
            state, now = self._own.tl(tl), seen.tls[tl]
            number, then = state.wanted.number, state.stable.number if state.canary is not None else None
            # without this process, the controller ends a canary by itself
            has_end = now.pinned_for_s > PIN_LEASE_S / 2 if then is not None else now.pinned_for_s == 0
            if now.pinned_version == number and has_end:
                continue
            if now.pinned_version not in (0, number) and not _is_own(now):
                raise Ending("aborted", f"{now.pinned_by} has pinned {tl} to {now.pinned_version}")
            if not self._street.is_served(tl, number):
                # of a fleet's member; its own model is loaded first
                self._street.serve({tl: labelled_versions(number)})
            try:
                self._street.pin(tl, number, f"{PINNED_BY}{self._own.id} ({self._own.author})", then)
            except InputError as error:
                # such as another contract than the controller's; at the end of a rollout it is reported alone
                raise Ending("failed", f"{tl} cannot be pinned to {number}: {error}") from None

    def _may_unpin(self, tl: str) -> bool:
        """False for a member of a fleet that was built with another number: its own model serves it until then."""
        number = self._own.tl(tl).stable.number
        try:
            in_fleet = self._street.number_in_fleet(tl)
        except ProgramFailed:
            in_fleet = None  # nothing answers, and models.config names the stable number alone
        if in_fleet not in (None, number):
            self._own.note(
                f"{tl} stays pinned to {number}, because the fleet holds {in_fleet}: build it anew (greenserve fleet), "
                "then run this again"
            )
        return in_fleet in (None, number)


def _is_own(tl: pb.TlState) -> bool:
    """True for a TL that a rollout has pinned."""
    return tl.pinned_version > 0 and tl.pinned_by.startswith(PINNED_BY)


def refuse_other_pins(seen: Seen) -> None:
    """Raise InputError if an operator has pinned a TL."""
    for tl, now in seen.tls.items():
        if now.pinned_version and not _is_own(now):
            raise InputError(
                f"{tl} is pinned to {now.pinned_version} by {now.pinned_by}; take that back first (greenserve ctl pin "
                f"{tl} latest)"
            )
