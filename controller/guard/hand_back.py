"""Bringing the signals of a controller that has gone back onto their plans, second by second."""

import logging
from collections.abc import Sequence

from controller.fallback import PlanEntry
from controller.guard.will import Bequest
from controller.safety import SignalSafety
from controller.sumo.link import SumoRefused
from controller.sumo.traci_link import TraciLink

log = logging.getLogger("controller.guard")

ONLINE = "online"
"""The program of a signal that a client sets state by state."""
ROOM_S = 10.0
"""Simulated seconds beyond what the safe way takes."""


def hand_back(link: TraciLink, bequests: Sequence[Bequest], step_s: float) -> None:
    """Yellow, red, then the plan, for every signal that is still set by hand. Raises SumoGone."""
    now = float(link.api.simulation.getTime())
    entries: dict[str, PlanEntry] = {}
    end_s = now
    for bequest in bequests:
        try:
            safety = _adopted(link, bequest, now)
        except (ValueError, IndexError, SumoRefused) as error:
            log.error("%s: what the controller left does not fit: %s", bequest.signal, error)
            _switch(link, bequest)
            continue
        if safety is not None:
            entries[bequest.signal] = PlanEntry(safety, bequest.plan)
            end_s = max(end_s, now + safety.clearing_s + ROOM_S)
    while now < end_s and not all(entry.done for entry in entries.values()):
        settings = [setting for entry in entries.values() if (setting := entry.next(now)[0]) is not None]
        link.set(settings)
        link.go(now + step_s)
        moment = link.read(())
        now = moment.time_s
        for signal, entry in entries.items():
            entry.confirm(signal in moment.refusals)
    for bequest in bequests:
        if bequest.signal in entries and not entries[bequest.signal].done:
            log.error("%s: could not be cleared in time", bequest.signal)
            _switch(link, bequest)
    if entries:
        log.info("handed %d signals back to their plans at second %g", len(entries), now)


def _adopted(link: TraciLink, bequest: Bequest, now: float) -> SignalSafety | None:
    """The signal as it shows now; None where it runs a program of its own."""
    program, shown = link.running(bequest.signal)
    if program != ONLINE:
        return None
    safety = bequest.safety()
    if len(shown) != safety.rules.links:
        raise ValueError(f"a signal of {safety.rules.links} links, but SUMO shows {shown}")
    # since when it shows this is not known here: every time counts from now, which errs on the safe side
    safety.adopt(shown, now)
    return safety


def _switch(link: TraciLink, bequest: Bequest) -> None:
    """The last resort."""
    log.error("%s: its plan is switched on at once, without a safe transition", bequest.signal)
    try:
        link.switch_program(bequest.signal, bequest.plan.program.id)
    except SumoRefused as error:
        log.error("%s: SUMO refuses to take it back: %s", bequest.signal, error)
