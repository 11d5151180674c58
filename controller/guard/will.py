"""What a controller leaves with its guard: how to bring its signals back onto their plans.

Clearing a junction needs no conflict rules, as nothing turns green: the links'
times and the plan are enough.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from city.network import Phase, Program, SignalNetwork
from controller.fallback import Plan
from controller.intersection import Intersection
from controller.safety import SignalSafety
from controller.safety_times import SafetyTimes


class BadWill(ValueError):
    """Bytes that are no will."""


@dataclass(frozen=True)
class Bequest:
    """One signal."""

    signal: str
    approach_mps: tuple[float, ...]
    crossing_m: tuple[float, ...]
    times: SafetyTimes
    plan: Plan

    def safety(self) -> SignalSafety:
        links = len(self.approach_mps)
        foes = np.zeros((links, links), bool)
        network = SignalNetwork(
            self.signal,
            ((),) * links,
            (),
            (self.plan.program,),
            self.plan.program.id,
            foes,
            foes,
            self.approach_mps,
            self.crossing_m,
        )
        return SignalSafety(network, self.times)


def of(intersections: Iterable[Intersection]) -> bytes:
    """The will of a controller that has these TLs."""
    bequests = [
        Bequest(safety.signal, safety.approach_mps, safety.crossing_m, safety.times, plan)
        for x in intersections
        for safety, plan in zip(x.safeties, x.plans, strict=True)
    ]
    return write(bequests)


def write(bequests: Iterable[Bequest]) -> bytes:
    return json.dumps([asdict(bequest) for bequest in bequests]).encode()


def read(content: bytes) -> list[Bequest]:
    """Raises BadWill."""
    try:
        return [_bequest(told) for told in json.loads(content)]
    except (ValueError, KeyError, TypeError) as error:
        raise BadWill(f"a will that cannot be read: {error!r}") from None


def _bequest(told: dict[str, Any]) -> Bequest:
    plan = dict(told["plan"])
    program = dict(plan["program"])
    phases = tuple(Phase(**phase) for phase in program.pop("phases"))
    if len(told["approach_mps"]) != len(told["crossing_m"]):
        raise ValueError(f"signal {told['signal']}: {len(told['approach_mps'])} approaches, {len(told['crossing_m'])} crossings")
    return Bequest(
        str(told["signal"]),
        tuple(map(float, told["approach_mps"])),
        tuple(map(float, told["crossing_m"])),
        SafetyTimes(**told["times"]),
        Plan(Program(phases=phases, **program), bool(plan["timed"])),
    )
