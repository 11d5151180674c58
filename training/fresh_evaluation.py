"""The figures of a training: what it has found, on demand on which nothing was chosen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulation.demand import Demand
from simulation.trips import TripMeans, mean_delay_s
from training.statistics import cell


@dataclass(frozen=True)
class FreshEvaluation:
    """The written state, and the policy that the training started from, on demand that was not looked at before."""

    demands: Sequence[Demand]
    trips: Sequence[TripMeans]
    """By demand, with the trained state: the best or the newest one."""
    start: Sequence[TripMeans]
    """By demand, with the policy of --start-from; empty without one."""
    varies: bool
    """True if the demands have other vehicles; else they have other drivers alone."""
    may_keep: bool
    """True if the start is written unless the trained policy is better."""

    @property
    def keeps_start(self) -> bool:
        """True if the start is written: the trained policy is no better."""
        return self.may_keep and bool(self.start) and not mean_delay_s(self.trips) < mean_delay_s(self.start)

    def text(self) -> str:
        """The delays in a clause."""
        count = f"{len(self.trips)} {'fresh demands' if self.varies else 'simulations with fresh drivers'}"
        text = f"mean delay {delay_text(mean_delay_s(self.trips))} on {count}"
        if self.start:
            lower = sum(own.delay_s < other.delay_s for own, other in zip(self.trips, self.start, strict=True))
            text += (
                f"; {delay_text(mean_delay_s(self.start))} with the policy of --start-from; the trained one is better "
                f"on {lower} of {len(self.trips)}"
            )
        if self.keeps_start:
            text += "; the start was kept"
        return text

    def table(self) -> str:
        """The delays as CSV, a row for each demand."""
        rows = ["sumo_seed,scale,vehicles,delay_s,start_delay_s"]
        starts: Sequence[TripMeans | None] = self.start or [None] * len(self.trips)
        for demand, own, start in zip(self.demands, self.trips, starts, strict=True):
            delays_s = [cell(trips.delay_s if trips is not None and trips.total else None) for trips in (own, start)]
            rows.append(",".join([str(demand.seed), cell(demand.scale), str(own.total), *delays_s]))
        return "\n".join(rows) + "\n"


def delay_text(delay_s: float) -> str:
    """A mean delay for the user."""
    return "unknown (no vehicle)" if math.isnan(delay_s) else f"{delay_s:.1f} s"
