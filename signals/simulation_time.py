"""Simulated time: SUMO counts whole milliseconds, and sums of float seconds differ from them by rounding.

With steps of 0.1 s an unrounded comparison would lengthen a yellow by a step, or
wait for a moment that SUMO never reports.
"""

import math


def round_to_ms(time_s: float) -> float:
    """Round a moment or a duration in s to the millisecond; infinite ones and NaN stay."""
    try:
        return round(time_s * 1000) / 1000  # a fifth of the time of round(time_s, 3), which goes through a text
    except (OverflowError, ValueError):
        return time_s


def ceil_to_ms(time_s: float) -> float:
    """The first whole millisecond that is not before a moment in s; infinite ones stay infinite."""
    return math.ceil(time_s * 1000 - 1e-6) / 1000 if math.isfinite(time_s) else time_s


def next_multiple_s(now: float, begin_s: float, interval_s: float) -> float:
    """The moment one interval from now, in s, rounded to a whole number of intervals from begin_s.

    A TL that had to decide in between gets back in step with the others.
    """
    return round_to_ms(begin_s + (round((now - begin_s) / interval_s) + 1) * interval_s)
