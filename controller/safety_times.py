"""How long a signal's colours must last at least, and may at most."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SafetyTimes:
    """Times in s that hold for a signal: the contract's, never below the floors."""

    yellow_s: float
    min_green_s: float
    all_red_s: float = 0.0
    max_green_s: float = math.inf
    max_red_s: float = math.inf
    walking_mps: float = 1.2


def yellow_s_at(approach_mps: float) -> float:
    """Yellow in s that an approach needs: 3, 4, 5 s at up to 50, 60, 70 km/h (RiLSA), 6 s where it is faster."""
    kmh = 3.6 * approach_mps
    # networks write 13.89 m/s for 50 km/h
    return next((yellow_s for bound, yellow_s in ((50, 3.0), (60, 4.0), (70, 5.0)) if kmh <= bound + 0.5), 6.0)
