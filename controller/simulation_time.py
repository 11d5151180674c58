"""Simulated time: SUMO counts whole milliseconds, and sums of float seconds miss them by a hair.

With steps of 0.1 s an unrounded comparison would lengthen a yellow by a step,
or wait for a moment that SUMO never names.
"""


def ms(time_s: float) -> float:
    """A moment or a span in s, on the millisecond; infinite ones stay so."""
    return round(time_s, 3)
