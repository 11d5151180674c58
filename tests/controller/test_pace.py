"""The pace of a run: speed, pause, single steps and lateness, with time passed in."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.pace import MAX_CATCH_UP_S, Pace
from tests.conftest import ROOT


def begin(pace, now, wall_s):
    """Wait as the operator interface does; return the wall time at which the step at `now` begins."""
    wait_s = pace.wait_s(now, wall_s)
    assert wait_s < math.inf
    pace.begin_step(now, wall_s + wait_s)
    return wall_s + wait_s


def test_without_a_speed_nothing_waits():
    pace = Pace()
    assert [pace.wait_s(now, 100.0) for now in (0.0, 5.0, 1e6)] == [0.0, 0.0, 0.0]
    assert pace.step_end_s(7.0) == math.inf


def test_a_short_delay_is_caught_up_and_a_long_one_is_not():
    pace = Pace(1.0)
    begin(pace, 0.0, 0.0)
    assert begin(pace, 1.0, 1.5) == 1.5 and pace.state.lateness_s == pytest.approx(0.5) and pace.state.late_steps == 1
    assert begin(pace, 2.0, 1.6) == pytest.approx(2.0) and pace.state.lost_s == 0.0
    assert begin(pace, 3.0, 63.0) == 63.0 and pace.state.lost_s == pytest.approx(60.0)
    assert begin(pace, 4.0, 63.1) == pytest.approx(64.0), "no race after a stall"
    assert pace.state.late_steps == 2


def test_a_paused_run_waits_until_it_is_resumed_and_is_not_late_then():
    pace = Pace(1.0)
    begin(pace, 0.0, 0.0)
    pace.pause()
    assert pace.wait_s(1.0, 1.0) == math.inf and pace.wait_s(1.0, 900.0) == math.inf
    pace.resume()
    assert begin(pace, 1.0, 900.0) == 900.0 and pace.state.lateness_s == 0.0 and pace.state.lost_s == 0.0


def test_a_step_ends_at_its_second_and_pauses_there():
    pace = Pace()
    pace.pause()
    pace.step(7.0, 5.0)
    assert pace.wait_s(5.0, 0.0) == 0.0 and pace.step_end_s(5.0) == 7.0
    assert pace.wait_s(6.0, 0.0) == 0.0
    assert pace.wait_s(7.0, 0.0) == math.inf and pace.state.is_paused and pace.state.step_until_s == 0.0


def test_a_repeated_step_to_a_second_that_has_passed_changes_nothing():
    pace = Pace()
    pace.pause()
    before = pace.state
    pace.step(5.0, 5.0)
    assert pace.state == before and pace.wait_s(5.0, 0.0) == math.inf


def test_a_speed_that_is_set_again_keeps_the_schedule():
    pace = Pace(1.0)
    begin(pace, 0.0, 0.0)
    pace.set_speed(1.0)
    assert pace.wait_s(1.0, 0.25) == pytest.approx(0.75)
    pace.set_speed(2.0)
    assert begin(pace, 1.0, 0.25) == 0.25 and pace.wait_s(2.0, 0.25) == pytest.approx(0.5)


def test_paced_steps_are_short_so_that_their_seconds_do_not_pass_at_once():
    assert Pace(1.0).step_end_s(10.0) == 11.0
    assert Pace(1000.0).step_end_s(10.0) == 30.0


@given(st.floats(0.1, 50), st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 5)), max_size=30))
def test_a_run_is_never_faster_than_its_speed_and_never_more_than_the_bound_behind(speed, steps):
    """Over every stretch without a moved schedule, whatever the steps and delays."""
    pace, now, wall_s = Pace(speed), 0.0, 0.0
    begin_s = begin(pace, now, wall_s)
    for simulated_s, delay_s in steps:
        now += simulated_s
        wall_s = begin(pace, now, wall_s + delay_s)
        assert wall_s - begin_s >= now / speed - 1e-6
        assert pace.wait_s(now, wall_s) <= 1e-9
        assert wall_s - begin_s - now / speed - pace.state.lost_s <= MAX_CATCH_UP_S + 1e-6


def test_no_interval_is_measured_with_the_wall_clock():
    """It may jump: NTP, a suspended machine."""
    for package in ("city", "controller", "serving"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(
                r"\btime\.time(_ns)?\(|datetime\.now\(\)|from time import .*\btime\b", path.read_text()
            ), path
