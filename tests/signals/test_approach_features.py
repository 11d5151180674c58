"""The features of incoming lanes: each against a loop over lanes and vehicles, and cases by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import policy_pb2 as pb
from signals.approach_features import FEATURES, MAX_RED_S, ApproachFeatures
from signals.observation import NO_VEHICLES, VehicleReadings


def vehicle_readings(vehicles):
    """Readings of (row, position, speed, waiting) in any order."""
    vehicles = sorted(vehicles, key=lambda vehicle: vehicle[0])
    row, *values = zip(*vehicles, strict=True) if vehicles else ((), (), (), ())
    return VehicleReadings(np.array(row, np.intp), *(np.array(value, float) for value in values))


def approach(upstream, exits=()):
    """An approach from (row, distance, share, length, limit) and (row, share, length, limit); its lane is the first
    one."""
    return pb.Approach(
        lane_id=f"lane{upstream[0][0]}",
        upstream=[
            pb.ReadLane(
                lane_id=f"lane{row}", distance_m=distance_m, share=share, length_m=length_m, limit_mps=limit_mps
            )
            for row, distance_m, share, length_m, limit_mps in upstream
        ],
        exits=[
            pb.ReadLane(lane_id=f"lane{row}", share=share, length_m=length_m, limit_mps=limit_mps)
            for row, share, length_m, limit_mps in exits
        ],
    )


def features(approaches, vehicles, red_s=None, lanes=20):
    computed = ApproachFeatures(approaches, {f"lane{k}": k for k in range(lanes)})
    rows = computed.compute(vehicle_readings(vehicles), np.zeros(len(approaches)) if red_s is None else np.array(red_s))
    assert rows.dtype == np.float32 and rows.shape == (len(approaches), len(FEATURES))
    return dict(zip(FEATURES, rows[0].tolist(), strict=True))


def one_by_one(approach, vehicles, red_s):
    """The features of an approach by their definitions, vehicle by vehicle."""
    f = dict.fromkeys(FEATURES, 0.0)
    f["longest_red"], f["nearest"] = min(red_s, MAX_RED_S), 300.0
    count = weight = speeds = 0.0
    for lane in approach.upstream:
        for row, position_m, mps, waiting_s in vehicles:
            distance_m = lane.distance_m + lane.length_m - position_m
            if f"lane{row}" != lane.lane_id or distance_m >= 300:
                continue
            distance_m = max(distance_m, 0.0)
            count += lane.share
            f["vehicles_near" if distance_m < 50 else "vehicles_middle" if distance_m < 150 else "vehicles_far"] += (
                lane.share
            )
            if mps < 0.3:
                f["halting"] += lane.share
            else:
                arrival_s = distance_m / max(mps, 1.0)
                if arrival_s < 12:
                    f["arriving_soon" if arrival_s < 5 else "arriving_later"] += lane.share
            f["lost_time"] += lane.share * max(0.0, 1 - mps / lane.limit_mps)
            f["total_wait"] += lane.share * waiting_s
            if distance_m < 150:
                weight += lane.share
                speeds += lane.share * mps / lane.limit_mps
            if lane.share > 0.3:
                f["longest_wait"] = max(f["longest_wait"], waiting_s)
                f["nearest"] = min(f["nearest"], distance_m)
    f["relative_speed"] = speeds / weight if weight else 0.0
    reach_m = sum(min(lane.length_m, 300 - lane.distance_m) * lane.share for lane in approach.upstream)
    f["occupancy"] = min(7.5 * count / reach_m, 1.5)
    for lane in approach.exits:
        there = [(position_m, mps) for row, position_m, mps, _ in vehicles if f"lane{row}" == lane.lane_id]
        halting = [mps for _, mps in there if mps < 0.3]
        capacity = max(1, lane.length_m // 7.5)
        f["exit_occupancy"] += lane.share * min(len(there) / capacity, 1.2)
        f["exit_queue"] += lane.share * min(len(halting) / capacity, 1.2)
        f["exit_blocked"] += lane.share * any(position_m < 25 and mps < 2 for position_m, mps in there)
    return [f[name] for name in FEATURES]


LANES = 12
number = st.floats(0, 1)


@st.composite
def streets(draw, max_approaches=5):
    """(approaches, vehicles (row, position, speed, waiting), red times) on lanes with a length and a speed limit
    each."""
    length_m = draw(st.lists(st.sampled_from([0.9, 7.5, 40.0, 120.5, 400.0]), min_size=LANES, max_size=LANES))
    limit_mps = draw(st.lists(st.sampled_from([2.78, 8.33, 13.89, 27.78]), min_size=LANES, max_size=LANES))
    share = st.sampled_from([0.11, 0.25, 0.3, 1 / 3, 0.5, 1.0])
    rows = st.lists(st.integers(0, LANES - 1), max_size=5, unique=True)
    approaches, red_s = [], []
    for _ in range(draw(st.integers(1, max_approaches))):
        upstream = [(row, draw(number) * 299, draw(share)) for row in draw(rows.filter(bool))]
        upstream[0] = (upstream[0][0], 0.0, 1.0)
        exits = [(row, draw(share), length_m[row], limit_mps[row]) for row in draw(rows)]
        approaches.append(approach([(*lane, length_m[lane[0]], limit_mps[lane[0]]) for lane in upstream], exits))
        red_s.append(draw(st.sampled_from([0.0, 4.5, 120.0, 3600.0, 9999.0, np.inf])))
    speeds = st.one_of(st.sampled_from([0.0, 0.29, 0.3, 1.99, 2.0]), st.floats(0, 40))
    vehicles = [
        (row, draw(number) * length_m[row], draw(speeds), draw(st.floats(0, 500)))
        for row in draw(st.lists(st.integers(0, LANES - 1), max_size=25))
    ]
    return approaches, vehicles, red_s


@given(streets())
def test_every_feature_equals_a_loop_over_vehicles(street):
    approaches, vehicles, red_s = street
    computed = ApproachFeatures(approaches, {f"lane{k}": k for k in range(LANES)})
    rows = computed.compute(vehicle_readings(vehicles), np.array(red_s))
    expected = [one_by_one(*item, red) for item, red in zip([(a, vehicles) for a in approaches], red_s, strict=True)]
    np.testing.assert_allclose(rows, np.array(expected, np.float32), rtol=1e-5, atol=1e-5)


@given(streets())
def test_approaches_together_equal_each_alone(street):
    approaches, vehicles, red_s = street
    lane_row = {f"lane{k}": k for k in range(LANES)}
    readings = vehicle_readings(vehicles)
    together = ApproachFeatures(approaches, lane_row).compute(readings, np.array(red_s))
    for k, single in enumerate(approaches):
        alone = ApproachFeatures([single], lane_row).compute(readings, np.array(red_s[k : k + 1]))
        np.testing.assert_array_equal(together[k], alone[0])


def test_without_vehicles_only_red_and_the_reach_remain():
    found = ApproachFeatures([approach([(0, 0, 1, 100, 13.89)], [(1, 1, 100, 10)])], {"lane0": 0, "lane1": 1})
    values = dict(zip(FEATURES, found.compute(NO_VEHICLES, np.array([30.0]))[0].tolist(), strict=True))
    assert {name: value for name, value in values.items() if value} == {"longest_red": 30, "nearest": 300}


def test_without_approaches_there_are_no_rows():
    assert ApproachFeatures([], {"lane0": 0}).compute(vehicle_readings([(0, 1, 1, 1)]), np.zeros(0)).shape == (
        0,
        len(FEATURES),
    )


def test_a_vehicle_counts_for_each_lane_that_it_may_reach():
    ahead = [approach([(k, 0, 1, 60, 10), (5, 60, 0.5, 100, 10)]) for k in range(2)]
    for order in (ahead, ahead[::-1]):
        found = features(order, [(5, 90, 10, 0)])
        # 10 m to the end of its lane, and 60 m more
        assert (found["vehicles_middle"], found["nearest"], found["arriving_later"]) == (0.5, 70, 0.5)


ALONE = [(0, 0, 1, 100, 10)]


@pytest.mark.parametrize(
    ("upstream", "vehicle", "expected"),
    [
        pytest.param(
            [*ALONE, (1, 100, 0.3, 100, 10)],
            (1, 50, 0, 80),
            {"longest_wait": 0, "nearest": 300, "total_wait": 24},
            id="a rare turn sets neither the longest wait nor the nearest vehicle",
        ),
        pytest.param([(0, 0, 1, 400, 10)], (0, 100, 5, 0), {"vehicles_far": 0}, id="beyond the reach"),
        pytest.param([(0, 0, 1, 400, 10)], (0, 100.1, 5, 0), {"vehicles_far": 1}, id="within the reach"),
        pytest.param(ALONE, (0, 100.4, 5, 0), {"nearest": 0}, id="past its stop line"),
    ],
)
def test_features_of_one_vehicle(upstream, vehicle, expected):
    found = features([approach(upstream)], [vehicle])
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_an_exit_is_blocked_by_a_slow_vehicle_at_its_beginning():
    through = approach([(0, 0, 1, 100, 10)], [(1, 0.25, 100, 10), (2, 0.75, 50, 10)])
    assert [
        features([through], [(2, at_m, mps, 0)])["exit_blocked"] for at_m, mps in ((24, 1.9), (26, 1.9), (24, 2.1))
    ] == [0.75, 0, 0]
