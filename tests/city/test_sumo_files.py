"""Times as SUMO writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.sumo_files import seconds, time_text


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (0, "00:00:00"),
        (29405, "08:10:05"),
        (29405.5, "08:10:05.5"),
        (59.9996, "00:01:00"),
        (90061, "1:01:01:01"),
        (-5, "-00:00:05"),
        (float("nan"), "nan"),
        (1e300, "1e+300"),
    ],
)
def test_time_is_written_as_sumo_writes_it(second, text):
    assert time_text(second) == text


@given(st.integers(0, 10**10))
def test_written_time_is_read_as_the_same_second(milliseconds):
    assert seconds(time_text(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, abs=1e-6)
