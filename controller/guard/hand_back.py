"""Hand the signals of a lost controller back to their fallback plans."""

import logging
from collections.abc import Sequence

from controller.guard.handover import SignalHandover
from controller.sumo.connection import ONLINE, CommandRejected
from controller.sumo.traci_connection import TraciConnection
from signals.fallback.plan import PlanTransition
from signals.safety.signal_safety import SignalSafety

log = logging.getLogger("controller.guard")

HAND_BACK_MARGIN_S = 10.0
"""Simulated seconds beyond what a safe transition takes."""


def hand_back(connection: TraciConnection, handovers: Sequence[SignalHandover], step_s: float) -> None:
    """Bring every signal with states set by a client onto its fallback plan, by yellow and red. Raises
    SumoConnectionLost."""
    # not by api: SUMO may first wait for another client, and this wait counts as alive
    now = connection.read(()).time_s
    transitions: dict[str, PlanTransition] = {}
    end_s = now
    for handover in handovers:
        try:
            safety = _rules_from_shown(connection, handover, now)
        except (ValueError, IndexError, CommandRejected) as error:
            log.error("%s: invalid handover plan: %s", handover.signal, error)
            _switch(connection, handover, now)
            continue
        if safety is not None:
            transitions[handover.signal] = PlanTransition(safety, handover.plans)
            end_s = max(end_s, now + safety.clearing_s + HAND_BACK_MARGIN_S)
    while now < end_s and not all(transition.is_confirmed for transition in transitions.values()):
        commands = [command for transition in transitions.values() if (command := transition.next(now)[0]) is not None]
        connection.set(commands)
        connection.advance(now + step_s)
        result = connection.read(())
        now = result.time_s
        for signal, transition in transitions.items():
            transition.set_result(signal not in result.rejected)
    for handover in handovers:
        if handover.signal in transitions and not transitions[handover.signal].is_confirmed:
            log.error("%s: could not be cleared in time", handover.signal)
            _switch(connection, handover, now)
    connection.mark_controlled([handover.signal for handover in handovers], "")
    if transitions:
        log.info("handed %d signals back to their fallback plans at second %g", len(transitions), now)


def _rules_from_shown(connection: TraciConnection, handover: SignalHandover, now: float) -> SignalSafety | None:
    """Safety rules that start from the shown state; None if the signal runs its own program."""
    if connection.programs([handover.signal])[handover.signal] != ONLINE:
        return None
    (shown,) = connection.signal_states({handover.signal: len(handover.approach_mps)})
    safety = handover.safety()
    # how long the signal has shown this state is unknown: ages count from now, which is safe
    safety.start_from(shown, now)
    return safety


def _switch(connection: TraciConnection, handover: SignalHandover, now: float) -> None:
    """Switch a signal to its program without a safe transition, as a last resort."""
    log.error("%s: switched to its program at once, without a safe transition", handover.signal)
    try:
        connection.switch_program(handover.signal, handover.plans.at(now).program.id)
    except CommandRejected as error:
        log.error("%s: SUMO rejects the switch: %s", handover.signal, error)
