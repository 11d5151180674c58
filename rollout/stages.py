"""A rollout's stages, each resumable: the ledger alone says how far a rollout is, and the street is made to follow it.

    ledger  | begin | evaluate | load  | shadow | canary        | better | promote       | done | end
    street  |       |          | 3, 4  |        |   pinned to 4 |        |   stable is 4 |      |   no pin
            |       |          | pinned to 3    |               |        |               |      |

A change of what is wanted is a line of the ledger first, then a change of the street, then a line that the street has
confirmed (`drives`). A process that is killed between two of them leaves a street that is behind its ledger. The next
run begins by making the street what the ledger wants (`_settle`), and goes on at the first stage that is not passed.

From `load` to the end the TLs are pinned, so that a controller that asks for the newest version stays with the old one.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from city import names
from city.errors import InputError, ProgramFailed
from rollout.ledger import (
    BETTER,
    CANARY,
    DONE,
    EVALUATE,
    LOAD,
    PROMOTE,
    SHADOW,
    SKIPPED,
    UNDECIDED,
    WORSE,
    Line,
    Model,
    Rollout,
)
from rollout.ledger_file import LedgerFile, time_text
from rollout.record_figures import DAY_S, Times
from rollout.street import Seen, Street
from rollout.verdicts import Limits, Verdict
from serving.tf_serving.config_files import CANARY as CANARY_LABEL
from serving.tf_serving.config_files import STABLE, Versions

LEASE_S = 600.0
"""Wall time of a lease; half of it before its end it is extended."""
SERVER_DOWN_S = 60.0
"""A canary is rolled back if the model server does not answer for this wall time."""
PROGRESS_INTERVAL_S = 60.0
"""Wall time between two lines about the evidence so far."""
MAX_NAMED = 5
"""TLs that a line names."""
CONFIRM_S = 300.0
"""Wall time in which a controller without an operator's mode must be seen to follow a pin."""
NS = 1_000_000_000
OPERATOR_MODES = ("fixed", "hold")
PINNED_BY = "rollout "
"""How the author of a rollout's pins begins, as ctl and the live page show it."""
FOREVER_NS = (1 << 63) - 1


class Clock:
    """The time of a rollout."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class Plan:
    """A rollout as the operator wants it."""

    tls: tuple[str, ...]
    number: int
    author: str
    is_together: bool = False
    """True: the TLs are in canary together, not one after another."""
    until: str = PROMOTE
    """The last stage."""
    skipped: frozenset[str] = frozenset()
    hours: tuple[float, float] | None = None
    """Times of day (simulated s) between which a canary drives; None: always."""
    limits: Limits = field(default_factory=Limits)
    max_wait_s: float = 86400.0
    """Wall time of shadow, and of each canary, after which too little evidence ends the rollout."""
    poll_s: float = 10.0
    """Wall time between two looks at record and street."""


Evidence = Mapping[str, str]
"""Name of a file that is kept -> its SHA-256."""


class Judges(Protocol):
    """Where verdicts come from."""

    def evaluate(self, targets: Mapping[str, Model], stable: Mapping[str, Model], tick: Callable[[], None]) -> Verdict:
        """Paired simulations of the new models and the stable ones. `tick`: called after each simulation."""

    def shadow(self, targets: Mapping[str, Model], tick: Callable[[], None]) -> Mapping[str, Verdict]:
        """By TL, the verdict on the would-be decisions in the record so far."""

    def canary(
        self,
        targets: Mapping[str, Model],
        stable: Mapping[str, Model],
        wanted: Mapping[str, Times],
        alarms: Mapping[str, Sequence[str]],
    ) -> Mapping[str, Verdict]:
        """By TL, the verdict on what the record has since the canary began, beside that of the stable model."""

    def keep(self, stage: str, tls: Sequence[str], verdicts: Mapping[str, Verdict]) -> Evidence:
        """Keep the files that the newest verdicts of a stage rest on."""

    def model(self, tl: str, number: int) -> Model:
        """A model in the folder of models. Raises InputError if it is not whole."""


class _Stop(Exception):
    """The rollout ends, and what it has not promoted is rolled back."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


@dataclass(frozen=True)
class Result:
    """How a rollout ended."""

    outcome: str
    """promoted | worse | not enough evidence | aborted | failed | until: the stage that was the last one is passed"""
    sentence: str


class RolloutRun:
    """Runs one rollout, or goes on with it."""

    def __init__(
        self,
        plan: Plan,
        ledger: LedgerFile,
        street: Street,
        judges: Judges,
        report: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        """`report`: prints a line for the user."""
        self._plan, self._ledger, self._street, self._judges = plan, ledger, street, judges
        self._report, self._clock = report, clock or Clock()
        self._id = ""
        self._is_closing = False
        """True once the rollout ends: the versions that it has not promoted are unloaded, and the pins go."""
        self._waits_for = ""
        self._down_since_s: float | None = None
        self._progress_s = -PROGRESS_INTERVAL_S
        self._alarms_before: dict[str, set[str]] = {}
        """By TL, its alarms before its canary; unknown after a restart of this process."""

    def open(self) -> str:
        """Open the rollout, or find it again; return its id, or "" if the TLs have the number already.

        Raises InputError if the ledger refuses it, or the street is not as the ledger says.
        """
        state, plan = self._ledger.state, self._plan
        known = [tl for tl in plan.tls if tl in state.tls]
        rollouts = {rollout.id: rollout for tl in plan.tls if (rollout := state.rollout_of(tl)) is not None}
        mine = next((each for each in rollouts.values() if set(each.targets) == set(plan.tls)), None)
        if mine is not None and {model.number for model in mine.targets.values()} == {plan.number}:
            self._id = mine.id
            self._keep_lease()
            self._report(f"continues rollout {self._id} to {plan.number}")
            return self._id
        if (
            len(known) == len(plan.tls)
            and not rollouts
            and all(state.tls[tl].stable.number == plan.number for tl in plan.tls)
        ):
            return ""
        targets = {tl: self._judges.model(tl, plan.number) for tl in plan.tls}
        self._check_street()
        until = self._lease_end()
        self._id = uuid.uuid4().hex[:8]
        self._append("begin", targets, until=until)
        self._report(f"rollout {self._id} of {', '.join(plan.tls)} to {plan.number}")
        return self._id

    def run(self) -> Result:
        """Go through the stages that are not passed yet. Raises InputError, ProgramFailed."""
        plan = self._plan
        if not self._id and not self.open():
            self._is_closing = True
            self._settle(plan.tls)
            return Result("promoted", f"{', '.join(plan.tls)} have {plan.number} already")
        try:
            self._tick()
            self._settle(self._tls)
            if (last := self._stages()) is not None:
                return Result("until", f"{last} is passed; the rollout goes on without --until")
            stop = _Stop("promoted", f"{', '.join(self._tls)}: driven by {plan.number}")
        except _Stop as reason:
            stop = reason
        return self._end(stop)

    def abort(self, rollout: Rollout) -> Result:
        """End a rollout that was aborted, whose process is gone."""
        self._id = rollout.id
        self._keep_lease()
        return self._end(self._why_aborted())

    def take_back(self) -> Result:
        """Make an earlier stable number stable again, without evidence. Raises InputError, ProgramFailed."""
        models: dict[str, Model] = {}
        for tl in self._plan.tls:
            state = self._ledger.state.tls.get(tl)
            earlier = state.were_stable if state is not None else ()
            found = [model for model in earlier if model.number == self._plan.number]
            if not found:
                numbers = ", ".join(str(model.number) for model in earlier) or "none"
                raise InputError(f"{tl} never had {self._plan.number} as its stable number; earlier ones: {numbers}")
            models[tl] = found[-1]
            if self._judges.model(tl, self._plan.number) != found[-1]:
                raise InputError(f"the files of {tl}/{self._plan.number} are not those that were stable; restore them")
        self._append("rollback", models, text="taken back by an operator")
        self._is_closing = True
        self._settle(self._plan.tls)
        return Result("aborted", f"{', '.join(self._plan.tls)}: back on {self._plan.number}")

    @property
    def _rollout(self) -> Rollout:
        return self._ledger.state.rollouts[self._id]

    @property
    def _tls(self) -> tuple[str, ...]:
        return tuple(self._rollout.targets)

    def _stages(self) -> str | None:
        """The stages up to --until, whose name is returned; None after the last one."""
        for stage, run in ((EVALUATE, self._evaluate), (LOAD, self._load), (SHADOW, self._shadow)):
            tls = [tl for tl in self._tls if not self._rollout.has_passed(tl, stage)]
            if tls and stage in self._plan.skipped:
                self._judged(stage, tls, Verdict(SKIPPED, f"skipped by {self._plan.author}"), {})
            elif tls:
                run(tls)
            if self._plan.until == stage:
                return stage
        for group in [self._tls] if self._plan.is_together else [(tl,) for tl in self._tls]:
            if not all(self._rollout.has_passed(tl, CANARY) for tl in group):
                self._canary(group)
            if self._plan.until != CANARY and not all(self._rollout.has_passed(tl, PROMOTE) for tl in group):
                self._promote(group)
        return CANARY if self._plan.until == CANARY else None

    def _evaluate(self, tls: Sequence[str]) -> None:
        self._announce(
            EVALUATE, "better: the 95 % interval of the paired differences in delay is below 0, no TL is worse"
        )
        stable = {tl: state.stable for tl, state in self._ledger.state.tls.items()}
        verdict = self._judges.evaluate(self._targets(tls), stable, self._tick)
        self._judged(EVALUATE, tls, verdict, self._judges.keep(EVALUATE, tls, dict.fromkeys(tls, verdict)))

    def _load(self, tls: Sequence[str]) -> None:
        number = self._plan.number
        self._announce(LOAD, f"the model server loads {number} beside the old number, then labels it {CANARY_LABEL}")
        self._check_files(tls)
        for tl in tls:
            self._pin(tl)
        try:
            self._street.serve({tl: self._versions(tl, is_loading=True) for tl in self._tls})
        except ProgramFailed as error:
            raise _Stop("failed", str(error)) from None
        self._settle(tls, is_loading=True)
        self._judged(
            LOAD, tls, Verdict(DONE, f"{number} is loaded beside the old number"), self._judges.keep(LOAD, tls, {})
        )

    def _shadow(self, tls: Sequence[str]) -> None:
        self._announce(SHADOW, self._plan.limits.text(SHADOW))
        begin_s = self._clock.monotonic()
        while True:
            self._tick()
            verdicts = self._judges.shadow(self._targets(tls), self._tick)
            if self._decided(SHADOW, tls, verdicts, begin_s):
                return
            self._sleep()

    def _canary(self, group: Sequence[str]) -> None:
        self._announce(CANARY, self._plan.limits.text(CANARY), group)
        self._check_files(group)
        begin_s = self._clock.monotonic()
        self._down_since_s = None
        while True:
            self._tick()
            try:
                if self._watch_canary(group, begin_s):
                    return
            except ProgramFailed as error:
                self._note_wait(str(error))
                self._check_server()
            if self._clock.monotonic() - begin_s > self._plan.max_wait_s:
                raise _Stop(UNDECIDED, f"{', '.join(group)} after {self._plan.max_wait_s:g} s: {self._waits_for}")
            self._sleep()

    def _watch_canary(self, group: Sequence[str], begin_s: float) -> bool:
        """Look at street and record once; true if the canary is passed."""
        seen = self._street.see(group)
        if self._is_in_canary(group):
            self._note_drives(group, seen)
        self._check_pins(group, seen)
        self._follow_hours(group, seen)
        if not self._is_in_canary(group):
            return False
        self._check_server()
        verdicts = self._judges.canary(
            self._targets(group),
            {tl: self._ledger.state.tls[tl].stable for tl in group},
            {tl: self._times(tl) for tl in group},
            self._alarms(group, seen),
        )
        is_driven = all(self._ledger.state.tls[tl].drives == self._rollout.targets[tl] for tl in group)
        return self._decided(CANARY, group, verdicts, begin_s, is_driven)

    def _promote(self, group: Sequence[str]) -> None:
        number = self._plan.number
        self._announce(PROMOTE, f"label {STABLE} of {', '.join(group)} moves to {number}")
        self._check_files(group)
        while self._rollout.is_paused:
            self._wait_for("paused (greenserve rollout resume)")
        waiting = [tl for tl in group if self._ledger.state.tls[tl].canary is not None]
        if waiting:
            self._append("promote", self._targets(waiting))
        self._settle(group)
        self._judged(PROMOTE, group, Verdict(DONE, f"{', '.join(group)}: driven by {number}"), {})

    def _end(self, stop: _Stop) -> Result:
        """Roll back what is not promoted, and close the rollout."""
        if stop.outcome != "promoted" and not self._rollout.is_aborted:
            self._append("abort", {}, text=f"{stop.outcome}: {stop.reason}")
        in_canary = {tl: state for tl in self._tls if (state := self._ledger.state.tls[tl]).canary is not None}
        if in_canary:
            self._append("rollback", {tl: state.stable for tl, state in in_canary.items()}, text=stop.reason)
            self._report(f"{', '.join(in_canary)}: back to the old number: {stop.reason}")
        self._is_closing = True
        self._settle(self._tls)
        self._append("end", {}, text=f"{stop.outcome}: {stop.reason}")
        self._report(f"rollout {self._id} has ended: {stop.outcome}: {stop.reason}")
        return Result(stop.outcome, stop.reason)

    # the street follows the ledger

    def _settle(self, tls: Sequence[str], is_loading: bool = False) -> None:
        """Make the street what the ledger wants, and wait until the controller is seen to follow.

        A model that is wanted is served before it is pinned; one that is not wanted is pinned away from before it is
        unloaded.
        """
        # a rollout that was refused at its gate has changed nothing
        opened = {tl: self._ledger.state.rollout_of(tl) for tl in tls}
        tls = [tl for tl, rollout in opened.items() if rollout is None or rollout.has_passed(tl, EVALUATE)]
        if not tls:
            return
        if not self._is_closing:
            self._follow(tls, is_loading)
        else:
            for tl in tls:
                try:
                    self._pin(tl)
                except (ProgramFailed, _Stop) as error:
                    self._report(f"{tl}: {error}")
            try:
                self._street.serve({tl: self._versions(tl) for tl in tls}, is_rollback=True)
            except ProgramFailed as error:
                self._report(f"{error}; models.config no longer names the new number")
            for tl in tls:
                if self._may_unpin(tl):
                    self._street.pin(tl, None, self._pin_author)
        self._confirm(tls)

    def _follow(self, tls: Sequence[str], is_loading: bool = False) -> None:
        """Serve and pin what the ledger wants."""
        self._street.serve({tl: self._versions(tl, is_loading) for tl in tls})
        for tl in tls:
            self._pin(tl)

    def _confirm(self, tls: Sequence[str]) -> None:
        """Wait until the controller asks the wanted models alone, and say so in the ledger."""
        begin_s = self._clock.monotonic()
        while True:
            if self._id:
                self._keep_lease()
            seen = self._see(tls)
            if seen is not None:
                self._note_drives(tls, seen)
                if set_by := [tl for tl in self._pending(tls) if seen.tls[tl].mode in OPERATOR_MODES]:
                    begin_s = self._clock.monotonic()
                    self._note_operator(set_by[0], seen)
            if not (pending := self._pending(tls)):
                return
            if self._clock.monotonic() - begin_s > CONFIRM_S:
                raise ProgramFailed(
                    f"{', '.join(pending)}: the controller has not been seen to follow the ledger for {CONFIRM_S:g} s; "
                    "look at greenserve ctl tls, then run this again"
                )
            self._clock.sleep(min(self._plan.poll_s, 1.0))

    def _pending(self, tls: Sequence[str]) -> list[str]:
        """The TLs that are not known to be driven by what is wanted."""
        return [tl for tl in tls if self._ledger.state.tls[tl].drives != self._ledger.state.tls[tl].wanted]

    def _note_drives(self, tls: Sequence[str], seen: Seen) -> None:
        """Write which TLs are now driven by what is wanted: it is asked, and no other model has answered last."""
        for tl in self._pending(tls):
            wanted, now = self._ledger.state.tls[tl].wanted, seen.tls[tl]
            is_asked = now.version == wanted.number or (now.version == 0 and now.pinned == wanted.number)
            if is_asked:
                self._append("drives", {tl: wanted})
                self._report(f"{tl} is driven by {wanted.number}")

    def _versions(self, tl: str, is_loading: bool = False) -> Versions:
        """The versions and labels that the server shall have of a TL."""
        state = self._ledger.state.tls[tl]
        rollout = self._ledger.state.rollout_of(tl)
        target = rollout.targets[tl].number if rollout is not None else state.stable.number
        is_loaded = rollout is not None and (is_loading or rollout.has_passed(tl, LOAD)) and not self._is_closing
        numbers, labels = {state.stable.number}, {STABLE: state.stable.number}
        if is_loaded and target != state.stable.number:
            numbers.add(target)
            labels[CANARY_LABEL] = target
        elif rollout is not None and target == state.stable.number and state.were_stable:
            # controllers ask by its number until they have moved; it goes with the next rollout
            numbers.add(state.were_stable[-1].number)
        return Versions(tuple(sorted(numbers)), labels)

    def _pin(self, tl: str) -> None:
        """Pin a TL to what the ledger wants, if its own model is served and it is in a rollout past its gate."""
        rollout = self._ledger.state.rollout_of(tl)
        if rollout is None or not rollout.has_passed(tl, EVALUATE):
            return
        number = self._ledger.state.tls[tl].wanted.number
        seen = self._street.see([tl]).tls[tl]
        if seen.pinned == number:
            return
        if not self._street.is_served(tl, number):
            # of a fleet's member; its own model is loaded first, under the label that it has
            self._street.serve({tl: Versions((number,), {STABLE: self._ledger.state.tls[tl].stable.number})})
        try:
            self._street.pin(tl, number, self._pin_author)
        except InputError as error:
            # such as another contract than the controller's; at the end of a rollout it is reported alone
            raise _Stop("failed", f"{tl} cannot be pinned to {number}: {error}") from None

    def _may_unpin(self, tl: str) -> bool:
        """False for a member of a fleet that was built with another number: its own model serves it until then."""
        seen = self._street.see([tl]).tls[tl]
        if not seen.pinned or not seen.pinned_by.startswith(PINNED_BY):
            return False
        number = self._ledger.state.tls[tl].stable.number
        try:
            in_fleet = self._street.number_in_fleet(tl)
        except ProgramFailed:
            in_fleet = None  # nothing answers, and models.config names the stable number alone
        if in_fleet in (None, number):
            return True
        self._report(
            f"{tl} stays pinned to {number}, because the fleet holds {in_fleet}: build it anew (greenserve fleet), "
            "then run this again"
        )
        return False

    @property
    def _pin_author(self) -> str:
        return f"{PINNED_BY}{self._id} ({self._plan.author})"

    def _check_street(self) -> None:
        """Adopt the models of TLs that the ledger does not know. Raises InputError if the street differs from the
        ledger."""
        seen = self._street.see(self._plan.tls).tls
        unknown: dict[str, Model] = {}
        for tl in self._plan.tls:
            now, state = seen[tl], self._ledger.state.tls.get(tl)
            if now.pinned and not now.pinned_by.startswith(PINNED_BY):
                raise InputError(
                    f"{tl} is pinned to {now.pinned} by {now.pinned_by}; take that back first (greenserve ctl pin {tl} "
                    "latest)"
                )
            if not now.version:
                raise InputError(f"{tl} has had no answer of a model yet; wait for one (greenserve ctl tls {tl})")
            if state is None:
                unknown[tl] = self._judges.model(tl, now.version)
            elif now.version != state.drives.number:
                raise InputError(
                    f"{tl} is driven by {now.version}, and the ledger says {state.drives.number}; serve that one "
                    f"again, or take the street's into the ledger (greenserve rollout adopt {tl})"
                )
        if unknown:
            self._append("adopt", unknown, text="driven by them when the ledger began")

    def _check_files(self, tls: Sequence[str]) -> None:
        """Stop if a model's files are no longer those that were judged."""
        for tl in tls:
            target = self._rollout.targets[tl]
            try:
                found = self._judges.model(tl, target.number)
            except InputError as error:
                raise _Stop("failed", str(error)) from None
            if found != target:
                raise _Stop("failed", f"the files of {tl}/{target.number} have changed since the rollout began")

    # a canary

    def _check_pins(self, group: Sequence[str], seen: Seen) -> None:
        """Stop if an operator has pinned another number."""
        for tl in group:
            now, wanted = seen.tls[tl], self._ledger.state.tls[tl].wanted.number
            if now.pinned and now.pinned != wanted and not now.pinned_by.startswith(PINNED_BY):
                raise _Stop("aborted", f"{now.pinned_by} has pinned {tl} to {now.pinned}")

    def _follow_hours(self, group: Sequence[str], seen: Seen) -> None:
        """Begin the canary, or end it outside of its hours."""
        hours = self._plan.hours
        is_in_hours = hours is None or _is_between(seen.second % DAY_S, *hours)
        is_in_canary = self._is_in_canary(group)
        by_operator = [tl for tl in group if seen.tls[tl].mode in OPERATOR_MODES]
        if by_operator:
            self._note_operator(by_operator[0], seen)
        elif is_in_canary and not is_in_hours:
            stable = {tl: self._ledger.state.tls[tl].stable for tl in group}
            self._append("rollback", stable, text="outside of its hours")
            self._settle(group)
        elif is_in_canary:
            self._follow(group)  # a run before this one may have been killed before the street followed
        elif not is_in_hours:
            self._note_wait("outside of its hours")
        elif self._rollout.is_paused:
            self._note_wait("paused (greenserve rollout resume)")
        else:
            self._alarms_before = {tl: {name for name, _ in seen.alarms[tl]} for tl in group}
            self._append("canary", self._targets(group))
            self._follow(group)

    def _is_in_canary(self, group: Sequence[str]) -> bool:
        return all(self._ledger.state.tls[tl].canary is not None for tl in group)

    def _check_server(self) -> None:
        """Stop if the model server has not answered for a while: the canary may be the cause."""
        now_s = self._clock.monotonic()
        if self._street.answers():
            self._down_since_s = None
        elif self._down_since_s is None:
            self._down_since_s = now_s
        elif now_s - self._down_since_s >= SERVER_DOWN_S:
            raise _Stop(UNDECIDED, f"the model server has not answered for {SERVER_DOWN_S:g} s in canary")

    def _times(self, tl: str) -> Times:
        """When the new model was wanted in this rollout."""
        times: list[tuple[int, int]] = []
        for line in self._own_lines(tl):
            if line.kind == "canary":
                times.append((_ns(line.at), FOREVER_NS))
            elif line.kind == "rollback" and times:
                times[-1] = times[-1][0], _ns(line.at)
        return times

    def _alarms(self, group: Sequence[str], seen: Seen) -> dict[str, list[str]]:
        """The TLs' alarms that began in canary. An alarm is of many TLs: it may have begun before with another one."""
        return {
            tl: [
                name
                for name, since_s in seen.alarms[tl]
                if any(begin <= since_s * NS < end for begin, end in self._times(tl))
                or name not in self._alarms_before.get(tl, {name})
            ]
            for tl in group
        }

    def _own_lines(self, tl: str) -> Iterator[Line]:
        return (line for line in self._ledger.lines if line.rollout == self._id and tl in line.models)

    # verdicts

    def _decided(
        self, stage: str, tls: Sequence[str], verdicts: Mapping[str, Verdict], begin_s: float, is_driven: bool = True
    ) -> bool:
        """True if the stage is passed. Raises _Stop if a TL is worse, or the time is over."""
        sentences = {verdict.sentence: tl for tl, verdict in verdicts.items()}
        # a reason that all TLs share, such as a record that cannot be read, is said once
        text = "; ".join(f"{tl}: {sentence}" for sentence, tl in sentences.items())
        values = {verdict.value for verdict in verdicts.values()}
        if WORSE in values:
            bad = "; ".join(f"{tl}: {v.sentence}" for tl, v in verdicts.items() if v.value == WORSE)
            self._judged(stage, tls, Verdict(WORSE, bad), self._judges.keep(stage, tls, verdicts))
        if values == {BETTER} and is_driven:
            self._judged(stage, tls, Verdict(BETTER, text), self._judges.keep(stage, tls, verdicts))
            return True
        if self._clock.monotonic() - begin_s > self._plan.max_wait_s:
            waited = Verdict(UNDECIDED, f"after {self._plan.max_wait_s:g} s: {text}")
            self._judged(stage, tls, waited, self._judges.keep(stage, tls, verdicts))
        elif self._clock.monotonic() - self._progress_s >= PROGRESS_INTERVAL_S:
            self._progress_s = self._clock.monotonic()
            self._note_wait(f"{stage}: {text}")
        return False

    def _judged(self, stage: str, tls: Sequence[str], verdict: Verdict, evidence: Evidence) -> None:
        """Write a stage's verdict. Raises _Stop unless it is passed."""
        self._append(
            "stage",
            self._targets(tls),
            stage=stage,
            verdict=verdict.value,
            text=verdict.sentence,
            evidence=dict(evidence),
        )
        self._report(f"{stage}: {verdict.value}: {verdict.sentence}")
        if verdict.value in (WORSE, UNDECIDED):
            raise _Stop(verdict.value, f"{stage}: {verdict.sentence}")

    # lines, lease and waiting

    def _targets(self, tls: Sequence[str]) -> dict[str, Model]:
        return {tl: self._rollout.targets[tl] for tl in tls}

    def _append(self, kind: str, models: Mapping[str, Model], **fields: object) -> None:
        if self._id and kind not in ("adopt", "begin", "lease"):
            self._keep_lease()
        rollout = "" if kind == "adopt" else self._id
        line = Line(0, "", kind, self._plan.author, models, rollout, **fields)  # type: ignore[arg-type]
        self._ledger.append(line, self._clock.now())

    def _keep_lease(self) -> None:
        """Extend the lease in its second half. Raises InputError if another owner has taken the rollout over."""
        self._ledger.read()
        if self._id not in self._ledger.state.rollouts:
            raise InputError(f"rollout {self._id} has been ended by another process")
        half = time_text(self._clock.now() + timedelta(seconds=LEASE_S / 2))
        if self._rollout.owner != self._plan.author or self._rollout.until < max(half, self._ledger.state.at):
            self._append("lease", {}, until=self._lease_end())

    def _lease_end(self) -> str:
        # after a clock that has gone back, lines have the time of the line before
        last = self._ledger.state.at
        now = max(self._clock.now(), datetime.fromisoformat(last)) if last else self._clock.now()
        return time_text(now + timedelta(seconds=LEASE_S))

    def _tick(self) -> None:
        """Keep the lease, and stop if the rollout was aborted."""
        if self._id:
            self._keep_lease()
            if self._rollout.is_aborted:
                raise self._why_aborted()

    def _why_aborted(self) -> _Stop:
        """The first reason to end the rollout: it stays, if the process is killed while it rolls back."""
        (line,) = (line for line in self._ledger.lines if line.rollout == self._id and line.kind == "abort")
        outcome, _, reason = line.text.partition(": ")
        return _Stop(outcome, reason)

    def _see(self, tls: Sequence[str]) -> Seen | None:
        """The TLs now; None, with a note, if the controller does not answer."""
        try:
            return self._street.see(tls)
        except ProgramFailed as error:
            self._note_wait(str(error))
            return None

    def _wait_for(self, reason: str) -> None:
        self._note_wait(reason)
        self._sleep()
        self._tick()

    def _sleep(self) -> None:
        self._clock.sleep(self._plan.poll_s)

    def _note_operator(self, tl: str, seen: Seen) -> None:
        self._note_wait(f"{tl} is set to {seen.tls[tl].mode} by {seen.tls[tl].set_by or 'an operator'}")

    def _note_wait(self, reason: str) -> None:
        if reason != self._waits_for:
            self._waits_for = reason
            self._report(f"waits: {reason}")

    def _announce(self, stage: str, thresholds: str, tls: Sequence[str] = ()) -> None:
        self._report(f"{stage} of {names.listed(tls or self._tls, MAX_NAMED)}: {thresholds}")


def _is_between(second: float, begin: float, end: float) -> bool:
    """True if a time of day is in hours, which may pass midnight."""
    return begin <= second < end if begin <= end else second >= begin or second < end


def _ns(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * NS)
