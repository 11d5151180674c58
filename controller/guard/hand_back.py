"""Hand the signals of a lost controller back to their fallback plans, second by second."""

import logging
from collections.abc import Sequence

from controller.fallback.plan import PlanEntry
from controller.guard.handover import SignalHandover
from controller.safety.signal_safety import SignalSafety
from controller.sumo.link import CommandRejected
from controller.sumo.traci_link import TraciLink

log = logging.getLogger("controller.guard")

ONLINE = "online"
"""SUMO's program id of a signal that a client sets state by state."""
HAND_BACK_MARGIN_S = 10.0
"""Simulated seconds beyond what a safe transition takes."""


def hand_back(link: TraciLink, handovers: Sequence[SignalHandover], step_s: float) -> None:
    """Bring every signal that a client still sets onto its fallback plan, by yellow and red. Raises SumoConnectionLost."""
    now = float(link.api.simulation.getTime())
    entries: dict[str, PlanEntry] = {}
    end_s = now
    for handover in handovers:
        try:
            safety = _adopt(link, handover, now)
        except (ValueError, IndexError, CommandRejected) as error:
            log.error("%s: its handover plan does not fit: %s", handover.signal, error)
            _switch(link, handover)
            continue
        if safety is not None:
            entries[handover.signal] = PlanEntry(safety, handover.plan)
            end_s = max(end_s, now + safety.clearing_s + HAND_BACK_MARGIN_S)
    while now < end_s and not all(entry.is_confirmed for entry in entries.values()):
        commands = [command for entry in entries.values() if (command := entry.next(now)[0]) is not None]
        link.set(commands)
        link.advance(now + step_s)
        result = link.read(())
        now = result.time_s
        for signal, entry in entries.items():
            entry.confirm(signal in result.rejected)
    for handover in handovers:
        if handover.signal in entries and not entries[handover.signal].is_confirmed:
            log.error("%s: could not be cleared in time", handover.signal)
            _switch(link, handover)
    if entries:
        log.info("handed %d signals back to their fallback plans at second %g", len(entries), now)


def _adopt(link: TraciLink, handover: SignalHandover, now: float) -> SignalSafety | None:
    """Safety rules that start from the shown state; None if the signal runs its own program."""
    program, shown = link.running(handover.signal)
    if program != ONLINE:
        return None
    safety = handover.safety()
    if len(shown) != safety.rules.links:
        raise ValueError(f"a signal of {safety.rules.links} links, but SUMO shows {shown}")
    # since when this state is shown is unknown: ages count from now, which is the safe assumption
    safety.adopt(shown, now)
    return safety


def _switch(link: TraciLink, handover: SignalHandover) -> None:
    """Switch a signal to its program without a safe transition: the last resort."""
    log.error("%s: switched to its program at once, without a safe transition", handover.signal)
    try:
        link.switch_program(handover.signal, handover.plan.program.id)
    except CommandRejected as error:
        log.error("%s: SUMO rejects the switch: %s", handover.signal, error)
