"""Bringing the signals of a controller that has gone back onto their plans, second by second."""

import logging
from collections.abc import Sequence

from controller.fallback import PlanEntry
from controller.guard.will import Bequest
from controller.sumo.link import Link, SumoRefused

log = logging.getLogger("controller.guard")

ONLINE = "online"
"""The program of a signal that a client sets state by state."""
HAND_BACK_S = 60.0
"""Simulated seconds that the safe way may take: min green, yellow, all-red, with room."""


def hand_back(link: Link, bequests: Sequence[Bequest], step_s: float) -> None:
    """Yellow, red, then the plan, for every signal that is still set by hand. Raises SumoGone."""
    light = link.api.trafficlight
    now = float(link.api.simulation.getTime())
    entries: dict[str, PlanEntry] = {}
    for bequest in bequests:
        if light.getProgram(bequest.signal) == ONLINE:
            safety = bequest.safety()
            # since when it shows this is not known here: every time counts from now, which errs on the safe side
            safety.adopt(light.getRedYellowGreenState(bequest.signal), now)
            entries[bequest.signal] = PlanEntry(safety, bequest.plan)
    end_s = now + HAND_BACK_S
    while now < end_s and not all(entry.done for entry in entries.values()):
        settings = [setting for entry in entries.values() if (setting := entry.next(now)[0]) is not None]
        link.go(settings, now + step_s)
        moment = link.read(())
        now = moment.time_s
        for signal, entry in entries.items():
            entry.confirm(signal in moment.refusals)
    for bequest in bequests:
        if bequest.signal in entries and not entries[bequest.signal].done:
            log.error("%s: could not be cleared in time; its plan is switched on at once", bequest.signal)
            try:
                link.switch_program(bequest.signal, bequest.plan.program.id)
            except SumoRefused as error:
                log.error("%s: SUMO refuses to take it back: %s", bequest.signal, error)
    if entries:
        log.info("handed %d signals back to their plans at second %g", len(entries), now)
