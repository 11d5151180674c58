"""A street, judges and a clock of the test: each call can be the last one of the process that makes it."""

from datetime import timedelta

from city.errors import InputError, ProgramFailed
from city.ledger import BETTER, Model
from city.ledger_file import LedgerFile
from protos import control_pb2 as pb
from rollout.stages import NS, Plan, RolloutRun
from rollout.street import PIN_LEASE_S, NotServed, Seen
from rollout.verdicts import Verdict
from serving.tf_serving.config_files import Versions
from tests.city.ledgers import BEGIN, model

TLS = ("SA101", "SA104")


class Killed(BaseException):
    """The process is killed here."""


class FakeClock:
    def __init__(self):
        self.seconds = 0.0
        self.jump_s = 0.0
        """Of the wall clock alone."""
        self.on_sleep = lambda: None

    def now(self):
        return BEGIN + timedelta(seconds=self.seconds + self.jump_s)

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
        self.on_sleep()


class FakeStreet:
    """A server of versions and labels, and a controller that asks for label stable, or for the newest version."""

    def __init__(self, clock, follows_label=True, fleet=None):
        self.clock = clock
        self.served = {tl: Versions((3,), {"stable": 3}) for tl in TLS}
        self.pins, self.pinned_by, self.mode, self.alarms = {}, {}, {}, []
        self.leases, self.answered = {}, {}
        self.follows_label, self.fleet = follows_label, fleet or {}
        self.server_down = self.controller_down = False
        self.refuses_pins_to = None
        self.refuses_to_load = False
        self.silent_versions = set()
        """Numbers that never answer."""
        self.history = []
        """(monotonic second, {TL: number}) of each change of what drives the TLs."""
        self.calls = 0
        self.killed_at = None

    def _call(self):
        """Die before or after an effect: even numbers are before, odd ones after."""
        self.calls += 1
        if self.killed_at is not None and self.calls == self.killed_at:
            raise Killed

    def number(self, tl):
        """What is asked for a TL."""
        if tl in self.pins:
            return self.pins[tl]
        if tl in self.fleet:
            return self.fleet[tl]
        served = self.served[tl]
        return served.labels["stable"] if self.follows_label else max(served.numbers)

    def note(self):
        numbers = {tl: self.number(tl) for tl in TLS}
        if not self.history or self.history[-1][1] != numbers:
            self.history.append((self.clock.now(), numbers))

    def see(self, tls):
        self._call()
        if self.controller_down:
            raise ProgramFailed("the controller does not answer")
        self.end_leases()
        seen = {}
        for tl in tls:
            number = self.number(tl)
            number = 0 if number in self.silent_versions or self.server_down else number
            by = self.mode.get(tl)
            # a TL that an operator has set asks nothing: its newest answer is an old one
            number = self.answered.get(tl, number) if by else number
            self.answered[tl] = number
            seen[tl] = pb.TlState(
                tl=tl,
                mode="fixed" if by else "policy",
                set_by=by or "",
                version=number,
                pinned_version=self.pins.get(tl, 0),
                pinned_by=self.pinned_by.get(tl, ""),
                pinned_for_s=self.leases[tl][0] - self.clock.seconds if tl in self.leases else 0.0,
            )
        return Seen(self.clock.seconds, seen, {tl: list(self.alarms) if tl == "SA101" else [] for tl in tls})

    def end_leases(self):
        """Go back to the old numbers whose pins nobody has renewed, as the controller does."""
        for tl, (end_s, then) in [*self.leases.items()]:
            if self.clock.seconds >= end_s:
                del self.leases[tl]
                self.pins = {**self.pins, tl: then}
                self.note()

    def pin(self, tl, number, author, then=None):
        self._call()
        if self.controller_down:
            raise ProgramFailed("the controller does not answer")
        if number is not None and self.server_down:
            raise ProgramFailed("no contract can be read")
        if number is not None and (number == self.refuses_pins_to or number not in self.served[tl].numbers):
            raise InputError(f"serves no version {number} of {tl}")
        self.pins = {other: kept for other, kept in self.pins.items() if other != tl}
        self.leases.pop(tl, None)
        if number is not None:
            self.pins[tl], self.pinned_by[tl] = number, author
        if then is not None:
            self.leases[tl] = self.clock.seconds + PIN_LEASE_S, then
        self.note()
        self._call()

    def serve(self, target, is_rollback=False):
        self._call()
        if self.server_down:
            if is_rollback:
                self.served |= target
            raise NotServed("the model server does not answer")
        for wanted in target.values():
            assert set(wanted.labels.values()) <= set(wanted.numbers), "a label of a version that is not loaded"
        if self.refuses_to_load and any(4 in wanted.numbers for wanted in target.values()):
            raise NotServed("4 could not be loaded")
        # first loaded, then labelled
        for tl, wanted in target.items():
            self.served[tl] = Versions(wanted.numbers, {**wanted.labels, "stable": self.served[tl].labels["stable"]})
            self.note()
            self._call()
            self.served[tl] = wanted
        self.note()
        self._call()

    def is_served(self, tl, number):
        if self.server_down:
            raise ProgramFailed("the model server does not answer")
        return number in self.served[tl].numbers

    def answers(self):
        return not self.server_down

    def number_in_fleet(self, tl):
        return self.fleet.get(tl)


class FakeJudges:
    """Verdicts of the test; after `polls` looks they are no longer undecided."""

    def __init__(self, polls=1, **verdicts):
        self.verdicts = {"evaluate": BETTER, "shadow": BETTER, "canary": BETTER, **verdicts}
        self.polls, self.looks, self.calls = polls, 0, []
        self.times = {}
        self.changed_files = self.unsigned = False

    def evaluate(self, targets, stable, tick):
        self.calls.append("evaluate")
        tick()
        return Verdict(self.verdicts["evaluate"], "simulated")

    def _of(self, stage, targets):
        self.calls.append(stage)
        self.looks += 1
        value = self.verdicts[stage] if self.looks % self.polls == 0 else "not enough evidence"
        return {tl: Verdict(value, f"looked {self.looks} times") for tl in targets}

    def shadow(self, targets):
        return self._of("shadow", targets)

    def canary(self, targets, stable, wanted, alarms):
        self.times = wanted
        if any(alarms.values()):
            return {tl: Verdict("worse", f"alarms {alarms}") for tl in targets}
        return self._of("canary", targets)

    def keep(self, stage, tls, verdicts):
        return {f"{stage}.json": "a" * 64}

    def model(self, tl, number):
        return Model(number, "f" * 64) if self.changed_files else model(number)

    def new_model(self, tl, number):
        if self.unsigned:
            raise InputError(f"models/{tl}/{number}: is not signed")
        return self.model(tl, number)


class World:
    """A street, a ledger's file, and processes that roll out on it."""

    def __init__(self, path, judges=None, **street):
        self.path, self.clock = path, FakeClock()
        self.street = FakeStreet(self.clock, **street)
        self.judges = judges or FakeJudges()
        self.lines = []

    def process(self, plan):
        return RolloutRun(plan, LedgerFile(self.path), self.street, self.judges, self.lines.append, self.clock)

    def run(self, **changes):
        return self.process(plan(**changes)).run()

    def ends(self, outcome, **changes):
        """Roll out: it ends like this, and the street is as the ledger says. Returns the reason."""
        result = self.run(**changes)
        assert (result.outcome, self.disagreement()) == (outcome, "")
        return result.sentence

    def meanwhile(self, change):
        """Call this with the world whenever the rollout waits."""
        self.clock.on_sleep = lambda: change(self)

    def end_of_pin(self):
        """Let the time pass after which the controller ends a canary by itself."""
        self.clock.seconds += PIN_LEASE_S
        self.street.end_leases()
        assert self.street.number("SA101") == 3

    @property
    def is_in_canary(self):
        return self.street.pins.get("SA101") == 4

    @property
    def ledger(self):
        return LedgerFile(self.path)

    def disagreement(self):
        """What the street does other than the ledger says; "" if they agree."""
        state = self.ledger.state
        for tl in state.tls:
            if state.tls[tl].drives != state.tls[tl].wanted:
                return f"{tl}: the ledger does not know what drives"
            if self.street.number(tl) != state.tls[tl].drives.number:
                return f"{tl}: driven by {self.street.number(tl)}, ledger {state.tls[tl].drives.number}"
            if self.street.served[tl].labels["stable"] != state.tls[tl].stable.number:
                return f"{tl}: stable is {self.street.served[tl].labels}"
        return ""


def plan(**changes):
    return Plan(**{"tls": TLS, "number": 4, "author": "ann", "max_wait_s": 600.0, **changes})


def ns(seconds):
    return round((BEGIN + timedelta(seconds=seconds)).timestamp() * NS)
