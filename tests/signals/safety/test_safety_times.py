"""The stricter of a contract's times and the city's, or the contract's alone."""

import math

import pytest

from city.config import Safety
from protos import policy_pb2 as pb
from signals.safety.safety_times import SafetyTimes, red_clearance_s, times_for, yellow_s_at
from tests.signals.safety.floor_examples import PATHS, SPEEDS

CONTRACT = pb.PolicyContract(timing=pb.Timing(yellow_s=2, min_green_s=5, all_red_s=1, max_green_s=50))


BOUNDS = dict(max_red_s=90, walking_speed_mps=1.1)


@pytest.mark.parametrize(
    ("city", "times"),
    [
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=4, all_red_s=0.5, max_green_s=60, **BOUNDS),
            SafetyTimes(3, 5, 1, 50, 90, 1.1, yellow_by_speed=True, red_by_path=False),
            id="the stricter of both",
        ),
        pytest.param(
            Safety(min_yellow_s=1, min_green_s=6, all_red_s=2.5, max_green_s=40, **BOUNDS),
            SafetyTimes(2, 6, 2.5, 40, 90, 1.1, yellow_by_speed=True, red_by_path=False),
            id="the stricter of both, the other way round",
        ),
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=4, max_green_s=60, **BOUNDS),
            SafetyTimes(3, 5, 1, 50, 90, 1.1, yellow_by_speed=True, red_by_path=True),
            id="red clearance is by path if the city sets no all-red",
        ),
        pytest.param(
            Safety(min_yellow_s=3, min_green_s=9, all_red_s=2, max_green_s=20, floors="dialect", **BOUNDS),
            SafetyTimes(2, 5, 1, 50, math.inf, math.inf, yellow_by_speed=False, red_by_path=False),
            id="floors of the dialect are the contract's times alone",
        ),
    ],
)
def test_times_of_a_signal(city, times):
    assert times_for(CONTRACT, city, False) == times


def test_min_and_max_green_of_a_plan_do_not_apply_to_its_links():
    for floors in ("street", "dialect"):
        times = times_for(CONTRACT, Safety(min_green_s=4, floors=floors), True)
        assert times.min_green_s == (4 if floors == "street" else 0) and times.max_green_s == math.inf


def test_times_without_bounds_or_all_red_have_none():
    contract = pb.PolicyContract(timing=pb.Timing(yellow_s=2, min_green_s=5))
    for floors in ("street", "dialect"):
        times = times_for(contract, Safety(min_green_s=0, floors=floors), False)
        assert (times.all_red_s, times.max_green_s, times.max_red_s) == (0, math.inf, math.inf)
    assert times_for(contract, Safety(min_green_s=0), True).min_green_s == 0


@pytest.mark.parametrize(("mps", "yellow_s"), SPEEDS)
def test_yellow_is_that_of_the_approach_speed(mps, yellow_s):
    assert yellow_s_at(mps) == yellow_s


@pytest.mark.parametrize(("path_m", "mps", "red_s"), PATHS)
def test_red_clearance_is_the_time_to_clear_the_path(path_m, mps, red_s):
    assert red_clearance_s(path_m, mps) == pytest.approx(red_s)
