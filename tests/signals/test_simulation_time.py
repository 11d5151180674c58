"""Rounding of simulated time."""

import math

import pytest

from signals.simulation_time import round_to_ms


@pytest.mark.parametrize(
    ("time_s", "rounded_s"),
    [
        (0.1 + 0.2, 0.3),
        (25272.2996, 25272.3),
        (25272.2994, 25272.299),
        (-1.0006, -1.001),
        (86_400.0, 86_400.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_times_are_rounded_to_the_float_of_a_whole_ms(time_s, rounded_s):
    assert round_to_ms(time_s) == rounded_s


def test_nan_stays():
    assert math.isnan(round_to_ms(math.nan))
