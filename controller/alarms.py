"""Current alarms: one list, in which a flood of one kind is one alarm with a count.

The names are those of the alerts in k8s/monitoring/rules.yaml, and runbook.md says what to do about each.
An alarm begins with its first occurrence. It ends when its condition is over (a TL is back with its policy), or, for
what is reported as single occurrences, after a time without another one.
"""

import math
import shlex
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import GaugeMetricFamily

from city.names import listed
from city.network import StreetNetwork
from city.printable import printable
from controller import runbook
from controller.events import DecisionEvent, Subscriber, TlDecision
from controller.pace import MAX_CATCH_UP_S, PaceState
from protos import control_pb2 as pb
from protos import policy_pb2
from serving.contract import CATEGORICAL
from signals.fallback.control_mode import ControlMode
from signals.movement_names import MovementNames
from signals.policy import Answer
from signals.policy_signals import greens_of
from signals.safety.conflicts import EXPLANATIONS
from signals.safety.monitor import Alarm
from signals.safety.signal_safety import Override

CRITICAL, WARNING = "critical", "warning"
MONITOR, REJECTIONS, OVERRIDES = "GreenserveMonitorAlarm", "GreenserveSumoRejections", "GreenserveOverrides"
FALLBACK, MANY_FALLBACKS = "GreenserveTLInFallback", "GreenserveManyTLsInFallback"
SERVER, DEADLINE = "GreenserveServerDown", "GreenserveDeadlineMisses"
CERTIFICATE, RECORD, LATE = "GreenserveCertificateExpires", "GreenserveRecordStopped", "GreenserveRunLate"
GREEN_KEPT, UNIFORM = "GreenserveGreenKept", "GreenserveUniformAnswers"


class AlarmKind(NamedTuple):
    """All alarms of one name."""

    severity: str
    """Severity of the alert of this name."""
    remedy: str
    """One line about what to do; runbook.md has more."""
    quiet_s: float = math.inf
    """Simulated time without another occurrence after which an alarm of single occurrences ends."""


KINDS = {
    MONITOR: AlarmKind(
        CRITICAL,
        "unexpected_state: stop the other client that sets the signal; any other rule: greenserve ctl set fixed TL, "
        "and keep the log",
        300.0,
    ),
    MANY_FALLBACKS: AlarmKind(
        CRITICAL,
        "find the reasons in controller_missing_answers_total; start the model server, or roll the publication back",
    ),
    SERVER: AlarmKind(
        CRITICAL,
        "greenserve status --server HOST:PORT; restart the server if it does not run, else look at its certificates",
        10.0,
    ),
    FALLBACK: AlarmKind(WARNING, "its fallback plan runs; find the reason in controller_missing_answers_total"),
    DEADLINE: AlarmKind(
        WARNING,
        "find the slow stage in controller_stage_seconds; use a fleet, more cores or districts, or raise deadline_ms",
    ),
    OVERRIDES: AlarmKind(
        WARNING,
        "compare [safety] with the contract's timing (greenserve describe), and train with the street's times",
    ),
    GREEN_KEPT: AlarmKind(
        WARNING,
        "greenserve ctl set fixed TL; greenserve check says if the policy gives one action for all: serve another",
    ),
    UNIFORM: AlarmKind(
        WARNING,
        "greenserve ctl set fixed TL, and serve another version: this one weighs no green against another",
    ),
    REJECTIONS: AlarmKind(
        WARNING, "compare the models and the network files with what SUMO loads (greenserve check)", 300.0
    ),
    CERTIFICATE: AlarmKind(WARNING, "replace its file or Secret; it is read again without a restart"),
    RECORD: AlarmKind(
        WARNING,
        "make room, or lower [controller] record_max_gb, and restart the controller; control goes on without the "
        "record",
    ),
    LATE: AlarmKind(
        WARNING, "lower the speed (greenserve ctl speed X), or find what slows SUMO in controller_stage_seconds", 60.0
    ),
}
"""By name."""
WINDOW_S = 300.0
"""Simulated time over which shares of decisions are counted."""
MAX_OVERRIDDEN_SHARE, MAX_MISSED_SHARE, MAX_FALLBACK_SHARE = 0.5, 0.05, 0.2
"""Shares of a TL's decisions, of the decision steps, and of the TLs, as in the alerts."""
MAX_KEPT_S = 300.0
"""Simulated time for which a policy may keep a green while vehicles halt at others."""
MAX_UNIFORM_S = 60.0
"""Simulated time for which a policy may score all greens alike."""
UNIFORM_WITHIN = 1e-6
"""Difference of the largest and the least score below which all are one."""
MIN_DECISIONS = 10
"""Decisions of a TL in a window, for its share to count."""
CERTIFICATE_S = 14 * 86400.0
"""Wall time before a certificate's expiry."""
MAX_ENDED = 50
"""Ended alarms that are kept."""
MAX_SUBJECTS = 20
"""Subjects that an alarm names; the others are counted."""
MAX_NAMED_GREENS = 3
"""Greens that the alarm about kept greens names."""
MAX_NAMED_ALARMS, MAX_ID_CHARS = 10, 100
"""Active alarms, and characters of an unknown id, that an error shows."""
CAUSES = {"Unavailable": SERVER, "DeadlineExceeded": DEADLINE}
"""By the kind of a missing answer, the alarm about all such answers."""
SERVER_ADDRESS = "HOST:PORT"
"""The model server's address in texts about what to do."""
WAITING = ("queue", "halting")
"""Features of a lane that are more than 0 if a vehicle stands on it (dialects sumo-rl and street)."""


class UnknownAlarm(Exception):
    """There is no active alarm with this id; the text names those that are."""


class _Active(NamedTuple):
    """An alarm that has not ended, or has just ended."""

    alarm: pb.Alarm
    """As a reader sees it, without what to do: see `Alarms.with_instructions`."""
    subjects: dict[str, None]
    """All its TLs or signals; the alarm names MAX_SUBJECTS of them."""

    def listed(self) -> pb.Alarm:
        """A copy with its subjects."""
        subjects = list(self.subjects)[:MAX_SUBJECTS]
        listed = pb.Alarm(subjects=subjects, subject_count=len(self.subjects))
        listed.MergeFrom(self.alarm)
        return listed


def _is_uniform(answer: Answer | Exception) -> bool:
    """True if an answer has one score for all greens; False also if its scores are not known."""
    scores = answer.scores if isinstance(answer, Answer) else None
    return scores is not None and len(scores) > 1 and float(np.ptp(scores)) < UNIFORM_WITHIN


def instructions(name: str, server: str = "") -> dict[str, str]:
    """Instructions for the alarms of a name: `remedy` is one line, `instructions` the runbook's section.

    `server`: the model server's address; "" if it is not known.
    """
    texts = {"remedy": KINDS[name].remedy, "instructions": runbook.instructions(name)}
    address = shlex.quote(server) if server else SERVER_ADDRESS
    return {key: text.replace(SERVER_ADDRESS, address) for key, text in texts.items()}


class Alarms(Subscriber):
    """The alarms of a run: a subscriber, and a collector of Prometheus metrics. Every method may be called by any
    thread."""

    def __init__(
        self,
        tl_of_signal: Mapping[str, str],
        tls: int,
        server: str = "",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare an empty list.

        Args:
            tl_of_signal: of the controlled signals.
            tls: number of controlled TLs.
            server: the model server's address; "" if it is not known.
            wall_clock: seconds since 1970.
        """
        self.server = server
        self._tl_of_signal = tl_of_signal
        self._tls = tls
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._active: dict[str, _Active] = {}
        self._ended: deque[_Active] = deque(maxlen=MAX_ENDED)
        self._now = 0.0
        self._window_end_s: float | None = None
        self._decisions: Counter[str] = Counter()
        self._overridden: Counter[str] = Counter()
        """By TL, since the window's begin."""
        self._newest_override: dict[str, Override] = {}
        """By TL, since its newest decision."""
        self._failures: dict[str, str] = {}
        """By TL in fallback, the kind of the missing answer with which that began."""
        self._waiting_greens = WaitingGreens((), None, {})
        self._lasting: dict[str, dict[str, tuple[int, float]]] = {GREEN_KEPT: {}, UNIFORM: {}}
        """By alarm and TL, what the policy keeps doing, and since when."""
        self._steps = self._missed_steps = 0
        self._certificates: Mapping[str, Mapping[str, float]] = {}
        """By source, the expiry by file."""

    def follow_greens(
        self, contracts: Iterable[policy_pb2.PolicyContract], street: StreetNetwork, names: Mapping[str, MovementNames]
    ) -> None:
        """Raise alarms about greens that are kept, too; before the first event. `names`: by signal, of its
        movements."""
        self._waiting_greens = WaitingGreens(contracts, street, names)

    def add(self, event: DecisionEvent) -> None:
        self.take(
            event.at_s,
            event.alarms,
            event.rejected,
            [command.tl for command in event.commands],
            event.decisions,
            [override for sent in event.sent for override in sent.overrides],
        )

    def take(
        self,
        at_s: float,
        monitor_alarms: Iterable[Alarm],
        rejected: Mapping[str, str],
        commanded: Iterable[str],
        decisions: Sequence[TlDecision],
        overrides: Iterable[Override],
    ) -> None:
        """Take the next step, of a running controller or of a record.

        Args:
            at_s: its simulated second.
            monitor_alarms: of the signals' monitors.
            rejected: by signal, SUMO's reason for rejecting a command.
            commanded: TLs whose mode an operator has set.
            decisions: of the step.
            overrides: in their order.
        """
        with self._lock:
            self._now = at_s
            for alarm_id, active in list(self._active.items()):
                if at_s - active.alarm.last_s > KINDS[active.alarm.name].quiet_s:
                    self._end(alarm_id)
            for alarm in monitor_alarms:
                self._occurred(f"{MONITOR}/{alarm.rule.value}", alarm.signal, f"{alarm.signal}: {alarm.message}")
            for signal, reason in rejected.items():
                self._occurred(REJECTIONS, signal, f"{signal}: {reason}")
            self._follow_modes(commanded, decisions)
            failures = [decision.failure for decision in decisions if decision.failure]
            unavailable = [failure for failure in failures if failure.startswith("Unavailable:")]
            if unavailable:
                self._occurred(SERVER, "", unavailable[-1], len(unavailable))
            self._count(decisions, overrides)
            self._follow_policies(decisions)
            if decisions:
                self._steps += 1
                self._missed_steps += any(failure.startswith("DeadlineExceeded:") for failure in failures)
            if self._window_end_s is None:
                self._window_end_s = at_s + WINDOW_S
            if at_s >= self._window_end_s:
                self._judge_window()

    def note_pace(self, pace: PaceState) -> None:
        """Take the lateness of the newest step."""
        if pace.lateness_s > MAX_CATCH_UP_S:
            with self._lock:
                text = f"the run is {pace.lateness_s:.1f} s behind speed {pace.speed:g}; its schedule was moved"
                self._occurred(LATE, "", text)

    def note_certificates(self, source: str, expiries_s: Mapping[str, float]) -> None:
        """Take when the certificates of a source expire, by file, in s since 1970."""
        expiries_of_source, texts = dict(expiries_s), {}
        with self._lock:  # each source has a thread of its own
            self._certificates = {**self._certificates, source: expiries_of_source}
            for expiries in self._certificates.values():
                for file, expiry_s in expiries.items():
                    left_s = expiry_s - self._wall_clock()
                    if left_s < CERTIFICATE_S:
                        when = f"expires in {left_s / 86400:.1f} days" if left_s > 0 else "has expired"
                        texts[file] = f"{file} {when}"
            self._holds(CERTIFICATE, texts, "; ".join(texts.values()))

    def note_record(self, error: str) -> None:
        """Take the error that has ended the record, or "" while it is written."""
        with self._lock:
            self._holds(RECORD, ["record"] if error else [], error)

    def acknowledge(self, alarm_id: str, author: str) -> bool:
        """Acknowledge an active alarm until it ends; the first author stays. Raises UnknownAlarm.

        Returns whether it was not acknowledged before.
        """
        with self._lock:
            if alarm_id not in self._active:
                ids = [alarm.id for alarm in self._sorted()]
                known = f"the active ones are {listed(ids, MAX_NAMED_ALARMS)}" if ids else "no alarm is active"
                raise UnknownAlarm(f"{printable(alarm_id, MAX_ID_CHARS)}: no active alarm has this id; {known}")
            alarm = self._active[alarm_id].alarm
            if alarm.acknowledged_by:
                return False
            alarm.acknowledged_by, alarm.acknowledged_s = author, self._now
            return True

    def current(self, with_ended: bool = False) -> list[pb.Alarm]:
        """Active alarms, critical ones first, then by begin; with_ended: the newest ended ones too, the newest
        first."""
        with self._lock:
            ended = [each.listed() for each in reversed(self._ended)] if with_ended else []
            return [*self._sorted(), *ended]

    def with_instructions(self, alarm: pb.Alarm) -> pb.Alarm:
        """The alarm with what to do, and where the alert rules say that it stands."""
        texts = instructions(alarm.name, self.server)
        alarm.remedy, alarm.instructions = texts["remedy"], texts["instructions"]
        alarm.runbook = f"docs/runbook.md#{alarm.name.lower()}"
        return alarm

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "controller_alarms_active", "Active alarms, by the name of their alert", labels=("name",)
        )
        with self._lock:
            counts = Counter(active.alarm.name for active in self._active.values())
            expiries = {file: s for by_file in self._certificates.values() for file, s in by_file.items()}
        for name in KINDS:
            family.add_metric((name,), counts[name])
        yield family
        if expiries:
            text = "When the first certificate of a TLS file expires, in s since 1970"
            family = GaugeMetricFamily("controller_certificate_expiry_timestamp_seconds", text, labels=("file",))
            for file, expiry_s in expiries.items():
                family.add_metric((file,), expiry_s)
            yield family

    def _sorted(self) -> list[pb.Alarm]:
        """Active alarms: critical ones first, then by begin."""
        active = [each.listed() for each in self._active.values()]
        for alarm in active:
            alarm.consequence_of = self._cause(alarm.name)
        return sorted(active, key=lambda alarm: (alarm.severity != CRITICAL, alarm.since_s))

    def _cause(self, name: str) -> str:
        """The id of the active alarm that causes those of a name; "": none is known."""
        if name not in (FALLBACK, MANY_FALLBACKS):
            return ""
        kinds = set(self._failures.values())
        cause = CAUSES.get(kinds.pop(), "") if len(kinds) == 1 else ""
        if cause in self._active:
            return cause
        return MANY_FALLBACKS if name == FALLBACK and MANY_FALLBACKS in self._active else ""

    def _follow_modes(self, commanded: Iterable[str], decisions: Iterable[TlDecision]) -> None:
        before = self._active.get(FALLBACK)
        subjects = dict(before.subjects) if before else {}
        began: list[str] = []
        for tl in commanded:
            subjects.pop(tl, None)  # an operator's mode is no fallback
        for tl, failure, mode in ((made.tl, made.failure, made.mode) for made in decisions):
            if mode is ControlMode.FALLBACK:
                if tl not in subjects:
                    subjects[tl] = None
                    self._failures[tl] = failure.partition(":")[0]
                    began.append(f"{tl}: {failure}")
            elif subjects and mode is not ControlMode.RECOVERING:
                subjects.pop(tl, None)
        self._failures = {tl: kind for tl, kind in self._failures.items() if tl in subjects}
        if subjects or before:
            self._holds(FALLBACK, subjects, began[-1] if began else "", len(began))
            many = subjects if len(subjects) > MAX_FALLBACK_SHARE * self._tls else {}
            self._holds(MANY_FALLBACKS, many, f"{len(subjects)} of {self._tls} TLs")

    def _count(self, decisions: Iterable[TlDecision], overrides: Iterable[Override]) -> None:
        for tl, mode in ((made.tl, made.mode) for made in decisions):
            # an override is reported each second until the state is permitted: a decision counts once, when the next
            # one is made
            override = self._newest_override.pop(tl, None)
            if mode is ControlMode.POLICY:
                self._decisions[tl] += 1
                self._overridden[tl] += override is not None
        for override in overrides:
            self._newest_override[self._tl_of_signal.get(override.signal, override.signal)] = override

    def _follow_policies(self, decisions: Iterable[TlDecision]) -> None:
        for decision in decisions:
            green = is_uniform = None
            # without a policy's answer, a fallback controls it, whose greens are not these phases
            if decision.mode is ControlMode.POLICY and isinstance(decision.answer, Answer):
                phases = decision.phase_state.phases
                green = self._waiting_greens.green_to_leave(decision.tl, decision.observation, phases)
                is_uniform = 1 if _is_uniform(decision.answer) else None
            self._follow(GREEN_KEPT, decision.tl, green)
            self._follow(UNIFORM, decision.tl, is_uniform)
        text = f"kept a green for {MAX_KEPT_S:g} s while vehicles halt or persons wait at others"
        self._hold_lasting(GREEN_KEPT, MAX_KEPT_S, text, self._waiting_greens.describe)
        self._hold_lasting(UNIFORM, MAX_UNIFORM_S, f"given all greens one score for {MAX_UNIFORM_S:g} s")

    def _follow(self, alarm_id: str, tl: str, doing: int | None) -> None:
        """Note what a TL's policy does now; None: nothing that is an alarm if it lasts."""
        lasting = self._lasting[alarm_id]
        if doing is None:
            lasting.pop(tl, None)
        elif tl not in lasting or lasting[tl][0] != doing:
            lasting[tl] = doing, self._now

    def _hold_lasting(
        self, alarm_id: str, max_s: float, text: str, describe: Callable[[str, int], str] | None = None
    ) -> None:
        """Hold the alarm for the TLs that have done the same for `max_s`. `describe`: of a TL and what it does."""
        lasting = self._lasting[alarm_id].items()
        doing = {tl: done for tl, (done, since_s) in lasting if self._now - since_s >= max_s}
        if doing or alarm_id in self._active:
            text = f"{len(doing)} {'TL has' if len(doing) == 1 else 'TLs have'} {text}"
            if describe is not None:
                text += f": {listed([describe(*item) for item in doing.items()], MAX_NAMED_GREENS)}"
            self._holds(alarm_id, doing, text)

    def _judge_window(self) -> None:
        """Begin or end the alarms of shares, and begin the next window."""
        shares = {tl: self._overridden[tl] / count for tl, count in self._decisions.items() if count >= MIN_DECISIONS}
        often = [tl for tl, share in shares.items() if share > MAX_OVERRIDDEN_SHARE]
        reasons = {EXPLANATIONS[self._newest_override[tl].reason]: None for tl in often if tl in self._newest_override}
        self._holds(OVERRIDES, often, "; ".join([f"{len(often)} TLs are overridden in most decisions", *reasons]))
        is_missed = self._missed_steps > MAX_MISSED_SHARE * self._steps
        text = f"{self._missed_steps} of {self._steps} decision steps had an answer after the deadline"
        self._holds(DEADLINE, ["answers"] if is_missed else [], text)
        self._window_end_s = self._now + WINDOW_S
        self._decisions.clear()
        self._overridden.clear()
        self._steps = self._missed_steps = 0

    def _occurred(self, alarm_id: str, subject: str, text: str, count: int = 1) -> None:
        """Count an occurrence; without an active alarm, one begins. `subject`: "" for none."""
        active = self._occurring(alarm_id, text)
        active.alarm.count += count
        if subject:
            active.subjects.setdefault(subject)

    def _holds(self, alarm_id: str, subjects: Iterable[str], text: str, count: int | None = None) -> None:
        """Set the subjects of a condition; without any, it ends. `count`: new occurrences (default: new subjects)."""
        now = dict.fromkeys(subjects)
        if not now:
            self._end(alarm_id)
            return
        active = self._occurring(alarm_id, text)
        active.alarm.count += len(now.keys() - active.subjects.keys()) if count is None else count
        self._active[alarm_id] = active._replace(subjects=now)

    def _occurring(self, alarm_id: str, text: str) -> _Active:
        """The alarm, with an occurrence now; without an active one, it begins. `text`: of the occurrence; "" keeps the
        one before."""
        if alarm_id not in self._active:
            name = alarm_id.partition("/")[0]
            begun = pb.Alarm(
                id=alarm_id,
                name=name,
                severity=KINDS[name].severity,
                since_s=self._now,
                since_unix_s=self._wall_clock(),
                is_active=True,
            )
            self._active[alarm_id] = _Active(begun, {})
        alarm = self._active[alarm_id].alarm
        alarm.last_s = self._now
        # UTF-8, and so protobuf, has no lone surrogates
        alarm.text = text.encode(errors="replace").decode() or alarm.text
        return self._active[alarm_id]

    def _end(self, alarm_id: str) -> None:
        if active := self._active.pop(alarm_id, None):
            active.alarm.ended_s, active.alarm.is_active = self._now, False
            self._ended.append(active)


class WaitingGreens:
    """The lanes that other greens than the current one serve, of TLs that choose greens and observe halting
    vehicles."""

    def __init__(
        self,
        contracts: Iterable[policy_pb2.PolicyContract],
        street: StreetNetwork | None,
        names: Mapping[str, MovementNames],
    ) -> None:
        """`names`: by signal, the names of its movements."""
        self._others: dict[str, list[NDArray[np.intp]]] = {}
        """By TL and green, the observation's columns of lanes that another green serves and this one does not."""
        self._signal_of: dict[str, policy_pb2.Signal] = {}
        for contract in contracts:
            if contract.action.kind == CATEGORICAL and len(contract.signals) == 1 and street is not None:
                self._others[contract.tl] = _others(contract, street)
                self._signal_of[contract.tl] = contract.signals[0]
        self._names = names

    def green_to_leave(self, tl: str, observation: Iterable[float], phases: Iterable[int]) -> int | None:
        """The current green if vehicles or persons wait on a lane that only others serve; None if not, or not known."""
        (green, *_), others = (*phases, -1), self._others.get(tl, [])
        if not 0 <= green < len(others):
            return None
        return green if np.asarray(observation)[others[green]].any() else None

    def describe(self, tl: str, green: int) -> str:
        """A TL and a green of it, such as `SA101 green 0 (northbound through)`."""
        signal = self._signal_of[tl]
        return f"{tl} {self._names.get(signal.id, MovementNames()).of_green(greens_of(signal), green)}"


def _others(contract: policy_pb2.PolicyContract, street: StreetNetwork) -> list[NDArray[np.intp]]:
    (signal,) = contract.signals
    greens, links = greens_of(signal), street.signals[signal.id].links if signal.id in street.signals else ()
    if any(len(state) != len(links) for state in greens):
        return []  # of another network; the check of contracts says so
    links_of: dict[str, list[int]] = {approach.lane_id: [*approach.links] for approach in signal.approaches}
    for link, connections in enumerate(() if links_of else links):
        for lane, _ in connections:
            links_of.setdefault(lane, []).append(link)
    columns = [(k, f.lane_id) for k, f in enumerate(contract.observation.features) if f.kind in WAITING and f.lane_id]
    served = [{lane for lane, links in links_of.items() if any(state[k] in "Gg" for k in links)} for state in greens]
    return [
        np.array([k for k, lane in columns if lane not in own and any(lane in other for other in served)], np.intp)
        for own in served
    ]
