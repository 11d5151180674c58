"""Static programs that make SUMO alone show the recorded lights: a SUMO additional file.

Each signal gets a program of its recorded states, which a schedule (WAUT) starts at the
second at which control began. While a signal ran a static program of its own, its states
between two readings follow from that program; SUMO's recorded states only confirm them.
After the record, a released signal continues its own program, in step with the recorded one.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

from city import whole_files
from city.network import Program, SignalNetwork, newest_program
from controller.recording.run_start import RunStart
from controller.sumo.network import RunningSignal
from protos import record_pb2 as record
from records.record_reader import RecordedStep
from signals.simulation_time import round_to_ms

PROGRAM, PLAN = "recorded", "recorded-plan"
"""Ids of the written programs."""
DAY_S = 86_400.0
"""Time after the record for which the network's own schedule is continued."""
LAST_STATE_S = 1_000_000
"""How long a signal that was not released keeps its last state."""
TOLERANCE_S = 1e-6
REMEDY = "pass another file"


@dataclass
class _Release:
    """A time in which a signal runs a program of its own."""

    at_s: float
    command: record.Command
    shown: list[tuple[float, float, str]] = field(default_factory=list)
    """(begin, end, state at the end) as SUMO reported them."""


@dataclass(frozen=True)
class _Plan:
    """A static program in the phase in which it runs."""

    program: Program
    begin_s: float
    phase: int
    remaining_s: float

    def changes(self, until_s: float) -> Iterator[tuple[float, str]]:
        """(second, state) of its phases up to until_s."""
        at_s = self.begin_s
        phase = self.phase
        duration_s = self.remaining_s
        while at_s < until_s - TOLERANCE_S:
            yield at_s, self.program.phases[phase].state
            at_s, phase = round_to_ms(at_s + duration_s), (phase + 1) % len(self.program.phases)
            duration_s = self.program.phases[phase].duration_s

    @property
    def offset_s(self) -> float:
        """The offset of a program of the same phases that is in step with it, once this phase has ended."""
        phases = self.program.phases
        ended_s = sum(phase.duration_s for phase in phases[: self.phase + 1])
        return round_to_ms((self.begin_s + self.remaining_s - ended_s) % sum(phase.duration_s for phase in phases))


class _RecordedLights:
    """The states of one signal, and the program that runs after them."""

    def __init__(self, running: RunningSignal, network: SignalNetwork, begin_s: float) -> None:
        self._running, self._network = running, network
        self.changes: list[tuple[float, str]] = []
        self.end_s = begin_s
        self.pending: list[tuple[float, record.Command]] = []
        """Commands of the newest step, which take effect in the states that the next one reports. If SUMO rejected one
        of them, only the shown states count, and there are none."""
        self._release: _Release | None = None
        self.plan: _Plan | None = None
        """The program that runs after the end."""
        self.notes: list[str] = []

    def add_shown(self, begin_s: float, end_s: float, state: str) -> None:
        while self.pending and self.pending[0][0] <= begin_s + TOLERANCE_S:
            at_s, command = self.pending.pop(0)
            self._end_release(at_s)
            if not command.state:
                self._release = _Release(at_s, command)
        if self._release is not None:
            self._release.shown.append((begin_s, end_s, state))
        else:
            self._change(begin_s, state)
        self.end_s = end_s

    def finish(self) -> None:
        """End the record."""
        self._end_release(self.end_s, is_last=True)

    def _end_release(self, until_s: float, is_last: bool = False) -> None:
        release, self._release = self._release, None
        if release is None or not release.shown:
            return
        plans = self._plans(release, until_s)
        changes = [change for plan, end_s in plans for change in plan.changes(end_s)]
        if changes and all(_state_before(changes, end_s) == state for _, end_s, state in release.shown):
            for at_s, state in changes:
                self._change(at_s, state)
            self.plan = plans[-1][0] if is_last else None
            return
        for begin_s, _, state in release.shown:
            self._change(begin_s, state)
        if len({state for _, _, state in release.shown}) > 1:
            longest_s = max(end_s - begin_s for begin_s, end_s, _ in release.shown)
            self.notes.append(
                f"signal {self._network.id}: between second {release.at_s:g} and {until_s:g} it ran program "
                f"{release.command.program!r}, whose changes are known from SUMO's reports alone: up to {longest_s:g} "
                "s early"
            )

    def _plans(self, release: _Release, until_s: float) -> list[tuple[_Plan, float]]:
        """The programs that ran and their ends, with the switches of the network's schedule; [] if one is not
        static."""
        command = release.command
        program = self._running.programs.get(command.program)
        if program is None or not _is_static(program):
            return []
        if not command.HasField("phase") or not 0 <= command.phase < len(program.phases):
            return []
        whole_s = program.phases[command.phase].duration_s
        remaining_s = command.remaining_s if command.HasField("remaining_s") else whole_s
        plans = [(_Plan(program, release.at_s, command.phase, remaining_s), until_s)]
        for switch_s in sorted({round_to_ms(s) for s in _switches_between(self._network, release.at_s, until_s)}):
            following = self._running.programs.get(newest_program(self._network.switches, switch_s) or "")
            if following is None or not _is_static(following):
                return []
            plans[-1] = plans[-1][0], switch_s
            plans.append((_in_step(following, switch_s), until_s))
        return plans

    def _change(self, at_s: float, state: str) -> None:
        if self.changes and self.changes[-1][0] >= at_s - TOLERANCE_S:
            self.changes.pop()
        if not self.changes or self.changes[-1][1] != state:
            self.changes.append((at_s, sys.intern(state)))


def _is_static(program: Program) -> bool:
    return program.type == "static" and bool(program.phases) and all(phase.duration_s > 0 for phase in program.phases)


def _switches_between(network: SignalNetwork, after_s: float, until_s: float) -> Iterator[float]:
    for switch in network.switches:
        at_s = switch.newest_s(until_s - TOLERANCE_S)
        while at_s > after_s + TOLERANCE_S:
            yield at_s
            at_s = at_s - switch.period_s if switch.period_s > 0 else after_s


def _in_step(program: Program, now: float) -> _Plan:
    """A program in the phase that its offset gives."""
    elapsed_s = (now - program.offset_s) % sum(phase.duration_s for phase in program.phases)
    for k, phase in enumerate(program.phases):
        if elapsed_s < phase.duration_s:
            return _Plan(program, now, k, round_to_ms(phase.duration_s - elapsed_s))
        elapsed_s -= phase.duration_s
    return _Plan(program, now, 0, program.phases[0].duration_s)


def _state_before(changes: Sequence[tuple[float, str]], end_s: float) -> str:
    """The state up to second end_s."""
    return next((state for at_s, state in reversed(changes) if at_s < end_s - TOLERANCE_S), "")


def write(path: Path, run: RunStart, steps: Iterable[RecordedStep]) -> list[str]:
    """Write the additional file of a run. Raises InputError.

    Returns:
        Lines about signals whose lights are not the recorded ones without more work: the network's own schedule
        switches them too, or the changes of their own program are not known to the second.
    """
    histories = _histories(run, steps)
    with whole_files.replacing(path, REMEDY) as draft, draft.open("w", encoding="utf-8") as file:
        file.write("<additional>\n")
        for signal, history in histories.items():
            file.writelines(f"    {line}\n" for line in _elements(signal, history, run))
        file.write("</additional>\n")
    scheduled = [
        f"signal {signal}: the network's schedule (WAUT) would switch it in the recorded time; leave its wautJunction "
        "out of the additional file that has it: the written schedule has the switches before and after the record"
        for signal, history in histories.items()
        if _needs_own_schedule(run.street.signals[signal], history.changes[0][0], history.end_s)
    ]
    return [*scheduled, *(note for history in histories.values() for note in history.notes)]


def _histories(run: RunStart, steps: Iterable[RecordedStep]) -> dict[str, _RecordedLights]:
    """By signal, what it showed."""
    start = run.start
    histories = {
        signal: _RecordedLights(running, run.street.signals[signal], start.now)
        for signal, running in start.signals.items()
    }
    for recorded in steps:
        step = recorded.step
        for rejection in step.rejections:
            if rejection.signal in histories:
                histories[rejection.signal].pending.clear()
        for shown in step.shown:
            for history, state in zip(histories.values(), shown.states, strict=False):
                history.add_shown(shown.begin_s, shown.end_s, state)
        for tl in recorded.tls.values():
            for states in tl.states:
                for command in states.commands:
                    if command.signal in histories:
                        histories[command.signal].pending.append((states.at_s, command))
    for history in histories.values():
        history.finish()
    return {signal: history for signal, history in histories.items() if history.changes}


def _elements(signal: str, history: _RecordedLights, run: RunStart) -> Iterator[str]:
    """The XML elements of one signal: its recorded program, the own one after it, and their schedule."""
    network = run.street.signals[signal]
    names = {program.id for program in network.programs}
    begin_s, plan = history.changes[0][0], history.plan
    # a phase of the own program that was lengthened is part of the recorded one
    end_s = history.end_s if plan is None else max(history.end_s, round_to_ms(plan.begin_s + plan.remaining_s))
    switches = [(begin_s, _free(PROGRAM, names))]
    ends_s = [at_s for at_s, _ in history.changes[1:]] + [end_s + (LAST_STATE_S if plan is None else 0)]
    phases = [(end - at_s, state) for (at_s, state), end in zip(history.changes, ends_s, strict=True)]
    yield from _program(signal, switches[0][1], begin_s, phases)
    if plan is not None:
        switches.append((end_s, _free(PLAN, names)))
        own = [(phase.duration_s, phase.state) for phase in plan.program.phases]
        yield from _program(signal, switches[1][1], plan.offset_s, own)
    if _needs_own_schedule(network, begin_s, end_s):
        outside = [
            *_switches_between(network, run.street.begin_s, begin_s),
            *_switches_between(network, end_s, end_s + DAY_S),
        ]
        switches += [(at_s, newest_program(network.switches, at_s) or network.active_program) for at_s in outside]
    waut, first = quoteattr(f"recorded-{signal}"), quoteattr(network.scheduled_program(run.street.begin_s))
    yield f'<WAUT id={waut} refTime="0" startProg={first}>'
    for at_s, program in sorted(switches):
        yield f'    <wautSwitch time="{_number(at_s)}" to={quoteattr(program)}/>'
    yield "</WAUT>"
    yield f"<wautJunction wautID={waut} junctionID={quoteattr(signal)}/>"


def _needs_own_schedule(network: SignalNetwork, begin_s: float, end_s: float) -> bool:
    """True if the network's schedule would switch the signal to another program in the recorded time."""
    return any(True for _ in _switches_between(network, begin_s - 2 * TOLERANCE_S, end_s))


def _program(signal: str, program: str, offset_s: float, phases: Iterable[tuple[float, str]]) -> Iterator[str]:
    names = f"id={quoteattr(signal)} programID={quoteattr(program)}"
    yield f'<tlLogic {names} type="static" offset="{_number(offset_s)}">'
    for duration_s, state in phases:
        yield f'    <phase duration="{_number(duration_s)}" state={quoteattr(state)}/>'
    yield "</tlLogic>"


def _free(name: str, used: set[str]) -> str:
    """The name, with a number if the signal has a program of that name."""
    candidates = (name, *(f"{name}-{k}" for k in range(1, len(used) + 2)))
    return next(candidate for candidate in candidates if candidate not in used)


def _number(value: float) -> str:
    return f"{round_to_ms(value):.15g}"
