"""A rollout's stages, in one loop: the ledger alone says how far a rollout is, so that each is resumable.

Each look at a stage first makes the street follow the ledger (`following`), then asks for verdicts. A stage is passed
by a line of the ledger; a worse model ends the rollout, and so does too little evidence once its time is over.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from city import names
from city.errors import InputError, ProgramFailed
from city.ledger import (
    BETTER,
    CANARY,
    DONE,
    EVALUATE,
    LOAD,
    PROMOTE,
    SHADOW,
    SKIPPED,
    STAGES,
    UNDECIDED,
    WORSE,
    Model,
    Rollout,
)
from city.ledger_file import LedgerFile
from rollout.following import Following, refuse_other_pins
from rollout.open_rollout import Clock, Ending, OpenRollout
from rollout.record_figures import DAY_S, Times
from rollout.street import NotServed, Seen, ServedStreet
from rollout.verdicts import Limits, Verdict

if TYPE_CHECKING:  # importing evaluation takes a second
    from rollout.judges import StreetJudges

SERVER_DOWN_S = 60.0
"""A canary is rolled back if the model server does not answer for this wall time."""
PROGRESS_INTERVAL_S = 60.0
"""Wall time between two lines about the evidence so far."""
MAX_NAMED = 5
"""TLs that a line names."""
NS = 1_000_000_000
FOREVER_NS = (1 << 63) - 1
JUDGED = (EVALUATE, SHADOW, CANARY)
"""Stages whose verdict rests on evidence."""
WAITING = (SHADOW, CANARY)
"""Stages that wait, with a bound, for evidence, and for a server or controller that does not answer."""
SEVERITY = (WORSE, UNDECIDED, BETTER, DONE)
ALL = ""
"""Key of a verdict on all TLs of a stage together."""


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


Verdicts = Mapping[str, Verdict]
"""By TL, or ALL; none while a stage waits for something else than evidence."""


class RolloutRun:
    """Runs one rollout, or goes on with it."""

    def __init__(
        self,
        plan: Plan,
        ledger: LedgerFile,
        street: ServedStreet,
        judges: "StreetJudges",
        report: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        """`report`: prints a line for the user."""
        self._plan, self._street, self._judges, self._clock = plan, street, judges, clock or Clock()
        self._own = OpenRollout(ledger, plan.author, report, self._clock)
        self._following = Following(self._own, street)
        self._down_since_s: float | None = None
        self._progress_s = -PROGRESS_INTERVAL_S
        self._alarms_before: dict[str, set[str]] = {}
        """By TL, its alarms before its canary; unknown after a restart of this process."""

    def run(self) -> Ending:
        """Go through the stages that are not passed yet. Raises InputError, ProgramFailed."""
        plan, own = self._plan, self._own
        if not self._open():
            self._following.settle(plan.tls)
            return Ending("promoted", f"{', '.join(plan.tls)}: driven by {plan.number} already")
        try:
            own.check_aborted()
            for stage, tls in self._stages():
                if left := [tl for tl in tls if not own.has_passed(tl, stage)]:
                    self._pass(stage, left)
            if plan.until != PROMOTE:
                return Ending("until", f"{plan.until} is passed; the rollout goes on without --until")
            ending = Ending("promoted", f"{', '.join(own.targets)}: driven by {plan.number}")
        except Ending as reason:
            ending = reason
        return self._end(ending)

    def abort(self, rollout: Rollout) -> Ending:
        """End a rollout that was aborted, whose process is gone."""
        self._own.id = rollout.id
        try:
            self._own.check_aborted()
        except Ending as ending:
            return self._end(ending)
        raise InputError(f"rollout {rollout.id} was not aborted")

    def take_back(self) -> Ending:
        """Make an earlier stable number stable again, without evidence. Raises InputError, ProgramFailed."""
        models: dict[str, Model] = {}
        for tl in self._plan.tls:
            state = self._own.ledger.state.tls.get(tl)
            earlier = {model.number: model for model in state.were_stable} if state is not None else {}
            if state is not None and state.stable.number == self._plan.number:
                raise InputError(f"{tl} has {self._plan.number} as its stable number already")
            if self._plan.number not in earlier:
                numbers = ", ".join(map(str, earlier)) or "none"
                raise InputError(f"{tl} never had {self._plan.number} as its stable number; earlier ones: {numbers}")
            models[tl] = earlier[self._plan.number]
            if self._judges.model(tl, self._plan.number) != models[tl]:
                raise InputError(f"the files of {tl}/{self._plan.number} are not those that were stable; restore them")
        self._own.append("rollback", models, text="taken back by an operator")
        self._following.settle(self._plan.tls)
        return Ending("aborted", f"{', '.join(self._plan.tls)}: back on {self._plan.number}")

    def _open(self) -> bool:
        """Open the rollout, or find it again; false if the TLs have the number already.

        Raises InputError if the ledger refuses it, or the street is not as the ledger says.
        """
        own, plan = self._own, self._plan
        state = own.ledger.state
        rollouts = [rollout for tl in plan.tls if (rollout := state.rollout_of(tl)) is not None]
        for rollout in rollouts:
            if {tl: model.number for tl, model in rollout.targets.items()} == dict.fromkeys(plan.tls, plan.number):
                own.id = rollout.id
                own.keep_lease()
                own.report(f"continues rollout {own.id} to {plan.number}")
                return True
        stable = [state.tls[tl].stable.number for tl in plan.tls if tl in state.tls]
        if not rollouts and stable == [plan.number] * len(plan.tls):
            return False
        targets = {tl: self._judges.new_model(tl, plan.number) for tl in plan.tls}
        self._check_street()
        own.id = uuid.uuid4().hex[:8]
        own.append("begin", targets, until=own.lease_end())
        own.report(f"rollout {own.id} of {', '.join(plan.tls)} to {plan.number}")
        return True

    def _check_street(self) -> None:
        """Adopt the models of TLs that the ledger does not know. Raises InputError if the street differs from the
        ledger."""
        seen = self._street.see(self._plan.tls)
        refuse_other_pins(seen)
        unknown: dict[str, Model] = {}
        for tl, now in seen.tls.items():
            state = self._own.ledger.state.tls.get(tl)
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
            self._own.append("adopt", unknown, text="driven by them when the ledger began")

    def _end(self, ending: Ending) -> Ending:
        """Roll back what is not promoted, and close the rollout."""
        own, text = self._own, f"{ending.outcome}: {ending.sentence}"
        if ending.outcome != "promoted" and not self._rollout.is_aborted:
            own.append("abort", text=text)
        self._roll_back([tl for tl in own.targets if own.tl(tl).canary is not None], ending.sentence)
        self._following.settle(list(own.targets))
        own.append("end", text=text)
        own.report(f"rollout {own.id} has ended: {text}")
        return ending

    # the loop over the stages

    def _stages(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The stages up to --until, with their TLs."""
        tls = tuple(self._own.targets)
        steps: list[tuple[str, Sequence[str]]] = [(stage, tls) for stage in (EVALUATE, LOAD, SHADOW)]
        for group in [tls] if self._plan.is_together else [(tl,) for tl in tls]:
            steps += [(CANARY, group), (PROMOTE, group)]
        return (step for step in steps if STAGES.index(step[0]) <= STAGES.index(self._plan.until))

    def _pass(self, stage: str, tls: Sequence[str]) -> None:
        """Look at a stage until it is passed. Raises Ending if it is not."""
        if stage in self._plan.skipped:
            return self._judge(stage, tls, {}, Verdict(SKIPPED, f"by {self._plan.author}"))
        look, limits = self._protocol[stage]
        self._own.report(f"{stage} of {names.listed(tls, MAX_NAMED)}: {limits}")
        begin_s, self._down_since_s = self._clock.monotonic(), None
        if stage not in (EVALUATE, SHADOW):
            self._check_files(tls)
        while True:
            self._own.check_aborted()
            verdicts: Verdicts = {}
            try:
                verdicts = look(tls)
                self._down_since_s = None
            except ProgramFailed as error:
                if stage not in WAITING:
                    raise
                self._own.note_wait(str(error))
                if stage == CANARY:
                    self._check_server()
            overall = _overall(verdicts or {ALL: Verdict(UNDECIDED, self._own.waits_for)})
            now_s = self._clock.monotonic()
            if overall.value != UNDECIDED or stage == EVALUATE:
                return self._judge(stage, tls, verdicts, overall)
            if stage in WAITING and now_s - begin_s > self._plan.max_wait_s:
                late = f"after {self._plan.max_wait_s:g} s: {overall.sentence}"
                return self._judge(stage, tls, verdicts, Verdict(UNDECIDED, late))
            if verdicts and now_s - self._progress_s >= PROGRESS_INTERVAL_S:
                self._progress_s = now_s
                self._own.note_wait(f"{stage}: {overall.sentence}")
            self._clock.sleep(self._plan.poll_s)

    def _judge(self, stage: str, tls: Sequence[str], verdicts: Verdicts, overall: Verdict) -> None:
        """Write a stage's verdict. Raises Ending unless it is passed."""
        is_kept = stage in JUDGED and overall.value != SKIPPED
        evidence = self._judges.keep(stage, tls, verdicts) if is_kept else {}
        value, text = overall
        self._own.append("stage", self._targets(tls), stage=stage, verdict=value, text=text, evidence=evidence)
        self._own.report(f"{stage}: {value}: {text}")
        if value in (WORSE, UNDECIDED):
            raise Ending(value, f"{stage}: {text}")

    @property
    def _protocol(self) -> Mapping[str, tuple[Callable[[Sequence[str]], Verdicts], str]]:
        """By stage: one look at it, and its limits."""
        number, limits = self._plan.number, self._plan.limits
        simulated = "better: the 95 % interval of the paired differences in delay is below 0, no TL is worse"
        loaded = f"the model server loads {number} beside the old number, then labels it {CANARY}"
        return {
            EVALUATE: (self._evaluate, simulated),
            LOAD: (self._load, loaded),
            SHADOW: (self._shadow, limits.text(SHADOW)),
            CANARY: (self._canary, limits.text(CANARY)),
            PROMOTE: (self._promote, f"the label moves to {number}"),
        }

    def _evaluate(self, tls: Sequence[str]) -> Verdicts:
        stable = {tl: state.stable for tl, state in self._own.ledger.state.tls.items()}
        return {ALL: self._judges.evaluate(self._targets(tls), stable, self._own.check_aborted)}

    def _load(self, tls: Sequence[str]) -> Verdicts:
        try:
            self._following.follow(list(self._own.targets))
        except NotServed as error:
            raise Ending("failed", str(error)) from None
        self._following.settle(list(self._own.targets))
        return {ALL: Verdict(DONE, f"{self._plan.number} is loaded beside the old number")}

    def _shadow(self, tls: Sequence[str]) -> Verdicts:
        self._following.follow(list(self._own.targets))
        return self._judges.shadow(self._targets(tls))

    def _canary(self, group: Sequence[str]) -> Verdicts:
        """Begin the canary of TLs, or end it outside of its hours; the verdicts on it."""
        seen = self._following.follow(list(self._own.targets))
        states, hours = self._own.ledger.state.tls, self._plan.hours
        is_in_canary = all(states[tl].canary is not None for tl in group)
        is_in_hours = hours is None or _is_between(seen.second % DAY_S, *hours)
        is_set = self._following.note_operator(group, seen)
        if not is_set and not is_in_hours:
            self._own.note_wait("outside of its hours")
            if is_in_canary:
                self._roll_back(group, "outside of its hours")
                self._following.settle(group)
            return {}
        if not is_in_canary and not is_set and not self._is_paused():
            self._alarms_before = {tl: {name for name, _ in seen.alarms[tl]} for tl in group}
            self._own.append("canary", self._targets(group))
            self._following.follow(list(self._own.targets))
        elif not is_in_canary:
            return {}
        stable = {tl: self._own.tl(tl).stable for tl in group}
        times = {tl: self._times(tl) for tl in group}
        verdicts = self._judges.canary(self._targets(group), stable, times, self._alarms(seen, times))
        slow = [tl for tl in group if self._own.tl(tl).drives != self._own.targets[tl]]
        if slow and _overall(verdicts).value == BETTER:
            self._own.note_wait(f"{', '.join(slow)} is not yet driven by {self._plan.number}")
            return {}
        return verdicts

    def _promote(self, group: Sequence[str]) -> Verdicts:
        self._following.follow(list(self._own.targets))
        waiting = [tl for tl in group if self._own.tl(tl).canary is not None]
        if waiting and self._is_paused():
            return {}
        if waiting:
            self._own.append("promote", self._targets(waiting))
        self._following.settle(list(self._own.targets))
        return {ALL: Verdict(DONE, f"{', '.join(group)}: driven by {self._plan.number}")}

    @property
    def _rollout(self) -> Rollout:
        return self._own.ledger.state.rollouts[self._own.id]

    def _targets(self, tls: Sequence[str]) -> dict[str, Model]:
        return {tl: self._own.targets[tl] for tl in tls}

    def _is_paused(self) -> bool:
        """True if the rollout is paused, which is reported."""
        if self._rollout.is_paused:
            self._own.note_wait("paused (greenserve rollout resume)")
        return self._rollout.is_paused

    def _check_files(self, tls: Sequence[str]) -> None:
        """Raise Ending if a model's files are no longer those that were judged, or lack a signature that they need."""
        for tl, target in self._targets(tls).items():
            try:
                found = self._judges.new_model(tl, target.number)
            except InputError as error:
                raise Ending("failed", str(error)) from None
            if found != target:
                raise Ending("failed", f"the files of {tl}/{target.number} have changed since the rollout began")

    def _check_server(self) -> None:
        """Raise Ending if the model server has not answered for a while: the canary may be the cause."""
        now_s = self._clock.monotonic()
        if self._street.answers():
            self._down_since_s = None
        elif self._down_since_s is None:
            self._down_since_s = now_s
        elif now_s - self._down_since_s >= SERVER_DOWN_S:
            raise Ending(UNDECIDED, f"the model server has not answered for {SERVER_DOWN_S:g} s in canary")

    def _roll_back(self, tls: Sequence[str], reason: str) -> None:
        """Let TLs in canary be driven by their stable models again."""
        if tls:
            self._own.append("rollback", {tl: self._own.tl(tl).stable for tl in tls}, text=reason)
            self._own.report(f"{', '.join(tls)}: back to the old number: {reason}")

    def _times(self, tl: str) -> Times:
        """When the new model was wanted in this rollout."""
        times: list[tuple[int, int]] = []
        for line in self._own.ledger.lines:
            if line.rollout == self._own.id and tl in line.models:
                at_ns = round(datetime.fromisoformat(line.at).timestamp() * NS)
                if line.kind == "canary":
                    times.append((at_ns, FOREVER_NS))
                elif line.kind == "rollback" and times:
                    times[-1] = times[-1][0], at_ns
        return times

    def _alarms(self, seen: Seen, times: Mapping[str, Times]) -> dict[str, list[str]]:
        """The TLs' alarms that began in canary. An alarm is of many TLs: it may have begun before with another one."""
        return {
            tl: [
                name
                for name, since_s in seen.alarms[tl]
                if any(begin <= since_s * NS < end for begin, end in own)
                or name not in self._alarms_before.get(tl, {name})
            ]
            for tl, own in times.items()
        }


def _overall(verdicts: Verdicts) -> Verdict:
    """The severest of some verdicts, with the sentences of the TLs that have it if they are worse, else of all."""
    value = min((each.value for each in verdicts.values()), key=SEVERITY.index)
    # a reason that all TLs share, such as a record that cannot be read, is said once
    reasons = {each.sentence: tl for tl, each in verdicts.items() if value != WORSE or each.value == WORSE}
    return Verdict(value, "; ".join(f"{tl}: {sentence}" if tl != ALL else sentence for sentence, tl in reasons.items()))


def _is_between(second: float, begin: float, end: float) -> bool:
    """True if a time of day is in hours, which may pass midnight."""
    return begin <= second < end if begin <= end else second >= begin or second < end
