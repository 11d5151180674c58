"""Handover plans, with which a guard brings a controller's signals onto their fallback plans.

Clearing a junction needs no conflict rules, because no link turns green: the times of
the links and the plan are enough.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from city.network import Program, ProgramPhase, ProgramSwitch, SignalNetwork
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.intersection import Intersection
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety


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
