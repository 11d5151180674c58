"""Handover plans, with which a guard brings a lost controller's signals onto their fallback plans.

Clearing a junction needs no conflict rules, because no link turns green: the times of
the links and the plan are enough.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from city.network import Program, ProgramPhase, ProgramSwitch, SignalNetwork
from controller.sumo.connection import ONLINE, CommandRejected
from controller.sumo.traci_connection import TraciConnection
from signals.fallback.plan import FallbackPlan, FallbackSchedule, PlanTransition
from signals.intersection import Intersection
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety

log = logging.getLogger("controller.guard")

HAND_BACK_MARGIN_S = 10.0
"""Simulated seconds beyond what a safe transition takes."""


class MalformedHandover(ValueError):
    """Bytes that are not handover plans."""


@dataclass(frozen=True)
class SignalHandover:
    """The handover plan of one signal."""

    signal: str
    approach_mps: tuple[float, ...]
    crossing_m: tuple[float, ...]
    path_m: tuple[float, ...]
    slowest_mps: tuple[float, ...]
    times: SafetyTimes
    plans: FallbackSchedule

    def safety(self) -> SignalSafety:
        """Safety rules that can clear the signal; they have no foes."""
        links = len(self.approach_mps)
        no_foes = np.zeros((links, links), bool)
        network = SignalNetwork(
            self.signal,
            ((),) * links,
            (),
            (self.plans.first.program,),
            self.plans.first.program.id,
            no_foes,
            no_foes,
            no_foes,
            self.approach_mps,
            self.crossing_m,
            self.path_m,
            self.slowest_mps,
        )
        return SignalSafety(network, self.times)


def handovers_of(intersections: Iterable[Intersection]) -> list[SignalHandover]:
    """The handover plans of these TLs' signals."""
    return [
        handover_of(safety.network, safety.times, plans)
        for intersection in intersections
        for safety, plans in zip(intersection.safeties, intersection.plans, strict=True)
    ]


def handover_of(network: SignalNetwork, times: SafetyTimes, plans: FallbackSchedule) -> SignalHandover:
    """The handover plan of a signal."""
    return SignalHandover(
        network.id, network.approach_mps, network.crossing_m, network.path_m, network.slowest_mps, times, plans
    )


def encode(handovers: Iterable[SignalHandover]) -> bytes:
    """Encode handover plans as JSON."""
    return json.dumps([asdict(handover) for handover in handovers]).encode()


def decode(content: bytes) -> list[SignalHandover]:
    """Decode handover plans. Raises MalformedHandover."""
    try:
        return [_decode_signal(item) for item in json.loads(content)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedHandover(f"handover plans that cannot be read: {error!r}") from None


def _decode_signal(item: dict[str, Any]) -> SignalHandover:
    by_link = [tuple(map(float, item[key])) for key in ("approach_mps", "crossing_m", "path_m", "slowest_mps")]
    if len({len(values) for values in by_link}) != 1:
        raise ValueError(f"signal {item['signal']}: lists of different lengths, {[len(values) for values in by_link]}")
    approach_mps, crossing_m, path_m, slowest_mps = by_link
    plans = item["plans"]
    schedule = FallbackSchedule(
        _decode_plan(plans["first"]),
        float(plans["since_s"]),
        tuple(ProgramSwitch(**switch) for switch in plans["switches"]),
        {str(program): _decode_plan(plan) for program, plan in plans["later"].items()},
    )
    # no red is too long while a junction is cleared
    times = SafetyTimes(**{**item["times"], "movement_max_red_s": (), "max_unprotected_s": ()})
    return SignalHandover(str(item["signal"]), approach_mps, crossing_m, path_m, slowest_mps, times, schedule)


def _decode_plan(plan: dict[str, Any]) -> FallbackPlan:
    program = dict(plan["program"])
    phases = tuple(ProgramPhase(**phase) for phase in program.pop("phases"))
    return FallbackPlan(Program(phases=phases, **program), bool(plan["is_synchronised"]))


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
