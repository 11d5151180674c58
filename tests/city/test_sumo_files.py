"""Times as SUMO reads and writes them."""

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25200", 25200),
        ("07:00:00", 25200),
        ("7:30:99", 27099),
        ("1:00:00:00.5", 86400.5),
        ("1e3", 1000),
        ("-1", -1),
        (".5", 0.5),
    ],
)
def test_times_are_read_in_sumos_formats(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["7:30", "7:30:", "::", "1:2:3:4:5", "450s", "450 ", "1_000", "٣", "nan", "inf", "1e999", "", "7h30"]
)
def test_times_that_sumo_refuses_are_refused(text):
    with pytest.raises(ValueError):
        seconds(text)
